// Writes and reads lists of fields, little-endian, without padding. A type that lists its fields
// once (`Fields(archive)`) is thereby encoded and parsed alike.
//
// Integers and doubles have their width; strings, lists and vectors a u32 count before them.
#ifndef KERAS_STROM_CORE_BASE_ARCHIVE_H_
#define KERAS_STROM_CORE_BASE_ARCHIVE_H_

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/little_endian.h"
#include "core/base/types.h"

namespace strom {

class FieldWriter {
 public:
  template <typename... Field>
  void operator()(const Field&... fields) {
    (Write(fields), ...);
  }
  std::vector<uint8_t> Take() { return std::move(bytes_); }

 private:
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void Write(Number value) {
    uint8_t field[sizeof(Number)];
    StoreLittleEndian<Number>(field, value);
    Append(field);
  }
  template <size_t size>
  void Write(const std::array<uint8_t, size>& token) {
    Append(token);
  }
  void Write(const std::string& text) {
    Write(static_cast<uint32_t>(text.size()));
    Append({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  void Write(const VersionVector& vector) {
    Write(static_cast<uint32_t>(vector.size()));
    for (const auto& [origin, counter] : vector) (*this)(origin, counter);
  }
  void Write(const std::vector<UpdateId>& ids) {
    Write(static_cast<uint32_t>(ids.size()));
    for (const UpdateId& id : ids) (*this)(id.origin, id.counter);
  }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void Write(const std::vector<Number>& numbers) {
    Write(static_cast<uint32_t>(numbers.size()));
    for (const Number number : numbers) Write(number);
  }
  // A list of what lists its own fields.
  template <typename Item>
    requires requires(Item item, FieldWriter& writer) { item.Fields(writer); }
  void Write(const std::vector<Item>& items) {
    Write(static_cast<uint32_t>(items.size()));
    for (Item item : items) item.Fields(*this);
  }
  // Not inlined: GCC 12 sees array bounds violated where a vector's growth is inlined repeatedly.
  [[gnu::noinline]] void Append(Bytes field) {
    bytes_.insert(bytes_.end(), field.begin(), field.end());
  }

  std::vector<uint8_t> bytes_;
};

// Reads what is there and remembers whether anything was missing; every count is checked against
// the bytes that are left before anything is allocated.
class FieldReader {
 public:
  explicit FieldReader(Bytes bytes) : left_(bytes) {}

  template <typename... Field>
  void operator()(Field&... fields) {
    (Read(fields), ...);
  }
  // Every field was there.
  bool ok() const { return ok_; }
  Bytes left() const { return left_; }

 private:
  Bytes TakeBytes(size_t size) {
    ok_ = ok_ && size <= left_.size();
    if (!ok_) return {};
    Bytes taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void Read(Number& value) {
    Bytes bytes = TakeBytes(sizeof(Number));
    if (ok_) value = LoadLittleEndian<Number>(bytes.data());
  }
  template <size_t size>
  void Read(std::array<uint8_t, size>& token) {
    Bytes bytes = TakeBytes(size);
    if (ok_) std::copy(bytes.begin(), bytes.end(), token.begin());
  }
  void Read(std::string& text) {
    uint32_t size = 0;
    Read(size);
    Bytes bytes = TakeBytes(size);
    text.assign(bytes.begin(), bytes.end());
  }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void Read(std::vector<Number>& numbers) {
    uint32_t count = 0;
    Read(count);
    ok_ = ok_ && count <= left_.size() / sizeof(Number);
    numbers.resize(ok_ ? count : 0);
    for (Number& number : numbers) Read(number);
  }
  template <typename Item>
    requires requires(Item item, FieldReader& reader) { item.Fields(reader); }
  void Read(std::vector<Item>& items) {
    items.clear();
    uint32_t count = 0;
    Read(count);
    for (; ok_ && count > 0; --count) items.emplace_back().Fields(*this);
    if (!ok_) items.clear();
  }
  uint32_t ReadPairs() {
    uint32_t count = 0;
    Read(count);
    ok_ = ok_ && count <= left_.size() / 16;
    return ok_ ? count : 0;
  }
  void Read(VersionVector& vector) {
    vector.clear();
    uint32_t n = ReadPairs();
    ok_ = ok_ && n <= kMaxOrigins;
    for (; ok_ && n > 0; --n) {
      uint64_t origin = 0, counter = 0;
      (*this)(origin, counter);
      // Ascending, so that a vector has one encoding.
      ok_ = ok_ && (vector.empty() || vector.back().first < origin);
      vector.try_emplace(origin, counter);
    }
  }
  void Read(std::vector<UpdateId>& ids) {
    ids.resize(ReadPairs());
    for (UpdateId& id : ids) (*this)(id.origin, id.counter);
  }

  Bytes left_;
  bool ok_ = true;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_ARCHIVE_H_
