// A request as token ids, and what of it the model is given.
#pragma once

#include <vector>

#include "tools/eval/tasks.h"
#include "train/tokenizer.h"

namespace grt {

struct Request {
  std::int64_t document;  // which of its task, from 0; requests of a document follow each other
  std::vector<int> context, continuation;
};

// White space at the end of the context moves to the continuation, the two are encoded as one text, and the
// continuation's ids are those after as many as the context alone has. An empty context becomes the id that ends a
// document.
Request encode_request(const Tokenizer& tokenizer, const std::string& context, const std::string& continuation);

// All choices of all documents, one after another. Throws Error for a continuation without ids, or with more than
// context_length.
std::vector<Request> encode_requests(const Tokenizer& tokenizer, const TaskDocuments& task,
                                     std::int64_t context_length);

// The last context_length + 1 ids of context and continuation but for the very last, which is only predicted. The
// logits that predict the continuation are those of the last continuation.size() of these.
std::vector<int> model_input(const Request& request, std::int64_t context_length);

}  // namespace grt
