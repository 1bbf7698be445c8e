#include "core/step/residual_store.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace strom {
namespace {

constexpr size_t kChunkBytes = static_cast<size_t>(kChunk) * sizeof(float);
constexpr size_t kHugePage = size_t{2} << 20;

// Zeros at a multiple of the huge page's size; the kernel gives pages as they are written.
float* MapChunk() {
  void* const mapped = mmap(nullptr, kChunkBytes + kHugePage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const start = static_cast<char*>(mapped);
  const size_t before = -reinterpret_cast<uintptr_t>(start) % kHugePage;
  if (before > 0) munmap(start, before);
  if (before < kHugePage) munmap(start + before + kChunkBytes, kHugePage - before);
  // A refusal costs speed only.
  (void)madvise(start + before, kChunkBytes, MADV_HUGEPAGE);
  return reinterpret_cast<float*>(start + before);
}

}  // namespace

ResidualStore::~ResidualStore() { Clear(); }

void ResidualStore::Clear() {
  for (float* chunk : chunks_) {
    if (chunk != nullptr) munmap(chunk, kChunkBytes);
  }
  chunks_.clear();
}

float* ResidualStore::Touch(int64_t index) {
  const auto i = static_cast<size_t>(index);
  if (i >= chunks_.size()) chunks_.resize(i + 1, nullptr);
  if (chunks_[i] == nullptr) chunks_[i] = MapChunk();
  return chunks_[i];
}

}  // namespace strom
