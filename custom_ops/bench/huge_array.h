// Memory as core/step/residual_store.h takes it: huge pages, every one of them written before it is
// measured.
#ifndef KERAS_STROM_BENCH_HUGE_ARRAY_H_
#define KERAS_STROM_BENCH_HUGE_ARRAY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace strom::bench {

// `size` zeros of a plain type, at a multiple of the huge page's size.
template <typename T>
class HugeArray {
 public:
  explicit HugeArray(int64_t size) : size_(size) {
    const size_t bytes =
        (static_cast<size_t>(size) * sizeof(T) + kHugePage - 1) / kHugePage * kHugePage;
    values_.reset(static_cast<T*>(std::aligned_alloc(kHugePage, bytes)));
    if (values_ == nullptr) throw std::bad_alloc();
    (void)madvise(values_.get(), bytes, MADV_HUGEPAGE);
    std::memset(values_.get(), 0, bytes);
  }

  T* data() const { return values_.get(); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return values_.get()[i]; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  struct Free {
    void operator()(T* values) const { std::free(values); }
  };

  int64_t size_;
  std::unique_ptr<T, Free> values_;
};

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_HUGE_ARRAY_H_
