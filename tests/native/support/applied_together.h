// Several messages at once give the bits of one after the other.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_APPLIED_TOGETHER_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_APPLIED_TOGETHER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/codec/message.h"
#include "own_threads.h"

namespace strom {

// A part of the parameters.
struct Stretch {
  size_t first = 0;
  size_t size = 0;
};

// What `add(ranges)` makes of those stretches of `values`, and how many entries it has left out.
template <typename Add>
std::pair<std::vector<float>, int64_t> Applied(std::vector<float> values,
                                               std::span<const Stretch> stretches, Add add) {
  std::vector<ParameterRange> ranges;
  for (const Stretch& stretch : stretches) {
    ranges.push_back({static_cast<int64_t>(stretch.first),
                      std::span(values).subspan(stretch.first, stretch.size)});
  }
  const int64_t skipped = add(std::span<const ParameterRange>(ranges));
  return {std::move(values), skipped};
}

inline void ExpectTogetherAsOneByOne(std::span<const ParsedMessage> messages,
                                     const std::vector<float>& start,
                                     std::span<const Stretch> stretches) {
  const auto one_by_one = Applied(start, stretches, [&](auto ranges) {
    int64_t skipped = 0;
    for (const ParsedMessage& message : messages) skipped += ApplyMessage(message, ranges);
    return skipped;
  });
  for (const Parallel& parallel : {Parallel{}, OwnThreads(4)}) {
    EXPECT_EQ(Applied(start, stretches,
                      [&](auto ranges) { return ApplyMessages(messages, ranges, parallel); }),
              one_by_one);
  }
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_APPLIED_TOGETHER_H_
