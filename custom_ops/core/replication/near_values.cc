#include "core/replication/near_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "core/base/bits.h"
#include "core/base/little_endian.h"

namespace strom {

namespace {

using Length = uint32_t;  // of a piece, in bytes

// Instead of a block's exponent, which it is where a value is not finite: the values as they are.
constexpr uint8_t kAsTheyAre = 0xFF;
// Of a block: its unit is a normal float, and so is one over it.
constexpr int kLeastExponent = 24;
constexpr int kMantissaBits = 23;
constexpr int32_t kNearMask = (1 << kNearBits) - 1;
constexpr int kMostBits = kNearBits + 33;  // of one value

int ExponentOf(float value) {
  return static_cast<int>(std::bit_cast<uint32_t>(value) >> kMantissaBits & 0xFF);
}

float FloatOf(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent) << kMantissaBits);
}

// The distance of floats with this exponent, and one over it.
float UnitOf(int exponent) { return FloatOf(exponent - kMantissaBits); }
float ScaleOf(int exponent) { return FloatOf(2 * 127 + kMantissaBits - exponent); }

// The exponent of a block's largest value, from which its unit follows, or kAsTheyAre.
int ExponentOf(std::span<const float> block) {
  int32_t largest = 0;
  for (const float value : block) {
    largest = std::max(largest, std::bit_cast<int32_t>(value) & 0x7FFFFFFF);
  }
  return std::max(largest >> kMantissaBits, kLeastExponent);
}

// A block in units: of each value the multiple next to it towards zero, that as a float, and how
// many bits of the value's mantissa are below.
struct InUnits {
  void Set(size_t i, int32_t multiple, float unit) {
    units[i] = multiple;
    const auto exact = static_cast<float>(multiple);
    bits[i] = std::bit_cast<uint32_t>(exact * unit);
    below[i] = 127 + kMantissaBits - ExponentOf(exact);
  }

  // Room for the values behind the last that make four.
  std::array<int32_t, kNearBlock + 3> units = {};
  std::array<uint32_t, kNearBlock> bits;
  std::array<int32_t, kNearBlock> below;
};

size_t BytesOfLowBits(size_t count) {
  return static_cast<size_t>(BytesOfBits(static_cast<int64_t>(count) * kNearBits));
}

// Four values' low bits are three bytes.
void WriteLowBits(const int32_t* units, size_t count, uint8_t* out) {
  static_assert(4 * kNearBits == 24);
  for (size_t i = 0; i < count; i += 4, out += 3) {
    uint32_t word = 0;
    for (int k = 0; k < 4; ++k) {
      word |= static_cast<uint32_t>(units[i + k] & kNearMask) << (k * kNearBits);
    }
    StoreLittleEndian<uint32_t>(out, word);
  }
}

// The bits of a block, for which there is room at `out` and kBitSlack behind; their bytes.
size_t WriteBlock(std::span<const float> block, int exponent, uint8_t* out) {
  InUnits in;
  const float unit = UnitOf(exponent);
  const float scale = ScaleOf(exponent);
  for (size_t i = 0; i < block.size(); ++i) {
    in.Set(i, static_cast<int32_t>(block[i] * scale), unit);
  }
  WriteLowBits(in.units.data(), block.size(), out);
  out += BytesOfLowBits(block.size());
  BitWriter rest(out);
  int64_t bits = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const auto whole = std::bit_cast<uint32_t>(block[i]);
    uint64_t field = whole ^ in.bits[i];
    int width = in.below[i];
    if (in.units[i] == 0) {
      field = whole == 0 ? 0 : uint64_t{whole} << 1 | 1;
      width = whole == 0 ? 1 : 33;
    }
    rest.Put(field, width);
    bits += width;
  }
  return BytesOfLowBits(block.size()) + static_cast<size_t>(BytesOfBits(bits));
}

// The multiple of the unit that has these low bits and is nearest to `own`.
int32_t NearestUnits(float own, float scale, int32_t low) {
  // Beyond all of the block it is so in any case; neither is a NaN near to anything.
  constexpr float kFar = 1 << 28;
  const float scaled = own * scale;
  const float bounded = scaled > -kFar ? (scaled < kFar ? scaled : kFar) : -kFar;
  const auto units = static_cast<int32_t>(bounded);
  // From the least to the largest number of kNearBits bits with a sign.
  constexpr int kRest = 32 - kNearBits;
  return units + (static_cast<int32_t>(static_cast<uint32_t>(low - units) << kRest) >> kRest);
}

