// What a document of each task asks: its contexts and continuations, and which one is right.
#pragma once

#include "tools/eval/tasks.h"

namespace grt {

// Each throws Error, naming the line, for a field that is missing or cannot be right.
Document arc_document(const TaskLine& line);
Document boolq_document(const TaskLine& line);
Document hellaswag_document(const TaskLine& line);
Document lambada_document(const TaskLine& line);
Document openbookqa_document(const TaskLine& line);
Document piqa_document(const TaskLine& line);
Document winogrande_document(const TaskLine& line);

// HellaSwag's clean-up of the WikiHow markup.
std::string hellaswag_text(std::string_view text);

}  // namespace grt
