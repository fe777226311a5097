// Files by POSIX calls: what std::fstream does not offer is the reason of a failure, fsync and pread.
#include "core/files.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace grt {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

[[noreturn]] void fail_with_errno(const fs::path& path, const char* doing, int error = errno) {
  fail("{}: cannot {}: {}", path.string(), doing, std::generic_category().message(error));
}

// A descriptor that closes itself.
struct Descriptor {
  int fd;
  explicit Descriptor(int fd) : fd(fd) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

// Opens a regular file for reading; its size comes from the same descriptor. O_NONBLOCK: a FIFO must not block here.
int open_regular(const fs::path& path, std::uint64_t& size) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail_with_errno(path, "open");
  struct stat info {};
  const char* wrong = nullptr;
  if (fstat(fd, &info) != 0) {
    wrong = "its state cannot be read";
  } else if (S_ISDIR(info.st_mode)) {
    wrong = "a file is expected, this is a directory";
  } else if (!S_ISREG(info.st_mode)) {
    wrong = "a file is expected, this is a device, FIFO or socket";
  }
  if (wrong) {
    close(fd);
    fail("{}: {}", path.string(), wrong);
  }
  size = static_cast<std::uint64_t>(info.st_size);
  return fd;
}

void write_all(int fd, const char* data, std::size_t bytes, const fs::path& path) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno(path, "write");
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

fs::path directory_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

fs::path canonical_form(const fs::path& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error), form = fs::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : form;
}

// A name for this process alone, in the same directory.
fs::path hidden_beside(const fs::path& path, const char* what) {
  return directory_of(path) / fmt::format(".{}.{}-{}", path.filename().string(), what, getpid());
}

void remove_whole(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(!error, "{}: cannot remove: {}", path.string(), error.message());
}

void put_in_place(const fs::path& made, const fs::path& path) {
  if (rename(made.c_str(), path.c_str()) != 0) fail_with_errno(path, "put in place");
}

// Does `path` lead through /proc, as /dev/stdout and /dev/fd/1 do? What such a link names may be a regular file that
// another process has open: it must not be replaced.
bool names_open_file(fs::path path) {
  constexpr int kMostLinks = 40;  // the system's own limit
  std::error_code none;
  for (int i = 0; i < kMostLinks; ++i) {
    const fs::path directory = canonical_form(directory_of(path));
    if (directory.string().starts_with("/proc/")) return true;
    if (!fs::is_symlink(fs::symlink_status(path, none))) return false;
    path = directory / fs::read_symlink(path, none);
  }
  return false;
}

}  // namespace

FileWriter::FileWriter(fs::path path) : path_(std::move(path)) {
  check(path_.has_filename(), "\"{}\": a file name is expected", path_.string());
  std::error_code none;
  const fs::file_status status = fs::status(path_, none);
  check(!fs::is_directory(status), "{}: a file is expected, this is a directory", path_.string());
  if ((fs::exists(status) && !fs::is_regular_file(status)) || names_open_file(path_)) {
    fd_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  } else {
    if (fs::is_symlink(fs::symlink_status(path_, none)) && fs::exists(status)) path_ = fs::canonical(path_, none);
    temporary_ = hidden_beside(path_, "tmp");
    unlink(temporary_.c_str());  // left by a process that had our number and was killed
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) fail_with_errno(path_, "create");
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void FileWriter::write(const void* data, std::size_t bytes) {
  check(fd_ >= 0, "{}: written to after its end", path_.string());
  const char* bytes_in = static_cast<const char*>(data);
  if (buffer_.size() + bytes > kBuffer) flush();
  if (bytes > kBuffer) {
    write_all(fd_, bytes_in, bytes, path_);
  } else {
    buffer_.append(bytes_in, bytes);
  }
  written_ += bytes;
}

void FileWriter::flush() {
  write_all(fd_, buffer_.data(), buffer_.size(), path_);
  buffer_.clear();
}

void FileWriter::finish() {
  check(fd_ >= 0, "{}: finished twice", path_.string());
  flush();
  buffer_.shrink_to_fit();
  if (!temporary_.empty() && fsync(fd_) != 0) fail_with_errno(path_, "flush to the disk");
  if (close(std::exchange(fd_, -1)) != 0) fail_with_errno(path_, "close");
}

void FileWriter::commit() {
  check(!committed_, "{}: committed twice", path_.string());
  if (fd_ >= 0) finish();
  committed_ = true;
  if (temporary_.empty()) return;
  put_in_place(temporary_, path_);
  temporary_.clear();
  sync_directory(directory_of(path_));
}

DirectoryWriter::DirectoryWriter(const fs::path& path) : path_(canonical_form(path)) {
  if (!path_.has_filename()) path_ = path_.parent_path();
  temporary_ = hidden_beside(path_, "tmp");
  remove_whole(temporary_);  // left by a process that had our number and was killed
  make_directories(temporary_);
}

DirectoryWriter::~DirectoryWriter() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);  // after replace() this is what was there before
}

