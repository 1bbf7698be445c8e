// Lends the core TensorFlow's own threads for the time of one op.
#ifndef KERAS_STROM_TF_THREADS_H_
#define KERAS_STROM_TF_THREADS_H_

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_strom {

// The pool on which the device's kernels spread their work. The op's thread takes part, so that an
// op ends also where all others are busy.
strom_thread_pool LendThreads(tensorflow::OpKernelContext* context);

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_THREADS_H_
