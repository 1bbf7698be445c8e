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

  // On a GPU, too, it works on the host, where others should not have to queue behind it.
  bool IsExpensive() override { return true; }

  void Compute(OpKernelContext* context) override {
    LockedVariables variables(context);
    OP_REQUIRES_OK(context, variables.Lock(attributes_));
    HostCopies& copies = variables.copies();
    std::vector<Tensor*> penalized(variables.size());
    std::vector<Tensor> values(variables.size());  // of the gradients, in the host's memory
    for (size_t i = 0; i < variables.size(); ++i) {
      const int input = gradients_input_ + static_cast<int>(i);
      const Tensor& gradient = context->input(input);
      OP_REQUIRES(context, gradient.NumElements() == variables.placed(i).NumElements(),
                  absl::InvalidArgumentError("a gradient has not the size of its variable"));
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {input}, static_cast<int>(i), gradient.shape(), &penalized[i]));
      if (copies.on_device()) {
        OP_REQUIRES_OK(context, copies.Fetch(gradient, &values[i]));
        OP_REQUIRES_OK(context, variables.Fetch(i));
      } else if (penalized[i]->data() != gradient.data()) {
        std::memcpy(penalized[i]->data(), gradient.data(), gradient.TotalBytes());
      }
    }
    OP_REQUIRES_OK(context, variables.AwaitFetched());
    std::vector<strom_segment> segments;
    for (size_t i = 0; i < variables.size(); ++i) {
      const Tensor& variable = *variables.tensor(i);
      Tensor* const value = copies.on_device() ? &values[i] : penalized[i];
      strom_segment segment{};
      segment.offset = attributes_.offsets[i];
      segment.size = variable.NumElements();
      segment.before = static_cast<const float*>(variable.data());
      segment.value = static_cast<float*>(value->data());
      segments.push_back(segment);
    }
    const strom_thread_pool threads = LendThreads(context);
    const int code = strom_local_model_penalize(attributes_.replica, segments.data(),
                                                static_cast<int64_t>(segments.size()), &threads);
    OP_REQUIRES_OK(context, ToStatus(code, strom_last_error()));
    for (size_t i = 0; i < variables.size() && copies.on_device(); ++i) {
      OP_REQUIRES_OK(context, copies.Store(values[i], penalized[i]));
    }
    OP_REQUIRES_OK(context, copies.Await());
  }

 private:
  ReplicaAttributes attributes_;
  int gradients_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("StromPenalty").Device(tensorflow::DEVICE_CPU), PenaltyOp);
REGISTER_KERNEL_BUILDER(Name("StromPenalty").Device(tensorflow::DEVICE_GPU).HostMemory("variables"),
                        PenaltyOp);

}  // namespace keras_strom
