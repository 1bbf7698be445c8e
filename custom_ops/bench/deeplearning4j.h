// What Deeplearning4j's gradient sharing does to one update, written anew from its description for
// comparison: the same entries in its two forms. It adds the update to the residual in a pass of
// its own, before either. One thread, none of the atomic operations that its loops need for
// several.
#ifndef KERAS_STROM_BENCH_DEEPLEARNING4J_H_
#define KERAS_STROM_BENCH_DEEPLEARNING4J_H_

#include <cstdint>

namespace strom::bench {

// The sparse form: a pass that counts what reaches the threshold, then one that writes i + 1, or
// -(i + 1) for a negative entry, as int32 and subtracts the threshold. `out` has room for all
// elements. Returns the count.
int64_t EncodeThresholdList(const float* update, float* residual, int64_t size, float threshold,
                            int32_t* out);

// The dense form: 2 bits an element, sixteen elements an int32, whose low half marks the entries
// and whose high half the negative ones. The fourth state, negative but no entry, is half a
// threshold. `out` has room for size / 16 rounded up. Returns the count.
int64_t EncodeTwoBits(const float* update, float* residual, int64_t size, float threshold,
                      int32_t* out);

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_DEEPLEARNING4J_H_
