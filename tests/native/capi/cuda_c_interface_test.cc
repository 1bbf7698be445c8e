// capi/strom_cuda.h, with kernels in the emulation. What it gives is judged in
// tests/codec/test_cuda.py.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "capi/strom_cuda.h"

namespace {

// Threads of TensorFlow's may be in a step while the process ends.
TEST(CudaInterface, ACodecIsThereUntilTheProcessHasEnded) {
  static strom_handle codec = 0;
  EXPECT_EXIT(
      {
        // Called once everything static that comes to be after this line is gone.
        std::atexit([] { _exit(strom_cuda_codec_close(codec) == STROM_OK ? 0 : 1); });
        if (strom_cuda_codec_create(1 << 20, nullptr, &codec) != STROM_OK) _exit(2);
        std::exit(3);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
