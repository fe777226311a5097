// HTML that is XML too: every element is closed, every attribute quoted.
#include "tools/analysis/html.h"

#include <fmt/format.h>

namespace grt::html {
namespace {

using svg::escape;

constexpr std::string_view kPageStyle = R"(body { margin: 0; background: #ffffff; color: #1f2328;
  font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
main { max-width: 976px; margin: 0 auto; padding: 16px }
h1 { font-size: 26px; margin: 8px 0 0 } h2 { font-size: 20px; margin: 40px 0 8px; border-bottom: 1px solid #d8dee4 }
h3 { font-size: 16px; margin: 24px 0 4px; overflow-wrap: anywhere }
p, ul, dl { max-width: 76ch; margin: 8px 0 } .sub { color: #57606a; overflow-wrap: anywhere }
nav a { margin-right: 14px; white-space: nowrap } a { color: #0069a8 }
figure { margin: 16px 0 8px } figcaption { color: #57606a; font-size: 13.5px; max-width: 86ch }
.pictures { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: flex-end }
.beside { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center } .beside figcaption { flex: 1 1 300px }
.pictures svg { max-width: 100%; height: auto }
.wide { overflow-x: auto; margin: 12px 0 } table { border-collapse: collapse; font-size: 13px }
th, td { padding: 3px 9px; border-bottom: 1px solid #d8dee4; text-align: right; font-variant-numeric: tabular-nums }
th { font-weight: 600; vertical-align: bottom } td.word, th:first-child { text-align: left }
td.hit { font-weight: 700; outline: 2px solid #0069a8; outline-offset: -2px }
td, bdi { white-space: pre-wrap; unicode-bidi: isolate } caption { caption-side: bottom; text-align: left; color: #57606a }
dt { font-weight: 600; margin-top: 6px } dd { margin: 0 0 0 20px; overflow-wrap: anywhere }
)";
constexpr std::string_view kPageDark = R"(body { background: #0d1117; color: #e6edf3 }
.sub, figcaption, caption { color: #9ea7b3 } h2, th, td { border-color: #2b323b } a { color: #63b8f0 }
td.hit { outline-color: #63b8f0 }
)";
constexpr std::string_view kPrint = R"(figure, tr, .pictures svg { break-inside: avoid } h2, h3 { break-after: avoid }
main { max-width: none } nav { display: none } .wide { overflow: visible } table { font-size: 9px }
th, td { padding: 2px 4px } .pictures svg[width="480"] { width: calc(50% - 8px) }
.beside .pictures { flex: 0 0 50% } .beside .pictures svg[width="480"] { width: 100% }
svg { print-color-adjust: exact; -webkit-print-color-adjust: exact }
)";

}  // namespace

std::string paragraph(const std::string& words) { return words.empty() ? "" : "<p>" + escape(words) + "</p>\n"; }

std::string bullets(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "<li>" + escape(line) + "</li>\n";
  return out.empty() ? "" : "<ul>\n" + out + "</ul>\n";
}

std::string heading(int level, const std::string& words) {
  return fmt::format("<h{0}><bdi>{1}</bdi></h{0}>\n", level, escape(words));
}

std::string figure(const std::vector<svg::Picture>& pictures, const std::string& caption) {
  // A narrow picture by itself has its caption beside it.
  const bool beside = pictures.size() == 1 && pictures[0].width <= svg::kHalf;
  std::string out = std::string(beside ? "<figure class=\"beside\">" : "<figure>") + "\n<div class=\"pictures\">\n";
  for (const svg::Picture& picture : pictures) out += inline_svg(picture);
  return out + "</div>\n<figcaption>" + escape(caption) + "</figcaption>\n</figure>\n";
}

std::string definitions(const std::vector<std::pair<std::string, std::string>>& terms) {
  std::string out = "<dl>\n";
  for (const auto& [term, words] : terms) out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape(term), escape(words));
  return out + "</dl>\n";
}

std::string table(const Table& table) {
  std::string out = "<div class=\"wide\"><table>\n";
  if (!table.caption.empty()) out += "<caption>" + escape(table.caption) + "</caption>\n";
  out += "<thead><tr>";
  for (const std::string& name : table.head) out += "<th>" + escape(name) + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const std::vector<Cell>& row : table.rows) {
    out += "<tr>";
    for (const Cell& cell : row)
      out += fmt::format("<td class=\"{}\">{}{}</td>", cell.css, escape(cell.words),
                         cell.note.empty() ? "" : "<br/><small>" + escape(cell.note) + "</small>");
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n";
}

std::string page(const std::string& title, const std::string& subtitle, const std::string& opening,
                 const std::vector<Section>& sections, const std::string& closing) {
  std::string contents, body;
  for (const Section& section : sections) {
    contents += fmt::format("<a href=\"#{}\">{}</a>\n", section.id, escape(section.title));
    body += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", section.id, escape(section.title),
                        section.html);
  }
  // The policy forbids whatever is not in the file, should a reader's program look for it.
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>{0}</title>\n<style>\n{1}{2}"
      "@media screen and (prefers-color-scheme: dark) {{\n{3}}}\n@media print {{\n{4}}}\n</style>\n</head>\n<body>\n"
      "<main>\n<h1>{0}</h1>\n<p class=\"sub\">{5}</p>\n{6}<nav>\n{7}</nav>\n{8}<p class=\"sub\">{9}</p>\n</main>\n"
      "</body>\n</html>\n",
      escape(title), kPageStyle, svg::style(), kPageDark, kPrint, escape(subtitle), opening, contents, body,
      escape(closing));
}

}  // namespace grt::html
