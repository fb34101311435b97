// Names found in files, made fit for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace halflin {

// `text` in single quotes: control characters and bytes that are no UTF-8 as \xNN, at most about 80
// bytes of it.
std::string in_quotes(std::string_view text);

}  // namespace halflin
