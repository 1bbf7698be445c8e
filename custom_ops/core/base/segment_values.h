// One number for each segment of a step: its threshold, or what its entries stand for.
#ifndef KERAS_STROM_CORE_BASE_SEGMENT_VALUES_H_
#define KERAS_STROM_CORE_BASE_SEGMENT_VALUES_H_

#include <cstddef>
#include <span>

namespace strom {

// The same for all segments, or one each; those are borrowed.
class SegmentValues {
 public:
  SegmentValues(float all) : all_(all) {}  // NOLINT: a plain threshold is one for all
  explicit SegmentValues(std::span<const float> each) : each_(each) {}

  float operator[](size_t segment) const { return each_.empty() ? all_ : each_[segment]; }

  bool differ() const { return !each_.empty(); }

  // Segments in the same group have the same number by definition, not by chance.
  size_t group(size_t segment) const { return each_.empty() ? 0 : segment; }
  size_t groups() const { return each_.empty() ? 1 : each_.size(); }

 private:
  float all_ = 0;
  std::span<const float> each_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_SEGMENT_VALUES_H_
