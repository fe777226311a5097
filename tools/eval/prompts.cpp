#include "tools/eval/prompts.h"

#include <algorithm>

#include "core/error.h"
#include "tools/eval/python_text.h"

namespace grt {
namespace {

// Every choice after the same context.
Document ask(const std::string& context, const std::vector<std::string>& choices, int gold, const TaskLine& line) {
  Document document{{}, gold};
  for (const std::string& choice : choices)
    document.choices.push_back({context, fmt::format(" {}", choice), code_points(choice)});
  check(0 <= gold && gold < static_cast<int>(choices.size()), "{}: the right choice is {}, but there are {} choices",
        line.where, gold, choices.size());
  return document;
}

struct Options {
  std::string question;
  std::vector<std::string> texts, labels;
};

// ARC and OpenBookQA. The authors nest: {"question": {"stem": Q, "choices": [{"text": T, "label": L}, ...]}}; the hub
// has {KEY: Q, "choices": {"text": [T, ...], "label": [L, ...]}}.
Options read_options(const TaskLine& line, const char* key) {
  Options options;
  if (line.has("question") && line.at("question").is_object()) {
    const TaskLine nested{line.at("question"), line.where};
    options.question = nested.text("stem");
    for (const Json& choice : nested.list("choices")) {
      options.texts.push_back(TaskLine{choice, line.where}.text("text"));
      options.labels.push_back(TaskLine{choice, line.where}.text("label"));
    }
    return options;
  }
  options.question = line.text(key);
  const TaskLine choices{line.at("choices"), line.where};
  const auto strings = [&](const char* name) {
    std::vector<std::string> list;
    for (const Json& item : choices.list(name)) {
      check(item.is_string(), "{}: choices.{} must hold strings, not {}", line.where, name, item.dump());
      list.push_back(item.get<std::string>());
    }
    return list;
  };
  options.texts = strings("text");
  options.labels = strings("label");
  check(options.texts.size() == options.labels.size(), "{}: there are {} choices, but {} labels", line.where,
        options.texts.size(), options.labels.size());
  return options;
}

int index_of_answer(const Options& options, const TaskLine& line) {
  const std::string key = line.text("answerKey");
  const auto it = std::find(options.labels.begin(), options.labels.end(), left_stripped(key));
  for (auto label = options.labels.begin(); label != options.labels.end(); ++label)
    check(std::find(options.labels.begin(), label, *label) == label, "{}: two choices have the label \"{}\"",
          line.where, *label);
  check(it != options.labels.end(), "{}: answerKey \"{}\" is none of the labels", line.where, key);
  return static_cast<int>(it - options.labels.begin());
}

// Deletes what the regular expression \[.*?\] matches: the shortest match, which holds no newline.
std::string without_brackets(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text[at] == '[' ? text.find_first_of("]\n", at) : text.npos;
    if (end != text.npos && text[end] == ']') {
      at = end + 1;
    } else {
      result += text[at++];
    }
  }
  return result;
}

}  // namespace

Document arc_document(const TaskLine& line) {
  const Options options = read_options(line, "question");
  return ask("Question: " + options.question + "\nAnswer:", options.texts, index_of_answer(options, line), line);
}

Document openbookqa_document(const TaskLine& line) {
  const Options options = read_options(line, "question_stem");
  return ask(options.question, options.texts, index_of_answer(options, line), line);
}

// SuperGLUE's passages begin with their title, "Title -- text". The first release keeps the title apart.
Document boolq_document(const TaskLine& line) {
  std::string passage = line.text("passage");
  const bool superglue = line.has("label");
  if (!superglue) {
    check(line.has("title"),
          "{}: neither \"label\", as in SuperGLUE, nor \"title\", as in the first release: without its title a passage "
          "makes another prompt",
          line.where);
    passage = line.text("title") + " -- " + passage;
  }
  return ask(passage + "\nQuestion: " + line.text("question") + "?\nAnswer:", {"no", "yes"},
             line.number(superglue ? "label" : "answer"), line);
}

std::string hellaswag_text(std::string_view text) {
  return replaced(without_brackets(replaced(stripped(text), " [title]", ". ")), "  ", " ");
}

Document hellaswag_document(const TaskLine& line) {
  std::vector<std::string> endings;
  for (const Json& ending : line.list("endings")) {
    check(ending.is_string(), "{}: endings must hold strings, not {}", line.where, ending.dump());
    endings.push_back(hellaswag_text(ending.get<std::string>()));
  }
  const std::string context =
      line.text("activity_label") + ": " + line.text("ctx_a") + " " + capitalized(line.text("ctx_b"));
  return ask(hellaswag_text(context), endings, line.number("label"), line);
}

// The target is all that follows the last space, newlines included.
Document lambada_document(const TaskLine& line) {
  const std::string text = line.text("text");
  const std::size_t space = text.rfind(' ');
  const std::string context = space == text.npos ? "" : text.substr(0, space);
  return ask(context, {space == text.npos ? text : text.substr(space + 1)}, 0, line);
}

Document piqa_document(const TaskLine& line) {
  return ask("Question: " + line.text("goal") + "\nAnswer:", {line.text("sol1"), line.text("sol2")},
             line.number("label"), line);
}

// Partial scoring: each option fills the first blank, and what is scored is the text after it, the same for both.
Document winogrande_document(const TaskLine& line) {
  const std::string sentence = line.text("sentence");
  const std::size_t blank = sentence.find('_');
  check(blank != sentence.npos, "{}: the sentence has no blank, _", line.where);
  const std::string rest = fmt::format(" {}", stripped(std::string_view(sentence).substr(blank + 1)));
  Document document{{}, line.number("answer") - 1};
  check(document.gold == 0 || document.gold == 1, "{}: answer must be 1 or 2, not {}", line.where, document.gold + 1);
  for (const char* option : {"option1", "option2"}) {
    const std::string context = sentence.substr(0, blank) + line.text(option);
    document.choices.push_back({context, rest, code_points(context)});
  }
  return document;
}

}  // namespace grt
