// Texts that others have written, cut to what a message or a log takes.
#ifndef KERAS_STROM_CORE_BASE_TEXT_H_
#define KERAS_STROM_CORE_BASE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace strom {

// The first `most_bytes` of UTF-8 at most, without half a character at their end.
inline std::string_view CutText(std::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  size_t size = most_bytes;
  while (size > 0 && (static_cast<uint8_t>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_TEXT_H_
