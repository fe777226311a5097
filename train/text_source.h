// The documents of text files, one after another, in parts of bounded size.
//
// A file is one document. A file named *.jsonl or *.jsonl.gz has one on each line, the string under "text" of a JSON
// object; blank lines are skipped. Either may be gzipped: a file that begins with gzip's two magic bytes is unpacked
// whatever its name, and one named *.gz must be such a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace grt {

class TextSource {
 public:
  // Throws Error if one of the files is missing or a directory.
  explicit TextSource(std::vector<std::string> files);
  ~TextSource();
  TextSource(const TextSource&) = delete;
  TextSource& operator=(const TextSource&) = delete;

  // Goes to the next document; what was not read of the last one is skipped. False: there is none.
  // Throws Error, naming the file and the line, for what cannot be read or is no document.
  bool next();
  // The next part of the document, at most 64 KiB (a document of a .jsonl file comes in one part); empty at its end.
  // Valid until the next call.
  std::string_view read();
  // Where the document stands: FILE, or FILE:LINE.
  std::string location() const;

 private:
  class Unpacked;

  bool open_next_file();
  bool next_json_line();

  std::vector<std::string> files_;
  std::size_t opened_ = 0;          // files opened so far; the current one is the last of them
  std::unique_ptr<Unpacked> file_;  // the current file; null between files
  bool json_lines_ = false;         // is the current file one with a document on each line?
  bool started_ = false;            // has the document of the current plain file begun?
  std::int64_t line_ = 0;
  std::string text_;  // of the current line's document
  bool text_read_ = false;
};

}  // namespace grt
