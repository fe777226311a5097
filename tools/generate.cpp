// generate: text from a checkpoint, printed as it is made; or the ids, their log-probabilities, the score of given ids.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "core/files.h"
#include "core/flags.h"
#include "core/json.h"
#include "core/main.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/generate.h"
#include "train/model_tokenizer.h"
#include "train/utf8.h"

namespace grt {
namespace {

struct Options {
  std::optional<std::string> checkpoint, prompt, prompt_file, prompt_ids, score_ids, exit, speculate;
  std::int64_t tokens = 100, batch_size = 0;
  int samples = 1;
  std::optional<int> depth;
  std::string kv = "full", overflow = "error";
  bool stop_at_end = true, print_ids = false, print_logprobs = false, print_depths = false, stats = false;

  template <class V>
  void fields(V&& v) {
    v("checkpoint", checkpoint,
      "a run's directory (its latest checkpoint), or a directory with config.json and model.safetensors");
    v("prompt", prompt, "text to continue; empty or left out: the beginning of a document");
    v("prompt-file", prompt_file,
      "file whose text to continue; of a .jsonl file each line, {\"text\": ...} or {\"ids\": [...]}, is a prompt of "
      "its "
      "own, and all are continued side by side");
    v("prompt-ids", prompt_ids, "token ids to continue, such as 1,2,3");
    v("tokens", tokens, "tokens to make");
    v("batch-size", batch_size, "prompts to continue side by side; 0: all. No text depends on it");
    v("samples", samples, "continuations of each prompt, with random numbers of their own");
    v("depth", depth, "exit to use: the recurrences of the core (default: full depth)");
    v("kv", kv,
      "what the cache keeps of a core layer's keys and values: full (all, exact); grt, poisson, ouro: mean, last or "
      "first of the steps");
    v("exit", exit,
      "let each token stop before --depth: kl:x where the distributions of two exits diverge by less than x nats (grt, "
      "poisson; 5e-4), gate:x where the gate is open by less than x (grt), prob:q where the probability of having "
      "stopped reaches q (ouro)");
    v("speculate", speculate,
      "draft tokens at a shallow exit and verify them in one pass, which gives the same text where it is greedy "
      "(--temperature 0) and text of the same distribution elsewhere: k tokens (at depth r: "
      "k:r), or auto, which chooses both from how many drafts are taken");
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
    v("stats", stats,
      "print speed, memory and the steps that tokens take to stderr; with --exit the depths and how often full depth "
      "agrees, with --speculate the share of drafts taken and the gain over plain decoding, both of which cost that "
      "run as well");
  }
};

void check_flags(const Options& o) {
  check(o.checkpoint.has_value(), "--checkpoint: expected the directory of a checkpoint");
  check(!o.prompt + !o.prompt_file + !o.prompt_ids >= 2, "--prompt, --prompt-file, --prompt-ids: give one of them");
  kv_strategy(o.kv);
  check(o.overflow == "error" || o.overflow == "slide", "--overflow: must be error or slide, not \"{}\"", o.overflow);
  check(!o.score_ids ||
            (!o.print_ids && !o.print_logprobs && !o.print_depths && !o.stats && o.samples == 1 && !o.speculate),
        "--score-ids: makes no tokens, so it does not go with --print-ids, --print-logprobs, --print-depths, --stats, "
        "--samples or --speculate");
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

bool has_lines(const Options& options) { return options.prompt_file && options.prompt_file->ends_with(".jsonl"); }

std::vector<int> encoded(const BackboneConfig& config, const std::string& text) {
  return text.empty() ? std::vector<int>() : model_tokenizer(config, "give ids by --prompt-ids")->encode(text);
}

void check_ids(std::span<const int> ids, const std::string& where, const BackboneConfig& config) {
  for (const int id : ids)
    check(id >= 0 && id < config.vocab_size, "{}: id {} is outside [0, {}), the model's vocabulary", where, id,
          config.vocab_size);
}

// A line of a .jsonl file.
std::vector<int> prompt_of_line(const std::string& line, const std::string& where, const BackboneConfig& config) {
  const Json json = parse_json(line, where);
  const bool one = json.is_object() && json.size() == 1;
  if (one && json.contains("text") && json["text"].is_string()) return encoded(config, json["text"]);
  const auto whole = [](const Json& id) { return id.is_number_integer(); };
  check(one && json.contains("ids") && json["ids"].is_array() &&
            std::all_of(json["ids"].begin(), json["ids"].end(), whole),
        "{}: expected {{\"text\": ...}} or {{\"ids\": [...]}}, got {}", where, to_text(json).substr(0, 100));
  for (const Json& id : json["ids"])
    check(id >= 0 && id < config.vocab_size, "{}: id {} is outside [0, {}), the model's vocabulary", where, id.dump(),
          config.vocab_size);
  return json["ids"];
}

std::vector<std::vector<int>> prompts_of(const Options& options, const BackboneConfig& config) {
  std::vector<std::vector<int>> prompts;
  if (has_lines(options)) {
    std::istringstream lines(read_file(*options.prompt_file));
    int number = 0;
    for (std::string line; std::getline(lines, line);)
      prompts.push_back(prompt_of_line(line, fmt::format("{}, line {}", *options.prompt_file, ++number), config));
    check(!prompts.empty(), "{}: has no line", *options.prompt_file);
  } else if (options.prompt_ids) {
    prompts = {parse_ids("--prompt-ids", *options.prompt_ids)};
    check_ids(prompts[0], "--prompt-ids", config);
  } else {
    prompts = {encoded(config, options.prompt_file ? read_file(*options.prompt_file) : options.prompt.value_or(""))};
  }
  for (std::vector<int>& prompt : prompts)
    if (prompt.empty()) prompt = beginning(config);
  return prompts;
}

void print_now(const std::string& text) {
  errno = 0;
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check(ok, "stdout: cannot write: {}", std::generic_category().message(errno));
}

using Prompts = std::vector<std::vector<int>>;
using Made = std::vector<std::vector<NewToken>>;  // of each continuation

std::string heading(int continuation, int prompts, int samples) {
  const int prompt = continuation / samples + 1, sample = continuation % samples + 1;
  if (prompts > 1 && samples > 1)
    return fmt::format("--- prompt {} of {}, sample {} of {} ---\n", prompt, prompts, sample, samples);
  if (prompts > 1) return fmt::format("--- prompt {} of {} ---\n", prompt, prompts);
  return samples > 1 ? fmt::format("--- sample {} of {} ---\n", sample, samples) : "";
}

// The first continuation appears as it is made, the others when all are done.
GenerateStats print_text(const LanguageModel& model, const Prompts& prompts, const GenerateOptions& options,
                         Made& made) {
  const auto tokenizer = model_tokenizer(model.config(), "print ids with --print-ids instead of text");
  const int count = static_cast<int>(prompts.size()), all = count * options.samples;
  std::vector<Utf8Stream> streams(all);
  std::vector<std::string> held(all);
  bool begun = false;
  const auto begin = [&] {  // not before the first token is there, for there may be an error instead
    if (!begun) print_now(heading(0, count, options.samples));
    begun = true;
  };
  const GenerateStats stats = generate(model, prompts, options, [&](int sample, const NewToken& token) {
    begin();
    made[sample].push_back(token);
    const std::string text = streams[sample].push(tokenizer->decode(token.id));
    if (sample == 0) {
      print_now(text);
    } else {
      held[sample] += text;
    }
  });
  begin();
  for (int i = 0; i < all; ++i)
    print_now((i ? heading(i, count, options.samples) : "") + held[i] + streams[i].flush() + "\n");
  return stats;
}

GenerateStats print_numbers(const LanguageModel& model, const Prompts& prompts, const GenerateOptions& options,
                            const Options& shown, Made& made) {
  const GenerateStats stats =
      generate(model, prompts, options, [&](int sample, const NewToken& token) { made[sample].push_back(token); });
  for (std::size_t i = 0; i < made.size(); ++i) {
    std::string line, lines;
    for (const NewToken& token : made[i]) {
      line += fmt::format("{}{}", line.empty() ? "" : " ", token.id);
      lines += fmt::format("{} {}\n", token.id, token.logprob);
    }
    if (shown.print_ids) print_now(line + "\n");
    if (shown.print_depths) print_now(fmt::format("{}\n", fmt::join(stats.steps[i], " ")));
    if (shown.print_logprobs) print_now(lines);
  }
  return stats;
}

double share(std::int64_t part, std::int64_t all) {
  return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
}

void print_depths(const GenerateStats& s) {
  std::int64_t steps = 0;
  std::string list;
  for (const auto& [depth, tokens] : s.depths) {
    steps += depth * tokens;
    list += fmt::format("  {}: {:.1f} %", depth, 100 * share(tokens, s.new_tokens));
  }
  fmt::print(stderr, "depth: {:.3f} on average;{}\n", share(steps, s.new_tokens), list);
  if (s.agreement) fmt::print(stderr, "agreement with full depth: {:.2f} % of the tokens\n", 100 * *s.agreement);
  fmt::print(stderr, "keys and values of steps not taken, copied: {}\n", s.substituted);
}

void print_speculation(const GenerateStats& s, const GenerateStats& plain) {
  const SpeculationStats& d = s.speculation;
  fmt::print(stderr, "drafts: {} of {} taken ({:.1f} %), {:.2f} tokens a verification", d.taken, d.drafted,
             100 * share(d.taken, d.drafted), share(s.decoded, d.passes));
  for (const auto& [depth, tokens] : d.depths) fmt::print(stderr, "; {} at depth {}", tokens, depth);
  if (s.seconds > 0)
    fmt::print(stderr, "\nplain decoding: {:.3f} s, {:.2f} x as long", plain.seconds, plain.seconds / s.seconds);
  fmt::print(stderr, "\n");
}

void print_stats(const GenerateStats& s, std::size_t samples) {
  const double tokens = static_cast<double>(s.decoded);
  fmt::print(stderr, "prompt: {} tokens in {:.3f} s\n", s.prompt_tokens, s.prompt_seconds);
  fmt::print(stderr, "made: {} tokens in {} sample(s), {:.3f} s", s.new_tokens, samples, s.seconds);
  if (s.decoded > 0 && s.seconds > 0)
    fmt::print(stderr, " after the first: {:.1f} tokens/s, {:.3f} ms/token", tokens / s.seconds,
               1000 * s.seconds / tokens);
  fmt::print(stderr, "\nkey/value cache: {} bytes\n", s.cache_bytes);
  std::map<int, double> taken;
  double all = 0;
  for (const std::vector<int>& sample : s.steps)
    for (const int steps : sample) ++taken[steps], ++all;
  fmt::print(stderr, "steps of a token, prompts included:");
  for (const auto& [steps, count] : taken) fmt::print(stderr, "  {}: {:.2f} %", steps, 100 * count / all);
  fmt::print(stderr, "\n");
}

// How many continuations are not `made`.
std::size_t differing(const Made& made, const Made& others) {
  const auto same = [](const NewToken& a, const NewToken& b) { return a.id == b.id; };
  std::size_t count = 0;
  for (std::size_t i = 0; i < made.size(); ++i)
    count += !std::equal(made[i].begin(), made[i].end(), others[i].begin(), others[i].end(), same);
  return count;
}

// With what the special ways of decoding are worth.
void print_all_stats(const LanguageModel& model, const Prompts& prompts, GenerateOptions options,
                     const GenerateStats& stats, const Made& made) {
  print_stats(stats, made.size());
  if (options.decode.exit) print_depths(stats);
  if (!options.speculation) return;
  options.speculation.reset();
  Made plain(made.size());
  const GenerateStats plain_stats =
      generate(model, prompts, options, [&](int sample, const NewToken& token) { plain[sample].push_back(token); });
  print_speculation(stats, plain_stats);
  if (options.sampling.temperature > 0) return;
  const std::size_t different = differing(made, plain);
  check(different == 0, "--speculate: {} of {} continuations are not those of plain decoding", different, made.size());
  fmt::print(stderr, "all {} continuation(s) are those of plain decoding, token for token\n", made.size());
}

// Before any file is read.
GenerateOptions generation_options(const Options& options, const Sampling& sampling) {
  GenerateOptions generation;
  generation.tokens = options.tokens;
  generation.samples = options.samples;
  generation.side_by_side = options.batch_size;
  generation.sampling = sampling;
  generation.decode.depth = options.depth;
  generation.decode.slide = options.overflow == "slide";
  generation.decode.seed = sampling.seed;
  generation.decode.kv = kv_strategy(options.kv);
  if (options.exit) generation.decode.exit = exit_rule(*options.exit);
  if (options.speculate) generation.speculation = speculation(*options.speculate);
  generation.decode.count_steps = options.print_depths || options.stats;
  generation.compare = options.stats && options.exit;
  check_generation(generation);
  return generation;
}

int run(int argc, char** argv) {
  Options options;
  Sampling sampling;
  DeviceConfig device_flags;
  WeightsConfig weights;
  Flags flags("generate", "Text from a checkpoint. The prompt itself is not printed.");
  flags.add(options);
  flags.add(sampling);
  flags.add(device_flags);
  flags.add(weights);
  if (!flags.parse(argc, argv)) return 0;
  check_flags(options);
  GenerateOptions generation = generation_options(options, sampling);

  const std::unique_ptr<Device> device = device_flags.open_and_tell();
  const std::unique_ptr<LanguageModel> model =
      load_model(*options.checkpoint, *device, device_flags.type(), weights.packed(device_flags));
  const Prompts prompts = prompts_of(options, model->config());
  if (options.score_ids) {
    check(prompts.size() == 1, "--score-ids: scores after one prompt, not {}", prompts.size());
    const std::vector<int> ids = parse_ids("--score-ids", *options.score_ids);
    for (const double logprob : score(*model, prompts[0], ids, generation.decode)) fmt::print("{}\n", logprob);
    return 0;
  }

  const bool numbers = options.print_ids || options.print_logprobs || options.print_depths;
  if (options.stop_at_end && (!numbers || flags.given("stop-at-end")))
    generation.stop_id = make_tokenizer(model->config().tokenizer)->end_of_document();
  Made made(prompts.size() * generation.samples);
  const GenerateStats stats = numbers ? print_numbers(*model, prompts, generation, options, made)
                                      : print_text(*model, prompts, generation, made);
  if (options.stats) print_all_stats(*model, prompts, generation, stats, made);
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("generate", [&] { return grt::run(argc, argv); });
}
