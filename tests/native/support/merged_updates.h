// Updates with a few entries, and such as are merged of others.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_MERGED_UPDATES_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_MERGED_UPDATES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/codec/entries.h"
#include "core/codec/message_sum.h"
#include "core/codec/message_writer.h"
#include "core/replication/merged_update.h"
#include "core/replication/update.h"

namespace strom {

using Signs = std::map<uint32_t, int>;  // flat index -> +1 or -1

// Adds +-value to those elements; MessageCodec sums it where the value is below kSummableBelow.
inline Buffer UpdateWith(const UpdateId& id, const Layout& layout, const Signs& signs = {{0, 1}},
                         float value = 1, uint64_t iteration = 0) {
  EntryList entries;
  for (const auto& [index, sign] : signs) {
    *entries.Reserve(1) = index << 1 | (sign < 0 ? 1u : 0u);
    entries.Append(0, 1);
  }
  const MessageFields fields{value, value, static_cast<int64_t>(layout.size), 0};
  auto update = std::move(WriteEntries(fields, entries, kMaxMessageBytes, kUpdateHeaderBytes)[0]);
  WriteUpdateHeader({id, iteration, layout, kLastPartFlag}, update);
  return MakeBuffer(std::move(update));
}

// What a worker passes up of these, or a master publishes under `id`.
inline Buffer MergedOf(const std::vector<Buffer>& updates, const Layout& layout, UpdateId id = {},
                       const UpdateCodec& codec = MessageCodec()) {
  Merger merger;
  for (const Buffer& update : updates) EXPECT_TRUE(merger.Add(update));
  return merger.Write(id, layout, codec);
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_MERGED_UPDATES_H_
