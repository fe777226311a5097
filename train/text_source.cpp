// zlib reads plain files and gzipped ones through the same calls; this adds errors that say what is wrong with a file.
#include "train/text_source.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace grt {

namespace {

constexpr std::size_t kPart = std::size_t{1} << 16;
constexpr std::size_t kMaxLine = std::size_t{1} << 30;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

}  // namespace

// The bytes of a file, unpacked if it is gzipped.
class TextSource::Unpacked {
 public:
  explicit Unpacked(const std::string& name) : name_(name), file_(gzopen(name.c_str(), "rb")) {
    check(file_ != nullptr, "{}: cannot be opened: {}", name, std::strerror(errno));
    gzbuffer(file_.get(), 2 * kPart);
  }

  // The next bytes, empty at the end of the file; valid until the next call.
  std::string_view read() {
    if (ahead_.empty()) fill();
    return std::exchange(ahead_, {});
  }

  // Reads a line without its '\n'. False: the file has ended.
  bool read_line(std::string& line, std::int64_t number) {
    line.clear();
    while (true) {
      if (ahead_.empty()) fill();
      if (ahead_.empty()) return !line.empty();
      const std::size_t end = ahead_.find('\n');
      line += ahead_.substr(0, end);
      check(line.size() <= kMaxLine, "{}:{}: the line is longer than 1 GiB", name_, number);
      ahead_.remove_prefix(std::min(end, ahead_.size() - 1) + 1);
      if (end != ahead_.npos) return true;
    }
  }

 private:
  struct Close {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };

  void fill() {
    errno = 0;
    const int count = gzread(file_.get(), block_.data(), static_cast<unsigned>(block_.size()));
    int state = Z_OK;
    const char* message = gzerror(file_.get(), &state);
    check(state != Z_ERRNO, "{}: cannot be read: {}", name_, std::strerror(errno));
    check(state != Z_BUF_ERROR, "{}: the gzip data ends early; the file is truncated", name_);
    check(count >= 0 && state >= Z_OK, "{}: the gzip data is damaged ({})", name_, message);
    const bool plain = gzdirect(file_.get()) != 0;
    check(!plain || !name_.ends_with(".gz"), "{}: named .gz, but it is no gzip file", name_);
    ahead_ = {block_.data(), static_cast<std::size_t>(count)};
  }

  std::string name_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::array<char, kPart> block_;
  std::string_view ahead_;  // read but not handed out yet, in block_
};

TextSource::TextSource(std::vector<std::string> files) : files_(std::move(files)) {
  for (const std::string& file : files_) {
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    check(std::filesystem::exists(status), "{}: no such file", file);
    check(!std::filesystem::is_directory(status), "{}: expected a file, but it is a directory", file);
  }
}

TextSource::~TextSource() = default;

bool TextSource::open_next_file() {
  if (opened_ == files_.size()) return false;
  const std::string& name = files_[opened_++];
  file_ = std::make_unique<Unpacked>(name);
  json_lines_ = name.ends_with(".jsonl") || name.ends_with(".jsonl.gz");
  started_ = false;
  line_ = 0;
  return true;
}

bool TextSource::next() {
  while (true) {
    if (!file_ && !open_next_file()) return false;
    if (json_lines_) {
      if (next_json_line()) return true;
    } else if (!started_) {
      started_ = true;
      return true;
    }
    file_.reset();
  }
}

bool TextSource::next_json_line() {
  std::string line;
  do {
    if (!file_->read_line(line, ++line_)) return false;
  } while (is_blank(line));

  Json object = parse_json(line, location());
  check(object.is_object(), "{}: expected a JSON object, not {}", location(), object.type_name());
  const auto text = object.find("text");
  check(text != object.end(), "{}: the object has no field \"text\"", location());
  check(text->is_string(), "{}: the field \"text\" must be a string, not {}", location(), text->type_name());
  text_ = std::move(text->get_ref<std::string&>());
  text_read_ = false;
  return true;
}

std::string_view TextSource::read() {
  if (!file_) return {};
  if (!json_lines_) return file_->read();
  return std::exchange(text_read_, true) ? std::string_view() : text_;
}

std::string TextSource::location() const {
  const std::string& name = files_[opened_ - 1];
  return json_lines_ ? fmt::format("{}:{}", name, line_) : name;
}

}  // namespace grt
