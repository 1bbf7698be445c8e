#include "core/transport/bundle.h"

#include <algorithm>
#include <vector>

#include "core/base/little_endian.h"

namespace strom {

size_t CountBundled(const std::deque<Buffer>& queue, size_t bytes) {
  size_t count = 0;
  for (const Buffer& message : queue) {
    const size_t size = kBundledFieldBytes + message->size();
    if (size > bytes) break;
    bytes -= size;
    ++count;
  }
  return count;
}

Buffer MakeBundle(const std::deque<Buffer>& queue, size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += kBundledFieldBytes + queue[i]->size();
  std::vector<uint8_t> bundle(size);
  uint8_t* at = bundle.data();
  for (size_t i = 0; i < count; ++i) {
    StoreLittleEndian<uint16_t>(at, static_cast<uint16_t>(queue[i]->size()));
    at = std::copy(queue[i]->begin(), queue[i]->end(), at + kBundledFieldBytes);
  }
  return MakeBuffer(std::move(bundle));
}

std::optional<Bytes> NextBundled(Bytes* bundle) {
  if (bundle->size() < kBundledFieldBytes) return std::nullopt;
  const size_t size = LoadLittleEndian<uint16_t>(bundle->data());
  if (size == 0 || size > bundle->size() - kBundledFieldBytes) return std::nullopt;
  const Bytes message = bundle->subspan(kBundledFieldBytes, size);
  *bundle = bundle->subspan(kBundledFieldBytes + size);
  return message;
}

bool IsBundle(Bytes bundle) {
  if (bundle.empty()) return false;
  while (!bundle.empty()) {
    if (!NextBundled(&bundle)) return false;
  }
  return true;
}

}  // namespace strom
