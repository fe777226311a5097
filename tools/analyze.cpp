// analyze: what a checkpoint does at each of its depths and in each of its steps, as numbers, tables and pictures.
#include <cstdio>

#include "core/flags.h"
#include "core/main.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/output.h"
#include "tools/analysis/report.h"
#include "tools/analysis/summary.h"
#include "train/checkpoint.h"
#include "train/device.h"

namespace grt {
namespace {

// The result must not lie in what it is computed from.
void check_output(const AnalysisConfig& config) {
  check(config.out.has_value(), "--out: expected a directory for the results");
  check(config.checkpoint.has_value(), "--checkpoint: expected the directory of a checkpoint");
  const fs::path checkpoint = resolve_checkpoint(*config.checkpoint);
  check(!same_place(*config.out, checkpoint) && !lies_in(*config.out, checkpoint), "--out: {} is in the checkpoint {}",
        *config.out, checkpoint.string());
}

int run(int argc, char** argv) {
  AnalysisConfig config;
  DeviceConfig device_flags;
  Flags flags("analyze",
              "Dissects a checkpoint: its exits, gates, states, heads and weights, as numbers, tables and a report.");
  flags.add(config);
  flags.add(device_flags);
  if (!flags.parse(argc, argv)) return 0;
  check_output(config);
  const std::unique_ptr<Device> device = device_flags.open_and_tell();
  check_place(*config.out, config.overwrite);
  { const DirectoryWriter probe(*config.out); }  // fails now, not after the work

  const Json analysis = analyze(config, *device, device_flags.type());
  DirectoryWriter out(*config.out);  // not before: an interrupted analysis leaves nothing
  write_file(out / "analysis.json", to_text(analysis, 1) + "\n");
  for (const auto& [name, text] : csv_files(analysis)) write_file(out / name, text);
  write_report(analysis, out / "report.html");
  write_overview_svg(analysis, out / "overview.svg");
  check_place(*config.out, config.overwrite);  // again: much may have been put there since
  out.replace();
  fmt::print("{}report: {}\n", summary(analysis), (fs::path(*config.out) / "report.html").string());
  return 0;
}

}  // namespace
}  // namespace grt

int main(int argc, char** argv) {
  return grt::run_main("analyze", [&] { return grt::run(argc, argv); });
}
