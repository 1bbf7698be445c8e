// Writes one flat JSON object; reading JSON is Python's affair. Texts may come from a peer: what is
// not UTF-8 in them becomes question marks, so that the whole stays readable.
#ifndef KERAS_STROM_CORE_BASE_JSON_H_
#define KERAS_STROM_CORE_BASE_JSON_H_

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <string>
#include <vector>

namespace strom {

class JsonObject {
 public:
  template <std::integral Number>
  JsonObject& Add(const char* name, Number value) {
    if constexpr (std::same_as<Number, bool>) return AddRaw(name, value ? "true" : "false");
    return AddRaw(name, std::to_string(value));
  }
  JsonObject& Add(const char* name, const std::string& text) { return AddRaw(name, Quote(text)); }
  JsonObject& Add(const char* name, const std::vector<std::string>& texts) {
    std::string list;
    for (const std::string& text : texts) list += (list.empty() ? "" : ", ") + Quote(text);
    return AddRaw(name, "[" + list + "]");
  }
  // `json` is already JSON.
  JsonObject& AddRaw(const char* name, const std::string& json) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + json;
    return *this;
  }
  std::string Text() const { return "{" + fields_ + "}"; }

 private:
  static std::string Quote(const std::string& text) {
    std::string quoted = "\"";
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = CharacterBytes(text, at);
      const char c = text[at];
      if (c == '"' || c == '\\') quoted += '\\';
      if (bytes == 0) {
        quoted += '?';
      } else if (static_cast<unsigned char>(c) < 0x20) {
        quoted += ' ';
      } else {
        quoted.append(text, at, bytes);
      }
      at += std::max<size_t>(bytes, 1);
    }
    return quoted + "\"";
  }

  // How long the UTF-8 character at `at` is; 0 where there is none (RFC 3629: no overlong forms, no
  // surrogates, nothing over U+10FFFF).
  static size_t CharacterBytes(const std::string& text, size_t at) {
    const auto byte = [&](size_t i) {
      return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    const size_t size = first >= 0xc2 && first < 0xe0   ? 2
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
    for (size_t i = 1; i < size; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return 0;
    }
    const unsigned second = byte(1);
    const bool refused = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                         (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
    return refused ? 0 : size;
  }

  std::string fields_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_JSON_H_
