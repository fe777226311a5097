// The report's chapters: pictures and tables with captions in plain words. A chapter without data is left out.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "tools/analysis/html.h"

namespace grt {

// Each returns HTML, or nothing where the analysis lacks its part.
std::string exits_section(const Json& analysis);
std::string gates_section(const Json& analysis);
std::string reinjection_section(const Json& analysis);
std::string dynamics_section(const Json& analysis);
std::string similarity_section(const Json& analysis);
std::string difficulty_section(const Json& analysis);
std::string weights_section(const Json& analysis);
std::string heads_section(const Json& analysis);
std::string trajectories_section(const Json& analysis);
std::string early_exit_section(const Json& analysis);
std::string definitions_section(const Json& analysis);

// What the paper prints for its largest GRT, to be put into a caption; nothing for other architectures.
std::string printed(const Json& analysis, const std::string& figures);

std::vector<std::string> findings(const Json& analysis);  // the whole in a few sentences

}  // namespace grt
