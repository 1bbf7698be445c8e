// StromPenalty: the pull towards a joint model as a part of the gradients, before the optimizer.
#include <cstring>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/threads.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class PenaltyOp : public OpKernel {
 public:
  explicit PenaltyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context, "model"));
    OP_REQUIRES_OK(context, FirstInput(*this, "gradients", &gradients_input_));
  }

  void Compute(OpKernelContext* context) override {
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, attributes_));
    std::vector<strom_segment> segments;
    for (int i = 0; i < attributes_.variables; ++i) {
      const Tensor& gradient = context->input(gradients_input_ + i);
      const Tensor& variable = *variables[static_cast<size_t>(i)].tensor();
      OP_REQUIRES(context, gradient.NumElements() == variable.NumElements(),
                  absl::InvalidArgumentError("a gradient has not the size of its variable"));
      Tensor* penalized = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {gradients_input_ + i}, i, gradient.shape(), &penalized));
      if (penalized->data() != gradient.data()) {
        std::memcpy(penalized->data(), gradient.data(), gradient.TotalBytes());
      }
      strom_segment segment{};
      segment.offset = attributes_.offsets[static_cast<size_t>(i)];
      segment.size = variable.NumElements();
      segment.before = static_cast<const float*>(variable.data());
      segment.value = static_cast<float*>(penalized->data());
      segments.push_back(segment);
    }
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_penalize(attributes_.replica, segments.data(),
                                                static_cast<int64_t>(segments.size()), &threads);
    OP_REQUIRES_OK(context, ToStatus(code, strom_last_error()));
  }

 private:
  ReplicaAttributes attributes_;
  int gradients_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromPenalty").Device(tensorflow::DEVICE_CPU), PenaltyOp);

}  // namespace keras_strom