// Reads a block over values that are near to it, from a stream whose kBitSlack bytes behind `end`
// may be read. Where it ends; null = they are not near, as it seems.
const uint8_t* ReadBlock(const uint8_t* stream, const uint8_t* end, int exponent,
                         std::span<float> values) {
  const size_t low_bytes = BytesOfLowBits(values.size());
  if (static_cast<size_t>(end - stream) < low_bytes) return nullptr;
  InUnits in;
  for (size_t i = 0; i < values.size(); i += 4) {
    const auto word = LoadLittleEndian<uint32_t>(stream + i / 4 * 3);
    for (int k = 0; k < 4; ++k) {
      in.units[i + k] = static_cast<int32_t>(word >> (k * kNearBits)) & kNearMask;
    }
  }
  const float unit = UnitOf(exponent);
  const float scale = ScaleOf(exponent);
  for (size_t i = 0; i < values.size(); ++i) {
    in.Set(i, NearestUnits(values[i], scale, in.units[i]), unit);
  }
  // Where a value's other bits lie depends on all before it, and on nothing else.
  stream += low_bytes;
  const int64_t bits = (end - stream) * 8;
  int64_t at = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (at > bits || in.below[i] < 0) return nullptr;
    uint64_t field = ReadBits(stream, at, 33);
    if (in.units[i] != 0) {
      field = in.bits[i] | (field & ((uint64_t{1} << in.below[i]) - 1));
      at += in.below[i];
    } else if ((field & 1) == 0) {
      field = 0;
      ++at;
    } else {
      field >>= 1;
      at += 33;
    }
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(field));
  }
  return at <= bits ? stream + BytesOfBits(at) : nullptr;
}

// Reads a piece, kBitSlack bytes behind which may be read. False: its values are not near, as it
// seems.
bool ReadNear(Bytes piece, std::span<float> values) {
  const uint8_t* at = piece.data();
  const uint8_t* const end = at + piece.size();
  while (!values.empty()) {
    const std::span<float> block = values.first(std::min(values.size(), kNearBlock));
    values = values.subspan(block.size());
    if (at == end) return false;
    const uint8_t exponent = *at++;
    if (exponent == kAsTheyAre) {
      if (static_cast<size_t>(end - at) < block.size_bytes()) return false;
      std::memcpy(block.data(), at, block.size_bytes());
      at += block.size_bytes();
    } else {
      at = exponent < kLeastExponent ? nullptr : ReadBlock(at, end, exponent, block);
      if (at == nullptr) return false;
    }
  }
  return at == end;
}

size_t BlocksOf(size_t count) { return (count + kNearBlock - 1) / kNearBlock; }

}  // namespace

void AppendNear(std::span<const float> values, std::vector<uint8_t>* bytes) {
  const size_t begin = bytes->size();
  bytes->resize(begin + sizeof(Length));
  std::vector<uint8_t> room(BytesOfBits(kNearBlock * kMostBits) + kBitSlack);
  for (size_t at = 0; at < values.size(); at += kNearBlock) {
    const auto block = values.subspan(at, std::min(kNearBlock, values.size() - at));
    int exponent = ExponentOf(block);
    Bytes content = AsBytes(block);
    if (exponent != kAsTheyAre) {
      const size_t size = WriteBlock(block, exponent, room.data());
      if (size < content.size()) {
        content = Bytes(room).first(size);
      } else {
        exponent = kAsTheyAre;
      }
    }
    bytes->push_back(static_cast<uint8_t>(exponent));
    bytes->insert(bytes->end(), content.begin(), content.end());
  }
  const size_t length = bytes->size() - begin - sizeof(Length);
  STROM_CHECK(length <= std::numeric_limits<Length>::max());
  StoreLittleEndian<Length>(bytes->data() + begin, static_cast<Length>(length));
}

Status NearPieceTaker::Fill(const Place& place, Bytes* bytes, bool* is_full) {
  size_t wanted = sizeof(Length);
  if (piece_.size() >= sizeof(Length)) {
    const size_t length = LoadLittleEndian<Length>(piece_.data());
    const size_t most = BlocksOf(place.values.size()) + place.values.size_bytes();
    if (length == 0 || length > most) {
      return {Code::kCorrupt, "a piece of near values that is longer than the values, or empty"};
    }
    wanted += length;
  }
  const Bytes next = bytes->first(std::min(bytes->size(), wanted - piece_.size()));
  piece_.insert(piece_.end(), next.begin(), next.end());
  *bytes = bytes->subspan(next.size());
  *is_full = wanted > sizeof(Length) && piece_.size() == wanted;
  if (!*is_full) return {};
  piece_.resize(wanted + kBitSlack);
  const Bytes content = Bytes(piece_).subspan(sizeof(Length), wanted - sizeof(Length));
  if (!ReadNear(content, place.values) || !HasItsHash(place)) are_near_ = false;
  piece_.clear();
  return {};
}

}  // namespace strom
