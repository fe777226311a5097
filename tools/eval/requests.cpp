#include "tools/eval/requests.h"

#include <algorithm>

#include "core/error.h"
#include "tools/eval/python_text.h"

namespace grt {

Request encode_request(const Tokenizer& tokenizer, const std::string& context, const std::string& continuation) {
  const std::string kept(right_stripped(context));
  Request request{0, tokenizer.encode(kept), {}};
  const std::vector<int> whole = tokenizer.encode(context + continuation);
  const std::size_t split = std::min(request.context.size(), whole.size());
  request.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(split), whole.end());
  if (request.context.empty()) request.context = {tokenizer.end_of_document()};
  return request;
}

std::vector<Request> encode_requests(const Tokenizer& tokenizer, const TaskDocuments& task,
                                     std::int64_t context_length) {
  std::vector<Request> requests;
  for (std::size_t d = 0; d < task.documents.size(); ++d) {
    for (const Choice& choice : task.documents[d].choices) {
      requests.push_back(encode_request(tokenizer, choice.context, choice.continuation));
      requests.back().document = static_cast<std::int64_t>(d);
      const auto ids = static_cast<std::int64_t>(requests.back().continuation.size());
      check(0 < ids && ids <= context_length,
            "{}: document {} has a continuation of {} tokens; it must have 1..{}, the model's context_length",
            task.file, d, ids, context_length);
    }
  }
  return requests;
}

std::vector<int> model_input(const Request& request, std::int64_t context_length) {
  std::vector<int> ids = request.context;
  ids.insert(ids.end(), request.continuation.begin(), request.continuation.end());
  ids.pop_back();
  const auto excess = static_cast<std::int64_t>(ids.size()) - context_length;
  if (excess > 0) ids.erase(ids.begin(), ids.begin() + excess);
  return ids;
}

}  // namespace grt
