// generate: text from a checkpoint, printed as it is made; or the ids, their log-probabilities, the score of given ids.
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/files.h"
#include "core/flags.h"
#include "core/main.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/generate.h"
#include "train/model_tokenizer.h"
#include "train/utf8.h"

namespace grt {
namespace {

struct Options {
  std::optional<std::string> checkpoint, prompt, prompt_file, prompt_ids, score_ids;
  std::int64_t tokens = 100;
  int samples = 1;
  std::optional<int> depth;
  std::string kv = "full", overflow = "error";
  bool stop_at_end = true, print_ids = false, print_logprobs = false, print_depths = false, stats = false;

  template <class V>
  void fields(V&& v) {
    v("checkpoint", checkpoint,
      "a run's directory (its latest checkpoint), or a directory with config.json and model.safetensors");
    v("prompt", prompt, "text to continue; empty or left out: the beginning of a document");
    v("prompt-file", prompt_file, "file whose text to continue");
    v("prompt-ids", prompt_ids, "token ids to continue, such as 1,2,3");
    v("tokens", tokens, "tokens to make");
    v("samples", samples, "continuations to make, with random numbers of their own");
    v("depth", depth, "exit to use: the recurrences of the core (default: full depth)");
    v("kv", kv,
      "what the cache keeps of a core layer's keys and values: full (all, exact); grt, poisson, ouro: mean, last or "
      "first of the steps");
    v("overflow", overflow,
      "past the context length: error, or slide, which drops the oldest half of the context and computes the rest "
      "anew");
    v("stop-at-end", stop_at_end,
      "end a continuation where the document ends; ids and log-probabilities go on unless this is given");
    v("print-ids", print_ids, "print the new ids instead of text, on one line for each sample");
    v("print-logprobs", print_logprobs, "print a line `id logprob` (nats, without temperature) for each new token");
    v("print-depths", print_depths,
      "print how many steps each token takes, on one line for each sample: those of the prompt, then the new ones but "
      "the last, which no step works on");
    v("score-ids", score_ids, "print the log-probability of each of these ids after the prompt and make no tokens");
    v("stats", stats, "print speed, memory and the steps that tokens take to stderr");
  }
};

void check_flags(const Options& o) {
  check(o.checkpoint.has_value(), "--checkpoint: expected the directory of a checkpoint");
  check(!o.prompt + !o.prompt_file + !o.prompt_ids >= 2, "--prompt, --prompt-file, --prompt-ids: give one of them");
  kv_strategy(o.kv);
  check(o.overflow == "error" || o.overflow == "slide", "--overflow: must be error or slide, not \"{}\"", o.overflow);
  check(!o.score_ids || (!o.print_ids && !o.print_logprobs && !o.print_depths && o.samples == 1),
        "--score-ids: makes no tokens, so it does not go with --print-ids, --print-logprobs, --print-depths or "
        "--samples");
}

std::vector<int> parse_ids(const char* flag, const std::string& text) {
  std::vector<int> ids;
  const char *p = text.data(), *end = p + text.size();
  while (p != end) {
    int id = 0;
    const auto [stop, error] = std::from_chars(p, end, id);
    check(error == std::errc{} && (stop == end || (*stop == ',' && stop + 1 != end)),
          "{}: must be token ids separated by commas, such as 1,2,3, not \"{}\"", flag, text);
    ids.push_back(id);
    p = stop == end ? end : stop + 1;
  }
  return ids;
}

// Documents of a token file follow an end-of-document id, so that id alone is the beginning of one.
std::vector<int> beginning(const BackboneConfig& config) {
  const int id = make_tokenizer(config.tokenizer)->end_of_document();
  check(id < config.vocab_size,
        "the prompt is empty, and the end-of-document id {} that would begin a document is not below vocab_size {}: "
        "give a prompt by --prompt-ids",
        id, config.vocab_size);
  return {id};
}

std::vector<int> prompt_of(const Options& options, const BackboneConfig& config) {
  std::vector<int> ids;
  if (options.prompt_ids) {
    ids = parse_ids("--prompt-ids", *options.prompt_ids);
  } else if (options.prompt_file || (options.prompt && !options.prompt->empty())) {
    const std::string text = options.prompt_file ? read_file(*options.prompt_file) : *options.prompt;
    ids = model_tokenizer(config, "give ids by --prompt-ids")->encode(text);
  }
  return ids.empty() ? beginning(config) : ids;
}

void print_now(const std::string& text) {
  errno = 0;
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check(ok, "stdout: cannot write: {}", std::generic_category().message(errno));
}

std::string heading(int sample, int samples) {
  return samples == 1 ? "" : fmt::format("--- sample {} of {} ---\n", sample + 1, samples);
}

// The first sample appears as it is made, the others when all are done.
GenerateStats print_text(const LanguageModel& model, std::span<const int> prompt, const GenerateOptions& options) {
  const auto tokenizer = model_tokenizer(model.config(), "print ids with --print-ids instead of text");
  std::vector<Utf8Stream> streams(options.samples);
  std::vector<std::string> held(options.samples);
  print_now(heading(0, options.samples));
  const GenerateStats stats = generate(model, prompt, options, [&](int sample, const NewToken& token) {
    const std::string text = streams[sample].push(tokenizer->decode(token.id));
    if (sample == 0) {
      print_now(text);
    } else {
      held[sample] += text;
    }
  });
  for (int i = 0; i < options.samples; ++i)
    print_now((i ? heading(i, options.samples) : "") + held[i] + streams[i].flush() + "\n");
  return stats;
}

GenerateStats print_numbers(const LanguageModel& model, std::span<const int> prompt, const GenerateOptions& options,
                            const Options& shown) {
  std::vector<std::vector<NewToken>> samples(options.samples);
  const GenerateStats stats =
      generate(model, prompt, options, [&](int sample, const NewToken& token) { samples[sample].push_back(token); });
  for (int i = 0; i < options.samples; ++i) {
    std::string line, lines;
    for (const NewToken& token : samples[i]) {
      line += fmt::format("{}{}", line.empty() ? "" : " ", token.id);
      lines += fmt::format("{} {}\n", token.id, token.logprob);
    }
    if (shown.print_ids) print_now(line + "\n");
    if (shown.print_depths) print_now(fmt::format("{}\n", fmt::join(stats.steps[i], " ")));
    if (shown.print_logprobs) print_now(lines);
  }
  return stats;
}

void print_stats(const GenerateStats& s, int samples) {
  const double tokens = static_cast<double>(s.new_tokens);
  fmt::print(stderr, "prompt: {} tokens in {:.3f} s\n", s.prompt_tokens, s.prompt_seconds);
  fmt::print(stderr, "made: {} tokens in {} sample(s), {:.3f} s", s.new_tokens, samples, s.seconds);
  if (s.new_tokens > 0 && s.seconds > 0)
    fmt::print(stderr, ": {:.1f} tokens/s, {:.3f} ms/token", tokens / s.seconds, 1000 * s.seconds / tokens);
  fmt::print(stderr, "\nkey/value cache: {} bytes\n", s.cache_bytes);
  std::map<int, double> taken;
  double all = 0;
  for (const std::vector<int>& sample : s.steps)
    for (const int steps : sample) ++taken[steps], ++all;
  fmt::print(stderr, "steps of a token:");
  for (const auto& [steps, count] : taken) fmt::print(stderr, "  {}: {:.2f} %", steps, 100 * count / all);
  fmt::print(stderr, "\n");
}

int run(int argc, char** argv) {
  Options options;
  Sampling sampling;
  DeviceConfig device_flags;
  Flags flags("generate", "Text from a checkpoint. The prompt itself is not printed.");
  flags.add(options);
  flags.add(sampling);
  flags.add(device_flags);
  if (!flags.parse(argc, argv)) return 0;
  check_flags(options);
  const DecodeOptions decode{.depth = options.depth,
                             .slide = options.overflow == "slide",
                             .seed = sampling.seed,
                             .kv = kv_strategy(options.kv),
                             .count_steps = options.print_depths || options.stats};
  GenerateOptions generation{
      .tokens = options.tokens, .samples = options.samples, .sampling = sampling, .decode = decode};
  check_generation(generation);

  const std::unique_ptr<Device> device = device_flags.open();
  const std::unique_ptr<LanguageModel> model = load_model(*options.checkpoint, *device, device_flags.type());
  const std::vector<int> prompt = prompt_of(options, model->config());
  if (options.score_ids) {
    for (const double logprob : score(*model, prompt, parse_ids("--score-ids", *options.score_ids), decode))
      fmt::print("{}\n", logprob);
    return 0;
  }

  const bool numbers = options.print_ids || options.print_logprobs || options.print_depths;
  if (options.stop_at_end && (!numbers || flags.given("stop-at-end")))
    generation.stop_id = make_tokenizer(model->config().tokenizer)->end_of_document();
  const GenerateStats stats =
      numbers ? print_numbers(*model, prompt, generation, options) : print_text(*model, prompt, generation);
  if (options.stats) print_stats(stats, options.samples);
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("generate", [&] { return grt::run(argc, argv); });
}
