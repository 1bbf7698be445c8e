// What the readers of core/codec/bitmap4.h share among themselves.
#ifndef KERAS_STROM_CORE_CODEC_BITMAP4_READERS_H_
#define KERAS_STROM_CORE_CODEC_BITMAP4_READERS_H_

#include "core/base/processor.h"
#include "core/codec/bitmap4.h"

namespace strom {

// The oracle's Bitmap4Reader::add; also the ends of the others.
void AddBitmap4Scalar(const uint8_t* payload, int64_t first, int64_t last,
                      const Bitmap4Values& adds, float* values);

#if defined(STROM_X86)
Bitmap4Reader Bitmap4ReaderAvx2();
#elif defined(STROM_NEON)
Bitmap4Reader Bitmap4ReaderNeon();
#endif

}  // namespace strom

#endif  // KERAS_STROM_CORE_CODEC_BITMAP4_READERS_H_
