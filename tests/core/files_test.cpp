// Files are written whole or not at all, and every failure names the file and the reason.
#include "core/files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iterator>
#include <string>
#include <utility>

#include "tests/support.h"

namespace grt::test {
namespace {

// Lets no file grow beyond `bytes`: a full disk for one test.
struct SmallDisk {
  rlimit before{};
  explicit SmallDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, SIG_DFL);
  }
};

std::size_t entries_in(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

TEST_SUITE("core") {
  TEST_CASE("a written file holds what was written, in pieces of any size") {
    const TempDir dir;
    std::string expected;
    FileWriter file(dir / "f");
    for (const std::size_t size : {0, 1, 1000, 3'000'000, 5, 1 << 20, 1'048'570, 20}) {
      const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
      file.write(piece);
      expected += piece;
    }
    CHECK(file.written() == expected.size());
    CHECK(!fs::exists(dir / "f"));
    file.commit();
    CHECK(read_file(dir / "f") == expected);
    CHECK(entries_in(dir.path) == 1);
  }

  TEST_CASE("without commit the old file stays and nothing else does") {
    const TempDir dir;
    write_file(dir / "f", "old");
    { FileWriter(dir / "f").write("new"); }
    CHECK(read_file(dir / "f") == "old");
    CHECK(entries_in(dir.path) == 1);
  }

  TEST_CASE("files that are all finished before the first is committed stay as they were if one fails") {
    const TempDir dir;
    write_file(dir / "f", "old");
    {
      FileWriter file(dir / "f"), full("/dev/full");
      file.write("new");
      full.write("new");
      file.finish();
      CHECK(error_of([&] { full.finish(); }) == "/dev/full: cannot write: No space left on device");
      CHECK(read_file(dir / "f") == "old");
    }
    CHECK(read_file(dir / "f") == "old");
    CHECK(entries_in(dir.path) == 1);
  }

  TEST_CASE("a finished file takes nothing more and is there after its commit") {
    const TempDir dir;
    for (const std::string& path : {(dir / "f").string(), std::string("/dev/null")}) {
      FileWriter file(path);
      file.write("new");
      file.finish();
      CHECK(error_of([&] { file.write("more"); }) == path + ": written to after its end");
      CHECK(error_of([&] { file.finish(); }) == path + ": finished twice");
      file.commit();
      CHECK(error_of([&] { file.commit(); }) == path + ": committed twice");
    }
    CHECK(read_file(dir / "f") == "new");
    CHECK(entries_in(dir.path) == 1);
  }

  TEST_CASE("a full disk is an error that names the file, and the old file survives") {
    const TempDir dir;
    write_file(dir / "f", "old");
    for (const std::size_t size : {5'000, 3'000'000}) {
      std::string text;
      {
        const SmallDisk small(4096);
        text = error_of([&] { write_file(dir / "f", std::string(size, 'x')); });
      }
      CHECK(text == (dir / "f").string() + ": cannot write: File too large");
      CHECK(read_file(dir / "f") == "old");
      CHECK(entries_in(dir.path) == 1);
    }
    CHECK(error_of([] { write_file("/dev/full", "x"); }) == "/dev/full: cannot write: No space left on device");
    CHECK(fs::is_character_file("/dev/full"));
  }

  TEST_CASE("a writer that is killed before its commit leaves the old file") {
    const TempDir dir;
    write_file(dir / "f", "old");
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      FileWriter file(dir / "f");
      file.write(std::string(3'000'000, 'x'));
      raise(SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    CHECK(read_file(dir / "f") == "old");
    write_file(dir / "f", "new");
    CHECK(read_file(dir / "f") == "new");
  }

  TEST_CASE("places where no file can be written are named with the reason") {
    const TempDir dir;
    write_file(dir / "file", "");
    CHECK(error_of([&] { FileWriter(dir / "no/f"); }) ==
          (dir / "no/f").string() + ": cannot create: No such file or directory");
    CHECK(error_of([&] { FileWriter(dir / "file/f"); }) ==
          (dir / "file/f").string() + ": cannot create: Not a directory");
    CHECK(error_of([&] { FileWriter{dir.path}; }) == dir.path.string() + ": a file is expected, this is a directory");
    CHECK(contains(error_of([] { FileWriter(""); }), "a file name is expected"));
    CHECK(contains(error_of([&] { FileWriter(dir / "x/"); }), "a file name is expected"));
    CHECK(contains(error_of([&] { FileWriter(dir / std::string(300, 'n')); }), "File name too long"));
  }

  TEST_CASE("a symbolic link stays one, and its file is replaced") {
    const TempDir dir;
    fs::create_directory(dir / "real");
    write_file(dir / "real/f", "old");
    fs::create_symlink("real/f", dir / "link");
    write_file(dir / "link", "new");
    CHECK(fs::is_symlink(dir / "link"));
    CHECK(read_file(dir / "real/f") == "new");
  }

  TEST_CASE("a device is written in place") {
    write_file("/dev/null", "x");
    CHECK(fs::is_character_file("/dev/null"));
  }

  TEST_CASE("another name of an open file is appended to and the file keeps its place") {
    const TempDir dir;
    write_file(dir / "f", "1");
    const int fd = open((dir / "f").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    REQUIRE(fd >= 0);
    const std::string number = std::to_string(fd);
    fs::create_symlink("/dev/fd/" + number, dir / "link");
    write_file("/proc/self/fd/" + number, "2");
    write_file("/dev/fd/" + number, "3");
    write_file(dir / "link", "4");
    CHECK(::write(fd, "5", 1) == 1);
    close(fd);
    CHECK(read_file(dir / "f") == "12345");
    CHECK(fs::is_symlink(dir / "link"));
    CHECK(entries_in(dir.path) == 2);
  }

  TEST_CASE("an open file is read in parts, also after it was replaced; where it became shorter is an error") {
    const TempDir dir;
    write_file(dir / "f", "0123456789");
    OpenFile first(dir / "f");
    const OpenFile file(std::move(first));
    CHECK(file.size() == 10);
    const auto part = [](const OpenFile& from, std::uint64_t offset, std::size_t bytes) {
      std::string text(bytes, '?');
      from.read(offset, text.data(), bytes);
      return text;
    };
    CHECK(part(file, 3, 4) == "3456");
    write_file(dir / "f", "other");
    CHECK(part(file, 0, 10) == "0123456789");
    const OpenFile other(dir / "f");
    fs::resize_file(dir / "f", 2);
    CHECK(part(other, 0, 2) == "ot");
    CHECK(error_of([&] { part(other, 1, 4); }) ==
          (dir / "f").string() + ": ends at byte 2 or before, but had 5 bytes when it was opened");
    CHECK(contains(error_of([&] { OpenFile{dir.path}; }), "this is a directory"));
  }

  TEST_CASE("places are compared through spellings and links, whether there is a file or not") {
    const TempDir dir;
    fs::create_directory(dir / "sub");
    write_file(dir / "f", "");
    fs::create_symlink("f", dir / "link");
    fs::create_symlink("sub", dir / "to_sub");
    CHECK(same_place(dir / "f", dir / "sub/../f"));
    CHECK(same_place(dir / "link", dir / "./f"));
    CHECK(same_place(dir / "to_sub/new", dir / "sub/./new"));
    CHECK(!same_place(dir / "f", dir / "sub/f"));
    CHECK(!same_place(dir / "new", dir / "newer"));
    CHECK(lies_in(dir / "to_sub/new", dir / "sub"));
    CHECK(lies_in(dir / "sub/a/b", dir / "sub/"));
    CHECK(!lies_in(dir / "sub/../new", dir / "sub"));
    CHECK(!lies_in(dir / "subway", dir / "sub"));
  }

  TEST_CASE("only regular files are read, and a FIFO does not block") {
    const TempDir dir;
    REQUIRE(mkfifo((dir / "fifo").c_str(), 0600) == 0);
    const auto open_it = [](const fs::path& p) { OpenFile{p}; };
    for (const fs::path& path : {dir / "fifo", fs::path("/dev/zero")}) {
      const std::string expected = path.string() + ": a file is expected, this is a device, FIFO or socket";
      CHECK(error_of([&] { read_file(path); }) == expected);
      CHECK(error_of([&] { open_it(path); }) == expected);
    }
    const std::string directory = dir.path.string() + ": a file is expected, this is a directory";
    CHECK(error_of([&] { read_file(dir.path); }) == directory);
    CHECK(error_of([&] { open_it(dir.path); }) == directory);
    CHECK(error_of([&] { open_it(dir / "no"); }) == (dir / "no").string() + ": cannot open: No such file or directory");
  }

  TEST_CASE("read_file keeps its limit and reads files that do not tell their size") {
    const TempDir dir;
    write_file(dir / "f", "12345");
    CHECK(read_file(dir / "f", 5) == "12345");
    CHECK(error_of([&] { read_file(dir / "f", 4); }) ==
          (dir / "f").string() + ": has more than 4 bytes, the most allowed here");
    CHECK(!read_file("/proc/self/status").empty());
    write_file(dir / "empty", "");
    CHECK(read_file(dir / "empty").empty());
  }

  TEST_CASE("a directory appears when it is committed, and leaves nothing when it is not") {
    const TempDir dir;
    {
      DirectoryWriter out(dir / "deep/out/");
      write_file(out / "a", "one");
      CHECK_FALSE(fs::exists(dir / "deep/out"));
      out.commit();
      CHECK(read_file(dir / "deep/out/a") == "one");
    }
    {
      DirectoryWriter out(dir / "deep/other");
      write_file(out / "a", "two");
    }
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(dir / "deep")) left.push_back(entry.path().filename());
    CHECK(left == std::vector<fs::path>{"out"});
  }

  TEST_CASE("a directory with something in it is replaced on purpose alone") {
    const TempDir dir;
    make_directories(dir / "out");
    write_file(dir / "out/old", "old");
    fs::create_directory_symlink(dir / "out", dir / "link");
    CHECK(contains(error_of([&] {
                     DirectoryWriter out(dir / "out");
                     write_file(out / "new", "new");
                     out.commit();
                   }),
                   (dir / "out").string() + ": cannot put in place"));
    CHECK(read_file(dir / "out/old") == "old");
    {
      DirectoryWriter out(dir / "link");
      write_file(out / "new", "new");
      out.replace();
    }
    CHECK(fs::is_symlink(dir / "link"));
    CHECK(read_file(dir / "out/new") == "new");
    CHECK_FALSE(fs::exists(dir / "out/old"));
    CHECK(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator()) == 2);  // out and link
  }

  TEST_CASE("a directory takes nothing from a process that had our number and was killed") {
    const TempDir dir;
    const fs::path left = dir / fmt::format(".out.tmp-{}", getpid());
    make_directories(left / "deep");
    write_file(left / "deep/stale", "stale");
    DirectoryWriter out(dir / "out");
    write_file(out / "new", "new");
    out.commit();
    CHECK(read_file(dir / "out/new") == "new");
    CHECK_FALSE(fs::exists(dir / "out/deep"));
  }

  TEST_CASE("where names cannot be exchanged, directories change places step by step, or stay where they are") {
    const TempDir dir;
    for (const char* name : {"a", "b", "aside"}) {
      make_directories(dir / name);
      write_file(dir / name / name, name);
    }
    detail::exchange_in_steps(dir / "a", dir / "b", dir / "aside");
    CHECK(read_file(dir / "a/b") == "b");
    CHECK(read_file(dir / "b/a") == "a");
    CHECK_FALSE(fs::exists(dir / "aside"));
    CHECK(contains(error_of([&] { detail::exchange_in_steps(dir / "none", dir / "b", dir / "aside"); }),
                   (dir / "b").string() + ": cannot put in place: No such file or directory"));
    CHECK(read_file(dir / "b/a") == "a");
    CHECK_FALSE(fs::exists(dir / "aside"));
  }

  TEST_CASE("make_directories makes parents and refuses a place below a file") {
    const TempDir dir;
    make_directories(dir / "a/b/c");
    make_directories(dir / "a/b/c");
    CHECK(fs::is_directory(dir / "a/b/c"));
    write_file(dir / "file", "");
    CHECK(error_of([&] { make_directories(dir / "file/sub"); }) ==
          (dir / "file/sub").string() + ": cannot create the directory: Not a directory");
    CHECK(contains(error_of([&] { make_directories(dir / "file"); }), (dir / "file").string() + ": "));
    sync_directory(dir / "a");
    CHECK(contains(error_of([&] { sync_directory(dir / "none"); }), "No such file or directory"));
  }
}

}  // namespace
}  // namespace grt::test
