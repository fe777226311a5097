// gzip's members are inflated here and not by gzread, for which a file ends where no further member begins, whatever
// still follows.
#include "train/text_source.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
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
  explicit Unpacked(const std::string& name) : name_(name), file_(std::fopen(name.c_str(), "rbe")) {
    check(file_ != nullptr, "{}: cannot be opened: {}", name, std::strerror(errno));
    load();
    gzipped_ = packed_.starts_with(kMagic);
    check(gzipped_ || !name.ends_with(".gz"), "{}: named .gz, but it is no gzip file", name);
    check(inflateInit2(&stream_, kGzip) == Z_OK, "{}: no memory to unpack it", name);
  }
  ~Unpacked() { inflateEnd(&stream_); }

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
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // The file's next bytes, into packed_: none at its end.
  void load() {
    const std::size_t count = std::fread(input_.data(), 1, input_.size(), file_.get());
    check(std::ferror(file_.get()) == 0, "{}: cannot be read: {}", name_, std::strerror(errno));
    packed_ = {input_.data(), count};
  }

  void fill() {
    if (packed_.empty()) load();
    if (gzipped_) {
      while (!packed_.empty() || !member_ended_)
        if (inflate_some()) return;
    }
    ahead_ = std::exchange(packed_, {});
  }

  // False: no bytes came of it yet.
  bool inflate_some() {
    if (member_ended_ && !begin_member()) return false;
    const bool at_end = packed_.empty();
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data()));
    stream_.avail_in = static_cast<uInt>(packed_.size());
    stream_.next_out = reinterpret_cast<Bytef*>(block_.data());
    stream_.avail_out = static_cast<uInt>(block_.size());
    const int state = inflate(&stream_, Z_NO_FLUSH);
    check(state == Z_OK || state == Z_STREAM_END || state == Z_BUF_ERROR, "{}: the gzip data is damaged ({})", name_,
          stream_.msg ? stream_.msg : zError(state));
    member_ended_ = state == Z_STREAM_END;
    packed_.remove_prefix(packed_.size() - stream_.avail_in);
    ahead_ = {block_.data(), block_.size() - stream_.avail_out};
    check(!ahead_.empty() || member_ended_ || !at_end, "{}: the gzip data ends early; the file is truncated", name_);
    if (packed_.empty()) load();
    return !ahead_.empty();
  }

  // Zeros may fill the room between members, and behind the last one.
  bool begin_member() {
    packed_.remove_prefix(std::min(packed_.find_first_not_of('\0'), packed_.size()));
    if (packed_.empty()) {
      load();
      return false;
    }
    check(packed_[0] == kMagic[0], "{}: what follows its gzip data is no gzip data", name_);
    inflateReset(&stream_);
    member_ended_ = false;
    return true;
  }

  static constexpr std::string_view kMagic = "\x1f\x8b";
  static constexpr int kGzip = 16 + MAX_WBITS;

  std::string name_;
  std::unique_ptr<std::FILE, Close> file_;
  std::array<char, kPart> input_, block_;
  std::string_view packed_;  // read but not unpacked yet, in input_
  std::string_view ahead_;   // not handed out yet, in block_ (of a plain file in input_)
  z_stream stream_{};
  bool gzipped_ = false, member_ended_ = false;
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
