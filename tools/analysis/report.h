// The analysis as something to look at: an HTML page that needs nothing else, and one picture for a README.
#pragma once

#include <filesystem>
#include <string>

#include "core/json.h"

namespace grt {

// `analysis` is the content of analysis.json. What it lacks, the page leaves out. Throws Error if the file cannot be
// written.
std::string report_html(const Json& analysis);
void write_report(const Json& analysis, const std::filesystem::path& file);

// Loss by depth, openness of the gate, similarity of the states and early exits in one SVG file.
std::string overview_svg(const Json& analysis);
void write_overview_svg(const Json& analysis, const std::filesystem::path& file);

}  // namespace grt
