#include "tools/analysis/attention.h"

#include <map>
#include <set>

#include "autograd/tape.h"
#include "core/threads.h"
#include "tools/analysis/heads.h"
#include "train/host.h"

namespace grt {
namespace {

constexpr std::int64_t kTokens = 8192;  // of all windows that are looked at

using Masses = std::vector<std::vector<HeadMass>>;  // by application of a block, by head

// Shows the qkv (1, T, 3d) of every attention of a pass, in order: the last value of that width before its output.
void for_attentions(const LanguageModel& model, const Tensor& tokens, const Pass& pass,
                    const std::function<void(std::size_t application, const Tensor& qkv)>& visit) {
  const std::int64_t width = 3 * model.config().d_model;
  Tensor qkv;
  std::size_t application = 0;
  const Observe observe([&](std::string_view op, const Tensor& out) {
    if (op == "attention")
      visit(application++, qkv);
    else if (out.shape().last() == width)
      qkv = out;
  });
  model.hidden(tokens, model.depths().full, pass);
}

void add_window(Masses& masses, const LanguageModel& model, const Tensor& tokens, const Pass& pass) {
  const int heads = model.config().n_heads;
  std::vector<Tensor> all;
  for_attentions(model, tokens, pass, [&](std::size_t, const Tensor& qkv) { all.push_back(qkv); });
  for (std::size_t a = 0; a < all.size(); ++a) {
    const std::vector<double> qkv = host_values(all[a]);
    const std::int64_t time = all[a].dim(1);
    std::vector<HeadMass> here(heads);
    parallel_for(heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head)
        here[head] = head_mass(attention_weights(qkv, time, heads, static_cast<int>(head)), time);
    });
    for (int head = 0; head < heads; ++head) masses[a][head].add(here[head]);
  }
}

Json head_row(const std::string& block, int head, const std::vector<const HeadMass*>& steps) {
  Json rows = Json::array();
  std::set<std::string> kinds;
  for (const HeadMass* mass : steps) {
    kinds.insert(head_kind(*mass));
    rows.push_back({{"step", rows.size() + 1},
                    {"kind", head_kind(*mass)},
                    {"previous", mass->previous},
                    {"self", mass->self},
                    {"first", mass->first}});
  }
  return {{"block", block}, {"head", head}, {"steps", rows}, {"changes", kinds.size() > 1}};
}

}  // namespace

Json measure_heads(const Source& source, const Shown& shown) {
  const LanguageModel& model = source.model;
  const std::vector<std::string> blocks = model.applications(model.depths().full);
  Masses masses(blocks.size(), std::vector<HeadMass>(model.config().n_heads));
  const std::vector<Batch> windows = source.samples(std::max<std::int64_t>(1, kTokens / model.config().context_length));
  std::int64_t done = 0;
  for (const Batch& window : windows) {
    add_window(masses, model, window.tokens, source.pass());
    shown(++done, static_cast<std::int64_t>(windows.size()));
  }

  Json list = Json::array();
  std::set<std::string> listed;
  for (const std::string& block : blocks) {
    if (!listed.insert(block).second) continue;
    for (int head = 0; head < model.config().n_heads; ++head) {
      std::vector<const HeadMass*> steps;
      for (std::size_t a = 0; a < blocks.size(); ++a)
        if (blocks[a] == block) steps.push_back(&masses[a][head]);
      list.push_back(head_row(block, head, steps));
    }
  }
  return {{"thresholds", {{"mass", kHeadMass}, {"first_query", kFirstQuery}}}, {"list", list}};
}

}  // namespace grt
