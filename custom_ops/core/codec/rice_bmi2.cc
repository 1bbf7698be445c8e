// Split Rice for AVX2 and BMI2: pext and pdep pack and unpack eight fields at a time.
#include "core/base/processor.h"

#if defined(STROM_X86)

#define STROM_CODER_TARGET STROM_TARGET_AVX2

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstring>

#include "core/codec/rice_eights.h"
#include "core/codec/rice_processors.h"

namespace strom {
namespace {

class Bmi2Packing {
 public:
  explicit Bmi2Packing(int width) : width_(width), masks_(FieldMasks(width)) {}

  STROM_INLINE void Put(const uint32_t* fields, uint8_t* out) const {
    const auto four = [&](size_t i) STROM_CODER_TARGET {
      std::array<uint16_t, 4> narrow;
      for (size_t j = 0; j < 4; ++j) narrow[j] = static_cast<uint16_t>(fields[i + j]);
      return _pext_u64(std::bit_cast<uint64_t>(narrow), masks_);
    };
    const unsigned __int128 eight =
        static_cast<unsigned __int128>(four(4)) << (4 * width_) | four(0);
    std::memcpy(out, &eight, sizeof(eight));
  }

  STROM_INLINE std::array<uint64_t, 2> Get(const uint8_t* packed) const {
    const int bits = 4 * width_;
    const auto first = LoadLittleEndian<uint64_t>(packed);
    const auto second = LoadLittleEndian<uint64_t>(packed + (bits >> 3)) >> (bits & 7);
    return {_pdep_u64(first, masks_), _pdep_u64(second, masks_)};
  }

 private:
  int width_;
  uint64_t masks_;
};

}  // namespace

RiceCoder RiceBmi2() { return CoderOfEights<Bmi2Packing>::Coder("BMI2"); }

}  // namespace strom

#endif  // STROM_X86
