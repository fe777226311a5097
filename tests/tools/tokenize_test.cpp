// The tokenize binary: what it writes, what it refuses, and how much stack and memory it takes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "core/files.h"
#include "tests/support.h"
#include "train/data.h"
#include "train/tokenizer.h"

using namespace grt;
using test::contains;
using test::Outcome;
using test::TempDir;

TEST_SUITE("tools") {
  namespace {

  using Ids = std::vector<int>;

  Outcome tokenize(std::vector<std::string> arguments, const std::string& directory = "") {
    return test::run_tool("tokenize", arguments, {}, directory);
  }

  std::string put(const TempDir& dir, const std::string& name, std::string_view content) {
    write_file(dir / name, content);
    return dir / name;
  }

  Ids ids_in(const std::filesystem::path& file, std::size_t skip = 0) {
    const std::string bytes = read_file(file);
    std::vector<std::uint16_t> ids((bytes.size() - skip) / 2);
    std::memcpy(ids.data(), bytes.data() + skip, ids.size() * 2);
    return {ids.begin(), ids.end()};
  }

  Ids stream_in(const std::string& files, int vocab_size) {
    const TokenData data = TokenData::open(files, vocab_size);
    std::vector<std::int32_t> ids(data.size());
    data.read(0, ids);
    return {ids.begin(), ids.end()};
  }

  // The ids of documents with the end of each behind it.
  Ids ids_of(const std::string& tokenizer, const std::vector<std::string>& documents) {
    const auto t = make_tokenizer(tokenizer);
    Ids ids;
    for (const std::string& document : documents) {
      t->encode(document, ids);
      ids.push_back(t->end_of_document());
    }
    return ids;
  }

  std::vector<std::string> names_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  void write_gzip(const std::string& file, const std::string& text) {
    gzFile out = gzopen(file.c_str(), "wb");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
  }

  struct Usage {
    int code;
    long peak_kib;
  };

  // Runs tokenize with 256 KiB of stack. Its peak memory is read while it runs: what the kernel reports afterwards
  // counts this process too, which it is a copy of until it becomes tokenize.
  Usage with_little_stack(std::vector<std::string> words) {
    words.insert(words.begin(), std::string(GRT_BIN_DIR) + "/tokenize");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      const rlimit stack{256 << 10, 256 << 10};
      setrlimit(RLIMIT_STACK, &stack);
      setenv("ASAN_OPTIONS", "quarantine_size_mb=1", 1);  // freed memory counts as free
      dup2(open("/dev/null", O_WRONLY), 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    Usage usage{0, 0};
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      std::ifstream file(fmt::format("/proc/{}/status", child));
      for (std::string line; std::getline(file, line);)
        if (line.starts_with("VmHWM:")) usage.peak_kib = std::stol(line.substr(6));
      usleep(500);
    }
    usage.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return usage;
  }

  // Lets no file of a child grow beyond 64 KiB: a full disk.
  struct SmallDisk {
    rlimit before{};
    SmallDisk() {
      getrlimit(RLIMIT_FSIZE, &before);
      const rlimit small{64 << 10, before.rlim_max};
      setrlimit(RLIMIT_FSIZE, &small);
    }
    ~SmallDisk() { setrlimit(RLIMIT_FSIZE, &before); }
  };

  // What `tokenize --decode file > /dev/full` says.
  std::string error_of_decoding_to_full(const std::string& file) {
    const TempDir dir;
    const std::string errors = put(dir, "err", "");
    const pid_t child = fork();
    if (child == 0) {
      dup2(open("/dev/full", O_WRONLY), 1);
      dup2(open(errors.c_str(), O_WRONLY), 2);
      execl((std::string(GRT_BIN_DIR) + "/tokenize").c_str(), "tokenize", "--decode", file.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);
    return read_file(errors);
  }

  // English-like text with a few other scripts.
  std::string prose(std::size_t bytes) {
    const char* words[] = {"the ",
                           "tokens ",
                           "of ",
                           "a ",
                           "don't ",
                           "recurrence",
                           "s, ",
                           "1234 ",
                           "\xC3\xA9t\xC3\xA9 ",
                           "\xE4\xB8\xAD\xE5\x9B\xBD",
                           "\n\n",
                           "gate. ",
                           "Xylophone-",
                           "  "};
    std::mt19937 random(5);
    std::string text;
    text.reserve(bytes + 16);
    while (text.size() < bytes) text += words[random() % std::size(words)];
    return text;
  }

  }  // namespace

  TEST_CASE("tokenize writes a document's ids and its end, and --decode gives its bytes back") {
    const TempDir dir;
    std::string all_bytes(70000, '\0');
    for (std::size_t i = 0; i < all_bytes.size(); ++i) all_bytes[i] = static_cast<char>(i * i / 7);
    for (const std::string& text : {std::string(), std::string("a\r\nb\r\n"), std::string("n\0l", 3), all_bytes,
                                    std::string("caf\xC3\xA9 \xFF <|endoftext|>")}) {
      for (const std::string name : {"bytes", "gpt2"}) {
        const std::string input = put(dir, "in.txt", text), output = dir / "out.bin";
        const Outcome made = tokenize({"--tokenizer", name, "--input", input, "--output", output});
        CHECK(made.err == "");
        REQUIRE(made.code == 0);
        CHECK(ids_in(output) == ids_of(name, {text}));
        const Outcome decoded = tokenize({"--tokenizer", name, "--decode", output});
        CHECK(decoded.code == 0);
        CHECK(decoded.out == text);
      }
    }
    CHECK(names_in(dir.path) == std::vector<std::string>{"in.txt", "out.bin"});
  }

  TEST_CASE("tokenize reads files in the order given, .jsonl line by line, gzipped or not") {
    const TempDir dir;
    const std::string first = put(dir, "z.txt", "one"), lines = dir / "m.jsonl.gz", last = dir / "a.txt.gz";
    write_gzip(lines, "{\"text\": \"two\"}\n{\"text\": \"three \\u00e9\"}\n");
    write_gzip(last, "four");
    const Outcome made = tokenize({"--tokenizer", "gpt2", "--input", first, lines, last, "--output", dir / "out.bin"});
    REQUIRE(made.code == 0);
    const Ids expected = ids_of("gpt2", {"one", "two", "three \xC3\xA9", "four"});
    CHECK(ids_in(dir / "out.bin") == expected);
    CHECK(contains(made.out, fmt::format("documents 4, bytes 18, tokens {}", expected.size())));
    CHECK(contains(made.out, fmt::format("out.bin: {} tokens", expected.size())));
    CHECK(tokenize({"--tokenizer", "gpt2", "--decode", dir / "out.bin"}).out ==
          "onetwothree \xC3\xA9"
          "four");
  }

  TEST_CASE("validation takes the last part of the tokens") {
    const TempDir dir;
    const std::string text = prose(50000), input = put(dir, "in.txt", text);
    for (const std::string fraction : {"", "0.25", "0.999", "1e-9"}) {
      std::vector<std::string> words{"--input", input, "--output", dir / "train.bin", "--val-output", dir / "val.bin"};
      if (!fraction.empty()) words.insert(words.end(), {"--val-fraction", fraction});
      REQUIRE(tokenize(words).code == 0);
      Ids train = ids_in(dir / "train.bin");
      const Ids val = ids_in(dir / "val.bin");
      const double kept = 1 - (fraction.empty() ? 0.1 : std::stod(fraction));
      CHECK(train.size() == static_cast<std::size_t>(kept * static_cast<double>(text.size() + 1)));
      train.insert(train.end(), val.begin(), val.end());
      CHECK(train == ids_of("bytes", {text}));
    }
  }

  TEST_CASE("shards have llm.c's header, are numbered, and make the same stream") {
    const TempDir dir;
    const std::string text = prose(30000), input = put(dir, "in.txt", text);
    const std::string output = dir / "corpus.train.bin", val = dir / "corpus.val";
    REQUIRE(tokenize({"--tokenizer", "gpt2", "--input", input, "--output", output, "--val-output", val,
                      "--val-fraction", "0.3", "--shard-tokens", "3000"})
                .code == 0);
    const Ids expected = ids_of("gpt2", {text});
    const auto kept = static_cast<std::size_t>(0.7 * static_cast<double>(expected.size()));
    Ids ids = stream_in(dir / "corpus.train_*.bin", 50257);
    CHECK(ids.size() == kept);
    const Ids rest = stream_in(dir / "corpus.val_*.bin", 50257);
    ids.insert(ids.end(), rest.begin(), rest.end());
    CHECK(ids == expected);

    const std::string shard = read_file(dir / "corpus.train_000000.bin");
    std::int32_t header[256];
    REQUIRE(shard.size() == sizeof header + 2 * 3000);
    std::memcpy(header, shard.data(), sizeof header);
    CHECK(header[0] == 20240520);
    CHECK(header[1] == 1);
    CHECK(header[2] == 3000);
    CHECK(std::accumulate(header + 3, header + 256, 0) == 0);
    const auto names = names_in(dir.path);
    CHECK(std::count_if(names.begin(), names.end(), [](auto& n) { return n.starts_with("corpus.train_"); }) ==
          static_cast<std::ptrdiff_t>((kept + 2999) / 3000));

    const Outcome one = tokenize({"--tokenizer", "gpt2", "--decode", dir / "corpus.train_000001.bin"});
    const Ids second(expected.begin() + 3000, expected.begin() + 6000);
    CHECK(one.out == make_tokenizer("gpt2")->decode(second));

    // Fewer, larger shards would leave old ones behind them in the glob.
    const Outcome stale =
        tokenize({"--tokenizer", "gpt2", "--input", input, "--output", output, "--shard-tokens", "8000"});
    CHECK(stale.code != 0);
    CHECK(contains(stale.err, "a shard of an earlier run"));
    CHECK(read_file(dir / "corpus.train_000000.bin") == shard);
  }

  TEST_CASE("--special decides what <|endoftext|> in a text is") {
    const TempDir dir;
    const std::string input = put(dir, "in.txt", "hello <|endoftext|>x"), output = dir / "out.bin";
    const auto run = [&](const char* special) {
      return tokenize({"--tokenizer", "gpt2", "--input", input, "--output", output, "--special", special});
    };
    REQUIRE(run("ordinary").code == 0);
    CHECK(ids_in(output) == Ids{31373, 1279, 91, 437, 1659, 5239, 91, 29, 87, 50256});
    REQUIRE(run("allow").code == 0);
    CHECK(ids_in(output) == Ids{31373, 220, 50256, 87, 50256});
    std::filesystem::remove(output);
    const Outcome refused = run("error");
    CHECK(refused.code == 1);
    CHECK(contains(refused.err, "in.txt: holds the special text <|endoftext|> at byte 6"));
    CHECK(names_in(dir.path) == std::vector<std::string>{"in.txt"});
  }

  TEST_CASE("if one output cannot be written none is left, and what was there stays") {
    const TempDir dir;
    const std::string input = put(dir, "in.txt", prose(3000000)), output = dir / "train.bin";
    const std::vector<std::string> missing{"--input", input, "--output", output, "--val-output", dir / "no/val.bin"};
    std::vector<std::string> full{"--input", input, "--output", output, "--val-output", "/dev/full"};
    std::vector<std::string> sharded = missing;
    sharded.insert(sharded.end(), {"--shard-tokens", "1000"});
    for (const auto& words : {missing, full, sharded}) {
      const Outcome failed = tokenize(words);
      CHECK(failed.code == 1);
      CHECK((contains(failed.err, "no/val") || contains(failed.err, "/dev/full")));
      CHECK(names_in(dir.path) == std::vector<std::string>{"in.txt"});
    }
    write_file(output, "old");
    CHECK(tokenize(missing).code == 1);
    CHECK(read_file(output) == "old");
    for (const std::string& content : {prose(3000000), std::string("short")}) {
      put(dir, "in.txt", content);
      const Outcome failed = tokenize(full);
      CHECK(failed.code == 1);
      CHECK(failed.err == "tokenize: /dev/full: cannot write: No space left on device\n");
      CHECK(read_file(output) == "old");
    }
    CHECK(tokenize({"--input", input, dir / "late.txt", "--output", output}).code == 1);
    CHECK(read_file(output) == "old");
    CHECK(names_in(dir.path) == std::vector<std::string>{"in.txt", "train.bin"});
  }

  TEST_CASE("shards of which one cannot be written leave the earlier ones as they were") {
    const TempDir dir;
    const std::string input = put(dir, "in.txt", "some text");
    put(dir, "a_000000.bin", "old");
    std::filesystem::create_directory(dir / "a_000001.bin");
    const Outcome failed = tokenize({"--input", input, "--output", dir / "a.bin", "--shard-tokens", "5"});
    CHECK(failed.code == 1);
    CHECK(contains(failed.err, "a_000001.bin: a file is expected, this is a directory"));
    CHECK(read_file(dir / "a_000000.bin") == "old");
    CHECK(names_in(dir.path) == std::vector<std::string>{"a_000000.bin", "a_000001.bin", "in.txt"});
  }

  TEST_CASE("an interrupted run leaves nothing behind") {
    const TempDir dir;
    const std::string in = put(dir, "in.txt", std::string(96 << 20, 'a'));
    test::Running running("tokenize", {"--input", in, "--output", dir / "out.bin"});
    for (int wait = 0; wait < 6000 && names_in(dir.path).size() == 1; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    running.signal(SIGINT);
    const Outcome outcome = running.wait();
    CHECK(outcome.code == 128 + SIGINT);
    CHECK(outcome.err == "tokenize: interrupted by SIGINT; nothing is written\n");
    CHECK(names_in(dir.path) == std::vector<std::string>{"in.txt"});
  }

  TEST_CASE("no output replaces an input, whatever their spelling and the number of the shard") {
    const TempDir dir;
    const std::string shard = put(dir, "a_000000.bin", "a text"), later = put(dir, "b_0000012.bin", "another");
    std::filesystem::create_directory(dir / "sub");
    std::filesystem::create_symlink(shard, dir / "link");
    const struct {
      std::string input;
      std::vector<std::string> words;
    } rows[] = {
        {shard, {"--output", dir / "a.bin", "--shard-tokens", "10"}},
        {shard, {"--output", dir / "sub/../a", "--shard-tokens", "10"}},
        {dir / "link", {"--output", dir / "a.bin", "--shard-tokens", "10"}},
        {later, {"--output", dir / "b.bin", "--shard-tokens", "10"}},
        {shard, {"--output", dir / "o.bin", "--val-output", dir / "a.bin", "--shard-tokens", "10"}},
        {shard, {"--output", dir / "o.bin", "--val-output", dir / "link"}},
    };
    for (const auto& row : rows) {
      std::vector<std::string> words{"--input", row.input};
      words.insert(words.end(), row.words.begin(), row.words.end());
      const Outcome outcome = tokenize(words);
      CAPTURE(outcome.err);
      CHECK(outcome.code == 1);
      CHECK(outcome.err == "tokenize: " + row.input + ": is both input and output\n");
    }
    CHECK(read_file(shard) == "a text");
    CHECK(names_in(dir.path) == std::vector<std::string>{"a_000000.bin", "b_0000012.bin", "link", "sub"});
    // Similar names are not those of shards.
    put(dir, "a_1.bin", "a text");
    CHECK(tokenize({"--input", dir / "a_1.bin", "--output", dir / "a.bin", "--shard-tokens", "10"}).code == 0);
  }

  TEST_CASE("a full disk is named with the system's reason, for the temporary file and standard output too") {
    const TempDir dir;
    const std::string input = put(dir, "in.txt", prose(300000)), output = dir / "t.bin";
    {
      const SmallDisk small;
      const Outcome failed = tokenize({"--input", input, "--output", output, "--val-output", dir / "v.bin"});
      CHECK(failed.code == 1);
      CHECK(failed.err == "tokenize: " + output + ": cannot write its temporary file: File too large\n");
    }
    CHECK(names_in(dir.path) == std::vector<std::string>{"in.txt"});
    REQUIRE(tokenize({"--input", input, "--output", output}).code == 0);
    CHECK(error_of_decoding_to_full(output) ==
          "tokenize: standard output: cannot be written: No space left on device\n");
  }

  TEST_CASE("a wrong flag, value, file or combination is one line that names it, and nothing is written") {
    const TempDir dir;
    const std::string in = put(dir, "in.txt", "some text"), out = dir / "out.bin",
                      tokens = put(dir, "ids.bin", "\x05\x01");
    put(dir, "odd.bin", "abc");
    put(dir, "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
    put(dir, "fieldless.jsonl", "{\"txt\": \"a\"}\n");
    put(dir, "empty.jsonl", "\n");
    put(dir, "plain.gz", "not packed");
    write_gzip(dir / "cut.gz", "text");
    std::filesystem::resize_file(dir / "cut.gz", std::filesystem::file_size(dir / "cut.gz") - 3);
    const std::int32_t header[256] = {20240520, 1, 7};
    put(dir, "shard.bin", std::string_view(reinterpret_cast<const char*>(header), sizeof header));
    const std::int32_t late[256] = {20240520, 7}, wide[256] = {20240801, 7};
    put(dir, "late.bin", std::string_view(reinterpret_cast<const char*>(late), sizeof late));
    put(dir, "wide.bin", std::string_view(reinterpret_cast<const char*>(wide), sizeof wide));
    const auto before = names_in(dir.path);

    const struct {
      std::vector<std::string> words;
      const char* error;
    } cases[] = {
        {{}, "--input: expected the files to read"},
        {{"--input", in}, "--output: expected the token file to write"},
        {{"--output", out}, "--input: expected"},
        {{"--input", dir / "no.txt", "--output", out}, "no.txt: no such file"},
        {{"--input", dir.path, "--output", out}, "it is a directory"},
        {{"--input", dir / "bad.jsonl", "--output", out}, "bad.jsonl:2: "},
        {{"--input", dir / "fieldless.jsonl", "--output", out}, "fieldless.jsonl:1: the object has no field \"text\""},
        {{"--input", dir / "empty.jsonl", "--output", out}, "empty.jsonl: there is no document"},
        {{"--input", dir / "plain.gz", "--output", out}, "plain.gz: named .gz, but it is no gzip file"},
        {{"--input", dir / "cut.gz", "--output", out}, "cut.gz: the gzip data ends early"},
        {{"--input", in, "--output", in + "/out.bin"}, "in.txt/out.bin: "},
        {{"--input", in, "--output", dir / "no/out.bin"}, "no/out.bin: "},
        {{"--input", in, "--output", dir.path}, dir.path.c_str()},
        {{"--input", in, "--output", in}, "in.txt: is both input and output"},
        {{"--input", in, "--output", out, "--tokenizer", "gpt3"}, "\"gpt3\": expected bytes or gpt2"},
        {{"--input", in, "--output", out, "--special", "maybe"}, "--special: expected ordinary, allow or error"},
        {{"--input", in, "--output", out, "--val-fraction", "0.5"}, "--val-fraction: needs --val-output"},
        {{"--input", in, "--output", out, "--val-output", out}, "cannot go to the same file"},
        {{"--input", in, "--output", out, "--val-output", out + "2", "--val-fraction", "0"},
         "--val-fraction: expected"},
        {{"--input", in, "--output", out, "--val-output", out + "2", "--val-fraction", "1"},
         "--val-fraction: expected"},
        {{"--input", in, "--output", out, "--val-output", out + "2", "--val-fraction", "-.5"},
         "--val-fraction: expected"},
        {{"--input", in, "--output", out, "--val-output", out + "2", "--val-fraction", "nan"}, "--val-fraction"},
        {{"--input", in, "--output", out, "--val-output", out + "2", "--val-fraction", "0.99"}, "would have none"},
        {{"--input", in, "--output", out, "--shard-tokens", "0"}, "--shard-tokens: expected 1 to 2147483647, not 0"},
        {{"--input", in, "--output", out, "--shard-tokens", "2147483648"}, "--shard-tokens: expected 1 to"},
        {{"--input", in, "--output", out, "--shard-token", "5"}, "--shard-token"},
        {{"--decode", tokens, "--output", out}, "--decode: cannot be combined with --output"},
        {{"--decode", dir / "no.bin"}, "no.bin: "},
        {{"--decode", tokens}, "ids.bin: id 261 at offset 0 (in tokens) is none of the 257 of --tokenizer bytes"},
        {{"--decode", dir / "odd.bin"}, "odd.bin: has 3 bytes, but uint16 ids take an even number"},
        {{"--decode", dir / "shard.bin"}, "shard.bin: the header counts 7 tokens, which makes 1038 bytes"},
        {{"--decode", dir / "late.bin"}, "late.bin: shard version is 7, expected 1"},
        {{"--decode", dir / "wide.bin"}, "wide.bin: begins with a shard header of another kind"},
    };
    for (const auto& c : cases) {
      const Outcome outcome = tokenize(c.words);
      CAPTURE(c.error);
      CAPTURE(outcome.err);
      CHECK(outcome.code == 1);
      CHECK(outcome.out == "");
      CHECK(contains(outcome.err, c.error));
      CHECK(outcome.err.starts_with("tokenize: "));
      CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
      CHECK(names_in(dir.path) == before);
    }
  }

  TEST_CASE("tokenize finds its vocabulary from any directory, and paths are relative to that one") {
    const TempDir dir;
    put(dir, "in.txt", "hello world");
    REQUIRE(tokenize({"--tokenizer", "gpt2", "--input", "in.txt", "--output", "out.bin"}, dir.path).code == 0);
    CHECK(ids_in(dir / "out.bin") == Ids{31373, 995, 50256});
    const std::string relative = std::filesystem::relative(dir / "in.txt", "/");
    REQUIRE(tokenize({"--tokenizer", "gpt2", "--input", relative, "--output", dir / "again.bin"}, "/").code == 0);
    CHECK(ids_in(dir / "again.bin") == Ids{31373, 995, 50256});
  }

  TEST_CASE("memory does not grow with the file, with 256 KiB of stack") {
    const TempDir dir;
    const std::string small = put(dir, "small.txt", prose(8 << 20)), large = put(dir, "large.txt", prose(64 << 20));
    const auto run = [&](const std::string& input) {
      const Usage usage = with_little_stack(
          {"--tokenizer", "gpt2", "--input", input, "--output", dir / "train.bin", "--val-output", dir / "val.bin"});
      CHECK(usage.code == 0);
      CHECK(usage.peak_kib > 0);
      return usage.peak_kib;
    };
    const long of_small = run(small), of_large = run(large);
    CHECK(of_large < of_small + 4096);
  }

  TEST_CASE("a run of millions of equal characters needs little stack, and memory in proportion") {
    const TempDir dir;
    for (const std::string unit : {"^", "a", " ", "\xF0\x9F\x98\x80"}) {
      const std::size_t bytes = 4 << 20;
      std::string text;
      while (text.size() < bytes) text += unit;
      const std::string input = put(dir, "run.txt", text);
      const Usage usage = with_little_stack({"--tokenizer", "gpt2", "--input", input, "--output", dir / "run.bin"});
      CAPTURE(unit);
      CHECK(usage.code == 0);
      CHECK(usage.peak_kib < 100 * 1024 + 40 * static_cast<long>(bytes >> 10));
      CHECK(make_tokenizer("gpt2")->decode(ids_in(dir / "run.bin")) == text + "<|endoftext|>");
    }
  }
}
