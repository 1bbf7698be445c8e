// Updates without an entry, for what depends on their names alone.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_EMPTY_UPDATE_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_EMPTY_UPDATE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "core/codec/message_writer.h"
#include "core/replication/update.h"

namespace strom {

// Of a model of `size` parameters; room for an update's header comes first.
inline std::vector<uint8_t> EmptyMessage(uint64_t size) {
  const MessageFields fields{1e-3f, 1e-3f, static_cast<int64_t>(size), 0};
  return std::move(WriteEntries(fields, {}, kMaxMessageBytes, kUpdateHeaderBytes)[0]);
}

inline Buffer EmptyUpdate(const UpdateId& id, const Layout& layout) {
  std::vector<uint8_t> update = EmptyMessage(layout.size);
  WriteUpdateHeader({id, 0, layout, kLastPartFlag}, update);
  return MakeBuffer(std::move(update));
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_EMPTY_UPDATE_H_
