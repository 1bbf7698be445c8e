// The thresholds that workers choose where updates are merged: four to each power of two, so that
// what different workers send often has the same value, and the same entry of two is one of twice
// the value (core/codec/message_sum.h).
//
// The significands are those of 2^0, 2^1/4, 2^1/2 and 2^3/4 in the 8 bits that a table of values
// has room for, so thresholds of a model and of single variables lie on the same grid.
#ifndef KERAS_STROM_CORE_CODEC_THRESHOLD_GRID_H_
#define KERAS_STROM_CORE_CODEC_THRESHOLD_GRID_H_

namespace strom {

// The grid's nearest threshold, by ratio: `threshold`, which is positive and a normal number, times
// 0.91 to 1.1.
float OnGrid(float threshold);

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_THRESHOLD_GRID_H_
