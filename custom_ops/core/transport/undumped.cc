#include "core/transport/undumped.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace strom {
namespace {

// A block is a power of two, its size in front of what is given out, which stays aligned so.
constexpr size_t kBlockHeaderBytes = 16;
constexpr size_t kLeastBlock = 32;
constexpr size_t kMostBlock = size_t{1} << 15;  // larger ones are mapped by themselves
constexpr size_t kChunkBytes = size_t{1} << 18;

uint8_t* Map(size_t bytes) {
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  madvise(pages, bytes, MADV_DONTDUMP);
  return static_cast<uint8_t*>(pages);
}

// Blocks that were freed, by size, and what is left of the newest chunk; no chunk is given back.
class Heap {
 public:
  // It is never destroyed: OpenSSL frees what it has to the very end of a process.
  static Heap& Get() {
    static Heap* const heap = new Heap;
    return *heap;
  }

  uint8_t* Take(size_t bytes) {
    if (bytes > kMostBlock) return Map(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    uint8_t*& first = FreeOf(bytes);
    if (first != nullptr) {
      uint8_t* const block = first;
      std::memcpy(&first, block, sizeof(first));
      return block;
    }
    if (left_ < bytes) {
      next_ = Map(kChunkBytes);
      left_ = next_ == nullptr ? 0 : kChunkBytes;
      if (next_ == nullptr) return nullptr;
    }
    left_ -= bytes;
    return std::exchange(next_, next_ + bytes);
  }

  void Give(uint8_t* block, size_t bytes) {
    if (bytes > kMostBlock) {
      munmap(block, bytes);
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    uint8_t*& first = FreeOf(bytes);
    std::memcpy(block, &first, sizeof(first));
    first = block;
  }

 private:
  Heap() {
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                   [] { Get().mutex_.unlock(); });
  }
  uint8_t*& FreeOf(size_t bytes) { return free_[static_cast<size_t>(std::countr_zero(bytes))]; }

  std::mutex mutex_;
  std::array<uint8_t*, std::bit_width(kMostBlock)> free_{};
  uint8_t* next_ = nullptr;
  size_t left_ = 0;
};

size_t SizeOf(const uint8_t* block) {
  size_t bytes;
  std::memcpy(&bytes, block, sizeof(bytes));
  return bytes;
}

}  // namespace

void* AllocateUndumped(size_t bytes) {
  if (bytes > SIZE_MAX / 4) return nullptr;
  const size_t size = std::bit_ceil(std::max(bytes + kBlockHeaderBytes, kLeastBlock));
  uint8_t* const block = Heap::Get().Take(size);
  if (block == nullptr) return nullptr;
  std::memcpy(block, &size, sizeof(size));
  return block + kBlockHeaderBytes;
}

void* ReallocateUndumped(void* block, size_t bytes) {
  if (block == nullptr) return AllocateUndumped(bytes);
  const size_t room = SizeOf(static_cast<uint8_t*>(block) - kBlockHeaderBytes) - kBlockHeaderBytes;
  if (bytes <= room) return block;
  void* const other = AllocateUndumped(bytes);
  if (other == nullptr) return nullptr;
  std::memcpy(other, block, room);
  FreeUndumped(block);
  return other;
}

void FreeUndumped(void* block) {
  if (block == nullptr) return;
  uint8_t* const whole = static_cast<uint8_t*>(block) - kBlockHeaderBytes;
  Heap::Get().Give(whole, SizeOf(whole));
}

}  // namespace strom
