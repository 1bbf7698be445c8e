// The memory of one worker's residuals: zero until touched, in huge pages (0.26 against 0.40 ns an
// element), and never moved, so that growing the flat space copies nothing.
#ifndef KERAS_STROM_CORE_STEP_RESIDUAL_STORE_H_
#define KERAS_STROM_CORE_STEP_RESIDUAL_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/codec/entries.h"

namespace strom {

// Cuts flat elements [offset, offset + size) at the chunks' borders and calls
// visit(chunk, index in the chunk, offset in the range, elements) in ascending order.
template <typename Visit>
void ForEachChunk(int64_t offset, int64_t size, Visit visit) {
  for (int64_t done = 0; done < size;) {
    const int64_t index = (offset + done) % kChunk;
    const int64_t elements = std::min(size - done, kChunk - index);
    visit((offset + done) / kChunk, index, done, elements);
    done += elements;
  }
}

class ResidualStore {
 public:
  ResidualStore() = default;
  ~ResidualStore();
  ResidualStore(const ResidualStore&) = delete;
  ResidualStore& operator=(const ResidualStore&) = delete;

  // The kChunk residuals of chunk `index`, zeros on first touch. Throws std::bad_alloc.
  float* Touch(int64_t index);

  // The same, or null where nothing was touched: all of it is zero.
  float* Find(int64_t index) const {
    return index < static_cast<int64_t>(chunks_.size()) ? chunks_[static_cast<size_t>(index)]
                                                        : nullptr;
  }

  // All residuals are zero again, and their memory is given back.
  void Clear();

 private:
  std::vector<float*> chunks_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_RESIDUAL_STORE_H_
