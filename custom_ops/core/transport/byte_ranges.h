// Which bytes of a message have arrived: disjoint ranges in ascending order. Fragments may overlap,
// because a sender cuts what it resends anew when the path has become narrower.
#ifndef KERAS_STROM_CORE_TRANSPORT_BYTE_RANGES_H_
#define KERAS_STROM_CORE_TRANSPORT_BYTE_RANGES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace strom {

class ByteRanges {
 public:
  // Adds [begin, end), begin < end.
  void Add(uint32_t begin, uint32_t end) {
    if (!ranges_.empty() && ranges_.back().end == begin) {  // the next fragment, as nearly always
      ranges_.back().end = end;
      return;
    }
    auto first = std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                                  [](const Range& range, uint32_t at) { return range.end < at; });
    auto last = first;  // [first, last) touch the new range and become part of it
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    ranges_.insert(ranges_.erase(first, last), Range{begin, end});
  }

  // True when everything in [0, size) is here.
  bool Covers(uint32_t size) const {
    return ranges_.size() == 1 && ranges_[0].begin == 0 && ranges_[0].end >= size;
  }
  size_t count() const { return ranges_.size(); }

 private:
  struct Range {
    uint32_t begin, end;
  };
  std::vector<Range> ranges_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_BYTE_RANGES_H_
