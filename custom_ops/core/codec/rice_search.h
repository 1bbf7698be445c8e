// The parts of core/codec/rice.h that its implementations share: the search for k and the checks
// that do not depend on how bits are counted.
#ifndef KERAS_STROM_CORE_CODEC_RICE_SEARCH_H_
#define KERAS_STROM_CORE_CODEC_RICE_SEARCH_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/codec/rice.h"

namespace strom {

// Sums of the gaps' high parts, the zeros of the unary stream, for three k in a row. Each stays
// below the span's length.
struct HighParts {
  int64_t lower;   // k - 1; not looked at for k = 0
  int64_t here;    // k
  int64_t higher;  // k + 1
};

// The elements between the entries of a span, of which there is at least one.
inline int64_t SumOfGaps(Codes codes, uint32_t origin) {
  return int64_t{codes.back() >> 1} - origin - static_cast<int64_t>(codes.size() - 1);
}

// The best k for geometrically distributed gaps of mean `mean` (the closed form of
// docs/internals/codec.md).
inline int GeometricK(double mean) {
  if (mean <= 0) return 0;
  return std::max(0, static_cast<int>(std::ceil(std::log2(0.4812 / std::log1p(1 / mean)))));
}

// high_parts(k) gives the HighParts around k. One more low bit costs a bit an entry and saves the
// difference of the high parts. That saving never grows with k, so the first k that does not pay is
// the best one, wherever the search starts.
template <typename SumHighParts>
RiceChoice SearchK(Codes codes, uint32_t origin, int least_k, SumHighParts high_parts) {
  const auto entries = static_cast<int64_t>(codes.size());
  const auto mean = static_cast<double>(SumOfGaps(codes, origin)) / static_cast<double>(entries);
  int k = std::max(least_k, GeometricK(mean));
  for (;;) {
    const HighParts high = high_parts(k);
    if (k > least_k && high.lower - high.here <= entries) {
      --k;
    } else if (high.here - high.higher > entries) {
      ++k;
    } else {
      return {k, FieldBytes(entries, k) + BytesOfBits(entries + high.here)};
    }
  }
}

// What the reading of a payload gives, by any means.
struct RiceSums {
  int64_t ones;       // in the unary stream
  int64_t low_parts;  // sum over the fields
};

// RiceCoder::check but for the counting: sums(payload, count, k) gives the RiceSums and is called
// only if the payload has room for both streams.
template <typename Sum>
const char* CheckPayload(Bytes payload, int64_t count, int k, int64_t elements, Sum sums) {
  const int64_t fields = FieldBytes(count, k);
  const int64_t unary_bytes = static_cast<int64_t>(payload.size()) - fields;
  if (unary_bytes < BytesOfBits(count)) return "the payload is too short for its entries";
  if (payload.back() == 0) return "the unary stream ends in an empty byte";
  const RiceSums sum = sums(payload, count, k);
  if (sum.ones != count) return "the unary stream does not hold one bit for each entry";
  const int padding = static_cast<int>(8 * fields - count * (k + 1));
  if (payload[static_cast<size_t>(fields - 1)] >> (8 - padding) != 0) {
    return "padding bits are not zero";
  }
  const int64_t last_one = 8 * unary_bytes - 1 - std::countl_zero(payload.back());
  const int64_t high_parts = last_one - (count - 1);
  // high_parts < 2^35 (a payload is shorter than 4 GiB) and k <= 21, so nothing here overflows.
  const int64_t last_index = (high_parts << k) + sum.low_parts + count - 1;
  if (last_index >= elements) return "the last entry lies outside its span";
  return nullptr;
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_RICE_SEARCH_H_
