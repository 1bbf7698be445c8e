// Writes one flat JSON object; reading JSON is Python's affair.
#ifndef KERAS_STROM_CORE_JSON_H_
#define KERAS_STROM_CORE_JSON_H_

#include <concepts>
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
    for (const char c : text) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return quoted + "\"";
  }

  std::string fields_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_JSON_H_
