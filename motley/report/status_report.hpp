// What a running deployment does, for people: of what its server answers to GET /plan, which is not believed before it
// is read.
#pragma once

#include <string>

#include "motley/base/value.hpp"

namespace motley {

// Of a server's answer. They throw a peer error where it is not there or of another kind.
const Value& answer_field(const Value& answer, const char* name);
std::string answer_text(const Value& answer, const char* name);  // can be shown
double answer_number(const Value& answer, const char* name);
const Value::Array& answer_list(const Value& answer, const char* name);

std::string status_report(const Value& status);

// What each loss would cost (loss_impacts_value()), as a table; `tokens_per_s` is the plan's with all that there is.
// Empty where there are none.
std::string losses_report(const Value& losses, double tokens_per_s);

}  // namespace motley
