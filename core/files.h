// Files that are written whole or not at all, and read with errors that name them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace grt {

namespace fs = std::filesystem;

// A file under construction: bytes go to a temporary name beside `path`; commit() flushes them to the disk and renames.
// Without commit() the temporary file is removed and whatever was at `path` stays. Every failure (missing directory, a
// file where a directory should be, full disk) throws Error naming `path` and the system's reason.
// A symbolic link to a file is followed. What is no file (a device, a FIFO) is written in place, and what is another
// name of an open file (/dev/stdout, /proc/self/fd/3) is appended to.
class FileWriter {
 public:
  explicit FileWriter(fs::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  std::uint64_t written() const { return written_; }
  // The end of the content, now on the disk: of several files, finish all before the first is committed.
  void finish();
  void commit();  // finish(), if that was not called, and the rename

 private:
  void flush();

  fs::path path_, temporary_;  // no temporary name: written in place
  std::string buffer_;
  std::uint64_t written_ = 0;
  int fd_ = -1;  // -1: finished
  bool committed_ = false;
};

// A directory under construction beside `path`: its files are written under another name until commit() or replace()
// puts it in place. Without them nothing is left. Every failure throws Error naming `path`. A link to a directory is
// followed. A process that is killed leaves `.NAME.tmp-PID`.
class DirectoryWriter {
 public:
  explicit DirectoryWriter(const fs::path& path);
  ~DirectoryWriter();
  DirectoryWriter(const DirectoryWriter&) = delete;
  DirectoryWriter& operator=(const DirectoryWriter&) = delete;

  fs::path operator/(const std::string& name) const { return temporary_ / name; }
  void commit();  // where nothing is yet, or an empty directory
  // Whatever is there, which is removed. At no moment is neither there, but where the file system cannot exchange names
  // (NFS, Lustre): a process killed just then leaves what was there as `.NAME.old-PID`.
  void replace();

 private:
  fs::path path_, temporary_;
};

namespace detail {
// Exchanges what two names of one directory stand for, by renaming: `aside` stands for `b`'s meanwhile. Throws Error
// where `a` cannot take the place of `b`, which is then as it was.
void exchange_in_steps(const fs::path& a, const fs::path& b, const fs::path& aside);
}  // namespace detail

void write_file(const fs::path& path, std::string_view content);  // FileWriter in one call
// Throws above `limit` bytes, and for what is not a regular file (without waiting for a FIFO's other end).
std::string read_file(const fs::path& path, std::uint64_t limit = 1ull << 32);

// Makes a directory and its parents; throws Error naming the path (for instance one below a file).
void make_directories(const fs::path& path);
// Flushes a directory's entries to the disk: what makes a rename inside it durable.
void sync_directory(const fs::path& path);

// Do both name one place, by whatever spelling or links? Also where nothing is there yet.
bool same_place(const fs::path& a, const fs::path& b);
// Is `path`, once links are followed, somewhere below `directory`?
bool lies_in(const fs::path& path, const fs::path& directory);

// A file kept open to be read in parts. Renaming or removing it does no harm, and where it has become shorter a read
// throws Error, while a mapping would end the process. Throws Error for what is not a regular file.
class OpenFile {
 public:
  explicit OpenFile(fs::path path);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;

  const fs::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  fs::path path_;
  std::uint64_t size_ = 0;
  int fd_ = -1;
};

}  // namespace grt