void DirectoryWriter::commit() {
  sync_directory(temporary_);
  put_in_place(temporary_, path_);
  sync_directory(path_.parent_path());
}

void DirectoryWriter::replace() {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path_, ignored))) return commit();
  sync_directory(temporary_);
  if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) fail_with_errno(path_, "put in place");
    detail::exchange_in_steps(temporary_, path_, hidden_beside(path_, "old"));
  }
  sync_directory(path_.parent_path());
}

void detail::exchange_in_steps(const fs::path& a, const fs::path& b, const fs::path& aside) {
  remove_whole(aside);
  if (rename(b.c_str(), aside.c_str()) != 0) fail_with_errno(b, "rename");
  if (rename(a.c_str(), b.c_str()) != 0) {
    const int error = errno;
    put_in_place(aside, b);
    fail_with_errno(b, "put in place", error);
  }
  put_in_place(aside, a);
}

void write_file(const fs::path& path, std::string_view content) {
  FileWriter file(path);
  file.write(content);
  file.commit();
}

std::string read_file(const fs::path& path, std::uint64_t limit) {
  std::uint64_t size = 0;
  const Descriptor file(open_regular(path, size));
  std::string content;
  // One byte more than promised: a file can grow, and those in /proc say 0.
  for (std::uint64_t room = std::min(size, limit) + 1;; room = content.size() + kBuffer) {
    const std::size_t begin = content.size();
    content.resize(static_cast<std::size_t>(room));
    const ssize_t n = read(file.fd, content.data() + begin, content.size() - begin);
    const int error = errno;
    content.resize(begin + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && error != EINTR) fail_with_errno(path, "read", error);
    check(content.size() <= limit, "{}: has more than {} bytes, the most allowed here", path.string(), limit);
    if (n == 0) return content;
  }
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  check(!error, "{}: cannot create the directory: {}", path.string(), error.message());
  check(fs::is_directory(path, error), "{}: a directory is expected, something else is there", path.string());
}

void sync_directory(const fs::path& path) {
  const Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.fd < 0) fail_with_errno(path, "open the directory");
  // EINVAL: this file system has no such call, and nothing better to offer.
  if (fsync(directory.fd) != 0 && errno != EINVAL) fail_with_errno(path, "flush the directory to the disk");
}

bool same_place(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  return fs::equivalent(a, b, missing) || canonical_form(a) == canonical_form(b);
}

bool lies_in(const fs::path& path, const fs::path& directory) {
  const fs::path inner = canonical_form(path), outer = canonical_form(directory);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

OpenFile::OpenFile(fs::path path) : path_(std::move(path)) { fd_ = open_regular(path_, size_); }

OpenFile::~OpenFile() {
  if (fd_ >= 0) close(fd_);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : path_(std::move(other.path_)), size_(other.size_), fd_(std::exchange(other.fd_, -1)) {}

void OpenFile::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  for (char* next = static_cast<char*>(to); bytes > 0;) {
    const ssize_t n = pread(fd_, next, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno(path_, "read");
    check(n > 0, "{}: ends at byte {} or before, but had {} bytes when it was opened", path_.string(), offset, size_);
    next += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

}  // namespace grt
