// The parts of an HTML page that stands by itself: no script, no network, also well-formed XML. All words are escaped
// here; a caller hands over plain text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/analysis/svg.h"

namespace grt::html {

std::string paragraph(const std::string& words);
std::string bullets(const std::vector<std::string>& lines);
std::string heading(int level, const std::string& words);
std::string figure(const std::vector<svg::Picture>& pictures, const std::string& caption);
std::string definitions(const std::vector<std::pair<std::string, std::string>>& terms);

struct Cell {
  std::string words;
  std::string css = {};   // "word" for text, "hit" for what stands out
  std::string note = {};  // a second line
};
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<Cell>> rows;
  std::string caption;
};
std::string table(const Table& table);

struct Section {
  std::string id, title, html;
};
// A title, a line below it, the sections with a list of contents, a closing line.
std::string page(const std::string& title, const std::string& subtitle, const std::string& opening,
                 const std::vector<Section>& sections, const std::string& closing);

}  // namespace grt::html
