// Token files told apart and checked, and the windows that evaluation and training cut from them.
#include "train/data.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "core/json.h"
#include "tests/support.h"

using namespace grt;
using test::contains;
using test::error_of;

TEST_SUITE("train") {
  namespace {

  using Ids = std::vector<std::uint16_t>;

  std::string bytes_of(const Ids& ids) { return {reinterpret_cast<const char*>(ids.data()), ids.size() * 2}; }

  std::string shard(const Ids& ids, std::int32_t count, std::int32_t magic = kShardMagic, std::int32_t version = 1) {
    std::array<std::int32_t, kShardHeaderWords> header{magic, version, count};
    return std::string(reinterpret_cast<const char*>(header.data()), sizeof header) + bytes_of(ids);
  }
  std::string shard(const Ids& ids) { return shard(ids, static_cast<std::int32_t>(ids.size())); }

  Ids counting(std::size_t n, std::uint16_t first = 0) {
    Ids ids(n);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }

  std::vector<std::int32_t> all(const TokenData& data) {
    std::vector<std::int32_t> ids(data.size());
    data.read(0, ids);
    return ids;
  }

  std::vector<std::int32_t> widened(const Ids& ids) { return {ids.begin(), ids.end()}; }

  // What TokenData::open says about a file with these bytes.
  std::string error_for(const std::string& content, std::int64_t vocab_size = 50257) {
    const test::TempDir dir;
    write_file(dir / "x.bin", content);
    const std::string error = error_of([&] { TokenData::open(dir / "x.bin", vocab_size); });
    CHECK(contains(error, dir / "x.bin"));
    return error;
  }

  TrainingOrder order_of(DataOrder kind, std::int64_t T, std::int64_t batch_size, std::int64_t micro_batches = 1) {
    return {.kind = kind, .context_length = T, .batch_size = batch_size, .micro_batches = micro_batches};
  }

  }  // namespace

  TEST_CASE("a headerless file and a shard with a header hold the same ids") {
    const test::TempDir dir;
    const Ids ids = {5, 0, 50256, 1, 300};
    write_file(dir / "a.bin", bytes_of(ids));
    write_file(dir / "b.bin", shard(ids));
    CHECK(all(TokenData::open(dir / "a.bin", 50257)) == widened(ids));
    CHECK(all(TokenData::open(dir / "b.bin", 50257)) == widened(ids));
  }

  TEST_CASE("a file longer than a header stays headerless without the magic, zeros or not") {
    const test::TempDir dir;
    write_file(dir / "zeros.bin", bytes_of(Ids(512)));
    write_file(dir / "mixed.bin", bytes_of(counting(2000)));
    CHECK(TokenData::open(dir / "zeros.bin", 1).size() == 512);
    CHECK(all(TokenData::open(dir / "mixed.bin", 2000)) == widened(counting(2000)));
  }

  TEST_CASE("a directory and a glob read their shards as one stream in name order") {
    const test::TempDir dir;
    write_file(dir / "s_02.bin", shard(counting(3, 7)));
    write_file(dir / "s_00.bin", shard(counting(4)));
    write_file(dir / "s_01.bin", bytes_of(counting(3, 4)));
    write_file(dir / "s_03.bin", shard({}));
    write_file(dir / "notes.txt", "not tokens");
    write_file(dir / ".s_04.bin", "hidden");
    std::filesystem::create_directory(dir / "more.bin");
    CHECK(all(TokenData::open(dir.path, 10)) == widened(counting(10)));
    CHECK(all(TokenData::open(dir / "s_0*.bin", 10)) == widened(counting(10)));
    CHECK(all(TokenData::open(dir / "s_0[12].bin", 10)) == widened(counting(6, 4)));
  }

  TEST_CASE("a read may begin and end anywhere in the shards") {
    const test::TempDir dir;
    for (int i = 0; i < 5; ++i) {
      write_file(dir / ("s" + std::to_string(i) + ".bin"), shard(counting(2, static_cast<std::uint16_t>(2 * i))));
    }
    const TokenData data = TokenData::open(dir.path, 10);
    for (int begin = 0; begin <= 10; ++begin) {
      for (int count = 0; begin + count <= 10; ++count) {
        std::vector<std::int32_t> ids(count, -1);
        data.read(begin, ids);
        CHECK(ids == widened(counting(count, static_cast<std::uint16_t>(begin))));
      }
    }
  }

  TEST_CASE("a read outside the stream names the data and its size") {
    const TokenData data = TokenData::of(counting(10), "ten", 10);
    std::vector<std::int32_t> three(3);
    CHECK(error_of([&] { data.read(8, three); }) == "ten: tokens [8, 11) are not within [0, 10)");
    CHECK(contains(error_of([&] { data.read(-1, three); }), "[-1, 2)"));
  }

  TEST_CASE("the fingerprint is that of the ids, in one file or several") {
    const test::TempDir dir;
    const Ids ids = counting(3000);
    for (const std::string one : {"a", "b"}) make_directories(dir / one);
    write_file(dir / "a/whole.bin", bytes_of(ids));
    write_file(dir / "b/1.bin", shard(Ids(ids.begin(), ids.begin() + 1234)));
    write_file(dir / "b/2.bin", shard(Ids(ids.begin() + 1234, ids.end())));
    const std::int64_t print = TokenData::open(dir / "a", 50257).fingerprint();
    CHECK(TokenData::open(dir / "b", 50257).fingerprint() == print);
    for (const std::size_t at : {0, 1500, 2999}) {
      Ids other = ids;
      other[at] ^= 1;
      CHECK(TokenData::of(other, "other", 50257).fingerprint() != print);
    }
    CHECK(TokenData::of(counting(3001), "longer", 50257).fingerprint() != print);
    CHECK(TokenData::of(counting(2), "two", 10).fingerprint() != TokenData::of(counting(3), "three", 10).fingerprint());
  }

  TEST_CASE("data that moves keeps its ids") {
    TokenData from = TokenData::of(counting(10), "ten", 10);
    const TokenData to = std::move(from);
    CHECK(all(to) == widened(counting(10)));
    CHECK(to.name() == "ten");
  }

  TEST_CASE("a glob that is also the name of a file means that file") {
    const test::TempDir dir;
    write_file(dir / "s[1].bin", bytes_of({1, 1}));
    write_file(dir / "s1.bin", bytes_of({2, 2}));
    CHECK(all(TokenData::open(dir / "s[1].bin", 10)) == std::vector<std::int32_t>{1, 1});
  }

  TEST_CASE("an id that is not below the vocabulary size is named with its file and offset") {
    Ids ids(2000);
    ids[1234] = 50304;
    for (const std::string& content : {bytes_of(ids), shard(ids)}) {
      const std::string error = error_for(content);
      CHECK(contains(error, "id 50304 at offset 1234"));
      CHECK(contains(error, "vocabulary size 50257"));
    }
    CHECK(contains(error_for(bytes_of({1, 2, 3}), 3), "id 3 at offset 2"));
    CHECK(contains(error_of([] { TokenData::of({1, 9}, "--text", 9); }), "--text: id 9 at offset 1"));
  }

  TEST_CASE("the offset of a wrong id counts from the start of its own shard, past any block") {
    const test::TempDir dir;
    Ids ids(200'000);
    ids[150'000] = 65535;
    write_file(dir / "s0.bin", shard(Ids(1000)));
    write_file(dir / "s1.bin", shard(ids));
    const std::string error = error_of([&] { TokenData::open(dir.path, 65535); });
    CHECK(contains(error, dir / "s1.bin"));
    CHECK(contains(error, "id 65535 at offset 150000"));
    CHECK(TokenData::open(dir.path, 65536).size() == 201'000);
  }

  TEST_CASE("a shard whose header and size disagree is refused with the count and both sizes") {
    const std::string whole = shard(counting(100));
    const std::string shorter = error_for(whole.substr(0, whole.size() - 1));
    CHECK(contains(shorter, "counts 100 tokens"));
    CHECK(contains(shorter, "1224 bytes"));
    CHECK(contains(shorter, "has 1223"));
    CHECK(contains(error_for(whole + 'x'), "has 1225"));
    CHECK(contains(error_for(shard(counting(100), 101)), "counts 101 tokens"));
    CHECK(contains(error_for(shard(counting(100), -1)), "counts -1 tokens"));
    CHECK(contains(error_for(whole.substr(0, 600)), "header takes 1024 bytes, the file has 600"));
  }

  TEST_CASE("a header of another kind is never read as tokens") {
    const std::string magic = error_for(shard(counting(100), 100, 12345), 65536);
    CHECK(contains(magic, "magic is 12345, expected 20240520"));
    const std::string wide = error_for(shard(counting(100), 50, 20240801, 7), 65536);  // llm.c's uint32 ids
    CHECK(contains(wide, "magic is 20240801, expected 20240520"));
    CHECK(contains(error_for(shard(counting(100), 100, kShardMagic, 2)), "version is 2, expected 1"));
  }

  TEST_CASE("an odd number of bytes is no headerless file") {
    const std::string error = error_for(bytes_of(counting(100)).substr(1));
    CHECK(contains(error, "has 199 bytes"));
    CHECK(contains(error, "looks like a headerless file"));
    CHECK(contains(error_for("x"), "has 1 bytes"));
  }

  TEST_CASE("empty files and streams of one token are refused") {
    CHECK(contains(error_for(""), "the file is empty"));
    CHECK(contains(error_for(bytes_of({7})), "1 token(s)"));
    CHECK(contains(error_for(shard({})), "0 token(s)"));
    CHECK(contains(error_of([] { TokenData::of({}, "--text", 10); }), "--text: 0 token(s)"));
  }

  TEST_CASE("a token file that others shorten or overwrite is an error where it is read, and one removed is not") {
    const test::TempDir dir;
    const std::string shortened = dir / "a.bin", overwritten = dir / "b.bin", removed = dir / "c.bin";
    for (const std::string& path : {shortened, overwritten}) write_file(path, shard(counting(10'000)));
    write_file(removed, bytes_of(counting(10'000)));
    const TokenData data = TokenData::open(dir.path, 10'000);
    std::filesystem::resize_file(shortened, 1024 + 2 * 2000);
    std::fstream(overwritten, std::ios::in | std::ios::out).seekp(1024 + 2 * 7000).write("\x11\x27", 2);  // 10001
    std::filesystem::remove(removed);

    std::vector<std::int32_t> ids(100);
    data.read(1900, ids);
    CHECK(ids == widened(counting(100, 1900)));
    CHECK(error_of([&] { data.read(1950, ids); }) ==
          shortened + ": ends at byte 5024 or before, but had 21024 bytes when it was opened");
    CHECK(contains(error_of([&] { data.read(8000, ids); }), shortened + ": ends at byte 17024 or before"));
    CHECK(error_of([&] { data.read(16'950, ids); }) ==
          overwritten + ": id 10001 at offset 7000 (in tokens) is not below the vocabulary size 10000");
    data.read(25'000, ids);
    CHECK(ids == widened(counting(100, 5000)));
  }

  TEST_CASE("what is not there, or not a file, is named") {
    const test::TempDir dir;
    const auto error_at = [&](const std::string& name) {
      const std::string error = error_of([&] { TokenData::open(dir / name, 10); });
      CHECK(contains(error, dir.path));
      return error;
    };
    error_at("missing.bin");
    CHECK(contains(error_at("none*.bin"), "no file matches"));
    std::filesystem::create_directory(dir / "folder");
    CHECK(contains(error_at("folder"), "no *.bin"));
    error_at("fold*");
    CHECK(contains(error_of([] { TokenData::open("/dev/null", 10); }), "/dev/null"));
  }

  TEST_CASE("a directory of training and validation shards is refused, a glob picks the training shards") {
    const test::TempDir dir;
    write_file(dir / "web_train_1.bin", shard(counting(5)));
    write_file(dir / "web_train_2.bin", shard(counting(5, 5)));
    CHECK(TokenData::open(dir.path, 10).size() == 10);
    write_file(dir / "web_val_0.bin", shard(counting(5)));
    const std::string error = error_of([&] { TokenData::open(dir.path, 10); });
    CHECK(contains(error, dir / "web_train_1.bin"));
    CHECK(contains(error, dir / "web_val_0.bin"));
    CHECK(TokenData::open(dir / "*train*.bin", 10).size() == 10);
  }

  TEST_CASE("evaluation windows and sequential training starts are those of the reference") {
    const Json modules = read_json(test::fixture("modules.json"));
    for (const Json& c : modules.at("windows").at("cases")) {
      const std::int64_t tokens = c.at("tokens"), T = c.at("context_length"), batch_size = c.at("batch_size");
      std::vector<Window> expected;
      for (const Json& w : c.at("evaluation_windows")) expected.push_back({w.at(0), w.at(1)});
      CHECK(evaluation_windows(tokens, T) == expected);

      // The listed micro-batches follow one another, however steps group them.
      for (const std::int64_t per_step : {1, 2, 3}) {
        const TrainingOrder order = order_of(DataOrder::sequential, T, batch_size, per_step);
        std::int64_t i = 0;
        for (const Json& starts : c.at("training_starts")) {
          for (std::int64_t row = 0; row < batch_size; ++row) {
            CHECK(training_start(order, tokens, i / per_step, i % per_step, row) == starts.at(row).get<std::int64_t>());
          }
          ++i;
        }
      }
    }
  }

  TEST_CASE("evaluation predicts every token but the first exactly once") {
    for (std::int64_t tokens = 2; tokens < 40; ++tokens) {
      for (std::int64_t T = 1; T < 12; ++T) {
        std::int64_t next = 1;
        for (const Window& w : evaluation_windows(tokens, T)) {
          CHECK(w.begin + 1 == next);
          CHECK(w.targets >= 1);
          next += w.targets;
        }
        CHECK(next == tokens);
      }
    }
  }

  TEST_CASE("evaluation batches keep the order of the windows and never mix lengths") {
    const std::vector<Window> windows = evaluation_windows(77, 12);  // 6 whole windows, then one of 4
    const auto sizes_for = [&](std::int64_t batch_size) {
      std::vector<std::size_t> sizes;
      std::size_t seen = 0;
      for (const auto batch : evaluation_batches(windows, batch_size)) {
        CHECK(batch.data() == windows.data() + seen);
        seen += batch.size();
        sizes.push_back(batch.size());
      }
      return sizes;
    };
    CHECK(sizes_for(4) == std::vector<std::size_t>{4, 2, 1});
    CHECK(sizes_for(3) == std::vector<std::size_t>{3, 3, 1});
    CHECK(sizes_for(100) == std::vector<std::size_t>{6, 1});
    CHECK(contains(error_of([&] { evaluation_batches(windows, 0); }), "batch of 0"));
  }

  TEST_CASE("training needs one token more than the context, and that one window is trained on") {
    Device& cpu = test::cpu();
    for (const DataOrder kind : {DataOrder::random, DataOrder::sequential}) {
      const TrainingOrder order = order_of(kind, 64, 2);
      for (const std::size_t tokens : {2, 10, 63, 64}) {
        const TokenData data = TokenData::of(counting(tokens), "short.bin", 100);
        const std::string error = error_of([&] { training_batch(data, order, 0, 0, cpu); });
        CHECK(error ==
              fmt::format("short.bin: has {} tokens, but training with context length 64 needs at least 65", tokens));
        CHECK(contains(error_of([&] { training_start(order, data.size(), 0, 0, 0); }), "no window of 64"));
      }
      const TokenData data = TokenData::of(counting(65), "single.bin", 100);
      for (std::int64_t step = 0; step < 5; ++step) {
        const Batch batch = training_batch(data, order, step, 0, cpu);
        CHECK(batch.tokens.shape() == Shape{2, 64});
        const std::vector<double> tokens = test::values(batch.tokens), targets = test::values(batch.targets);
        for (int i = 0; i < 2 * 64; ++i) {
          CHECK(tokens[i] == i % 64);
          CHECK(targets[i] == i % 64 + 1);
        }
      }
    }
  }

  TEST_CASE("a training batch holds its windows row by row, the targets one id later") {
    const TokenData data = TokenData::of(counting(30), "thirty", 30);
    const TrainingOrder order = order_of(DataOrder::sequential, 4, 3, 2);
    const Batch batch = training_batch(data, order, 1, 1, test::cpu());  // sequences 9, 10, 11 of 7 windows
    CHECK(batch.tokens.dtype() == DType::i32);
    CHECK(test::values(batch.tokens) == std::vector<double>{8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
    CHECK(test::values(batch.targets) == std::vector<double>{9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20});
  }

  TEST_CASE("an evaluation batch takes windows of one length") {
    const TokenData data = TokenData::of(counting(8), "eight", 8);
    const std::vector<Window> windows = evaluation_windows(8, 3);  // 3, 3, 1 targets
    const Batch whole = evaluation_batch(data, std::span(windows).first(2), test::cpu());
    CHECK(whole.tokens.shape() == Shape{2, 3});
    CHECK(test::values(whole.targets) == std::vector<double>{1, 2, 3, 4, 5, 6});
    const Batch rest = evaluation_batch(data, std::span(windows).last(1), test::cpu());
    CHECK(test::values(rest.tokens) == std::vector<double>{6});
    CHECK(test::values(rest.targets) == std::vector<double>{7});
    CHECK(contains(error_of([&] { evaluation_batch(data, windows, test::cpu()); }), "windows of 3 and 1 targets"));
  }

  TEST_CASE("random starts are a fixed function of seed, step, micro-batch and row") {
    // Values of a Philox written apart from this one: a run resumed by a later version must see the same data.
    TrainingOrder order = order_of(DataOrder::random, 1024, 8, 60);
    const std::int64_t tokens = 9'035'582'489;  // OpenWebText
    CHECK(training_start(order, tokens, 0, 0, 0) == 924'267'492);
    CHECK(training_start(order, tokens, 19'999, 59, 7) == 5'803'662'281);
    order.seed = 1;
    CHECK(training_start(order, tokens, 0, 0, 0) == 1'700'022'871);
  }

  TEST_CASE("random starts differ between seeds, steps, micro-batches and rows, and not with the grouping") {
    TrainingOrder order = order_of(DataOrder::random, 8, 4, 4);
    const std::int64_t tokens = std::int64_t{1} << 40;
    std::set<std::int64_t> starts;
    for (const std::uint64_t seed : {1, 2, 3}) {
      order.seed = seed;
      for (std::int64_t i = 0; i < 4 * 4 * 4; ++i)
        starts.insert(training_start(order, tokens, i / 16, i / 4 % 4, i % 4));
    }
    CHECK(starts.size() == 3 * 4 * 4 * 4);

    TrainingOrder regrouped = order;
    regrouped.batch_size = 2;
    regrouped.micro_batches = 8;
    CHECK(training_start(order, tokens, 2, 3, 1) == training_start(regrouped, tokens, 2, 3, 1));
  }

  TEST_CASE("random starts are uniform over every window that fits, the last included") {
    const TrainingOrder order = order_of(DataOrder::random, 6, 5, 2);
    std::array<int, 10> count{};  // 16 tokens: a window of 6 and one more begins at 0 .. 9
    const int draws = 20'000;
    for (std::int64_t i = 0; i < draws; ++i) {
      const std::int64_t start = training_start(order, 16, i / 10, i / 5 % 2, i % 5);
      REQUIRE((start >= 0 && start < 10));
      ++count[start];
    }
    double chi2 = 0;
    for (const int n : count) chi2 += (n - draws / 10.0) * (n - draws / 10.0) / (draws / 10.0);
    CHECK(chi2 < 27.9);  // 9 degrees of freedom: exceeded once in a thousand keys
  }

  TEST_CASE("offsets beyond 32 bits come out whole, in either order") {
    const std::int64_t tokens = 5'000'000'000'001, T = 1000;
    const TrainingOrder sequential = order_of(DataOrder::sequential, T, 8, 60);
    const std::int64_t last_step = 5'000'000'000 / 480;  // the step in which the last of 5e9 windows is drawn
    CHECK(training_start(sequential, tokens, last_step, 0, 0) == last_step * 480 * T);
    CHECK(training_start(sequential, tokens, 2 * last_step, 59, 7) == (2 * last_step * 480 + 479) % 5'000'000'000 * T);
    const TrainingOrder random = order_of(DataOrder::random, T, 8, 60);
    std::int64_t largest = 0;
    for (std::int64_t row = 0; row < 1000; ++row) {
      largest = std::max(largest, training_start(random, tokens, 0, 0, row));
    }
    CHECK(largest > 4'900'000'000'000);
    CHECK(largest + T < tokens);
  }

  TEST_CASE("a sequential run resumed with another batch size goes on with the next window") {
    const TrainingOrder before = order_of(DataOrder::sequential, 10, 3, 2);
    TrainingOrder after = order_of(DataOrder::sequential, 10, 4, 1);
    after.first_step = 7;
    after.first_sequence = sequences_before(before, 7);
    CHECK(after.first_sequence == 42);
    CHECK(training_start(after, 1001, 7, 0, 0) == 420);
    CHECK(training_start(after, 1001, 8, 0, 1) == 470);
    CHECK(sequences_before(after, 9) == 50);
  }

  TEST_CASE("--data-order knows two words") {
    CHECK(data_order("random") == DataOrder::random);
    CHECK(data_order("sequential") == DataOrder::sequential);
    CHECK(contains(error_of([] { data_order("shuffled"); }), "--data-order: expected random or sequential"));
  }
}
