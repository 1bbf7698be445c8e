// The latest values of a quantity, for their median.
#ifndef KERAS_STROM_CORE_BASE_RECENT_H_
#define KERAS_STROM_CORE_BASE_RECENT_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

namespace strom {

template <typename Number>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}

  void Add(Number value) {
    values_.push_back(value);
    if (values_.size() > most_) values_.pop_front();
  }
  bool empty() const { return values_.empty(); }
  // Of an even number the upper one of the two in the middle. Not of none.
  Number Median() const {
    std::vector<Number> sorted(values_.begin(), values_.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }

 private:
  size_t most_;
  std::deque<Number> values_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_RECENT_H_
