#include "tools/bench/decode.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/generate.h"

namespace grt {
namespace {

// One new token after a context of `context`: every weight that is used is read once for each use, every key and value
// once.
double decode_bytes(const LanguageModel& model, double context) {
  const int depth = model.depths().full;
  const Flops products = model.flops(0, depth);
  const double weights = (products.executed_body + products.executed_head) / 2;
  const double cache =
      2 * context * static_cast<double>(model.config().d_model) * static_cast<double>(model.applications(depth).size());
  return sizeof(float) * (weights + cache);
}

// Seconds for each of `tokens` new tokens after a short prompt.
double decode_once(const LanguageModel& model, std::int64_t prompt, std::int64_t tokens) {
  Decoder decoder(model, {}, prompt + tokens);
  std::vector<int> ids;
  for (std::int64_t i = 0; i < prompt; ++i) ids.push_back(static_cast<int>(i % model.config().vocab_size));
  std::vector<double> logits = decoder.start(ids);
  const Sampling greedy{.temperature = 0};
  return seconds_of([&] {
           for (std::int64_t i = 0; i < tokens; ++i) {
             const int id = choose(logits, greedy, 0, prompt + i).id;
             logits = decoder.next(std::span(&id, 1));
           }
         }) /
         static_cast<double>(tokens);
}

}  // namespace

void bench_decode(const ModelBench& bench, Device& device, Report& report) {
  report.begin("decode");
  std::vector<std::unique_ptr<LanguageModel>> models;
  for (const std::string& name : bench.models) models.push_back(bench_model(name, bench.context_length, device));
  std::vector<std::vector<double>> samples(models.size());
  constexpr std::int64_t kPrompt = 4;
  const auto new_tokens = [&](const LanguageModel& model) {
    check(model.config().context_length > kPrompt, "--context-length: decoding needs more than {}, not {}", kPrompt,
          model.config().context_length);
    return std::min(bench.tokens, model.config().context_length - kPrompt);
  };
  for (int round = -1; round < bench.rounds; ++round)  // the first warms up
    for (std::size_t i = 0; i < models.size(); ++i) {
      const double seconds = decode_once(*models[i], kPrompt, new_tokens(*models[i]));
      if (round >= 0) samples[i].push_back(seconds);
    }

  report.measure_peaks(10);

  std::vector<double> seconds, amounts;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const double context = kPrompt + static_cast<double>(new_tokens(*models[i]) + 1) / 2;
    amounts.push_back(decode_bytes(*models[i], context));
    const Timing time = timing_of(samples[i]);
    seconds.push_back(time.median);
    report.add({"decode",
                fmt::format("{}, context {}..{}", bench.models[i], kPrompt, kPrompt + new_tokens(*models[i])),
                time,
                0,
                amounts[i],
                1,
                {{"mean_context", context}}});
  }
  for (std::size_t i = 1; i < models.size(); ++i) {
    const Share share = share_of_first(report, "decode", "bytes", bench.models, seconds, amounts, i);
    fmt::print("  {} / {}: {:.3f} x the time for {:.3f} x the bytes: {:.3f}\n", bench.models[i], bench.models[0],
               share.time, share.work, share.time_for_work());
  }
}

}  // namespace grt
