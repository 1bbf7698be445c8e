// Kernels on the device for what changes variables. TensorFlow without a GPU has none for some of
// these, and such that take device memory for the host's for others. All other ops of a step have
// no kernel for a GPU either, and TensorFlow places them on the CPU, where soft placement lets it.
#include "tensorflow/c/kernels.h"

#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "emulated_gpu.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

enum class Update { kAdd, kSub, kAssign };

template <typename T>
void Change(Update update, T* to, const T* by, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    switch (update) {
      case Update::kAdd:
        to[i] = to[i] + by[i];
        break;
      case Update::kSub:
        to[i] = to[i] - by[i];
        break;
      case Update::kAssign:
        to[i] = by[i];
        break;
    }
  }
}

template <typename T>
T* Open(const Tensor& tensor) {
  return static_cast<T*>(strom_emulated_gpu_host_address(tensor.data()));
}

// Queues `work` on the op's stream.
absl::Status Launch(OpKernelContext* context, std::function<void()> work) {
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status);
  const bool found = TF_GetCode(status) == TF_OK;
  TF_DeleteStatus(status);
  if (!found) return absl::InternalError("the op has no stream");
  auto queued = std::make_unique<std::function<void()>>(std::move(work));
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> mine(
        static_cast<std::function<void()>*>(argument));
    (*mine)();
  };
  if (strom_emulated_gpu_launch(stream, run, queued.get()) == 0) {
    return absl::InternalError("EMULATED_ERROR_DEVICE_LOST: the GPU has fallen off the bus");
  }
  static_cast<void>(queued.release());
  return absl::OkStatus();
}

absl::Status FindVariable(OpKernelContext* context, tensorflow::core::RefCountPtr<Var>* variable) {
  TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, 0), variable));
  return absl::OkStatus();
}

// A buffer that no one else holds, with the same values; the variable is locked.
absl::Status MakeWritable(OpKernelContext* context, Tensor* tensor) {
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  TF_RETURN_IF_ERROR(
      Launch(context, [to = Open<char>(copy), from = Open<char>(*tensor),
                       size = tensor->TotalBytes()] { std::memcpy(to, from, size); }));
  *tensor = copy;
  return absl::OkStatus();
}

template <typename T, Update update>
class AssignUpdate : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context, FindVariable(context, &variable));
    const Tensor& by = context->input(1);
    tensorflow::mutex_lock lock(*variable->mu());
    OP_REQUIRES(context, variable->tensor()->shape() == by.shape(),
                absl::InvalidArgumentError("a variable and its change differ in shape"));
    OP_REQUIRES_OK(context, MakeWritable(context, variable->tensor()));
    OP_REQUIRES_OK(
        context, Launch(context, [to = Open<T>(*variable->tensor()), from = Open<T>(by),
                                  count = by.NumElements()] { Change(update, to, from, count); }));
  }
};

// Rows `indices` of the variable; the indices lie on the device too.
template <typename T, typename Index, Update update>
class ScatterUpdate : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context, FindVariable(context, &variable));
    variable->copy_on_read_mode.store(true);
    const Tensor &indices = context->input(1), &by = context->input(2);
    tensorflow::mutex_lock lock(*variable->mu());
    Tensor* tensor = variable->tensor();
    OP_REQUIRES_OK(context, MakeWritable(context, tensor));
    const int64_t count = indices.NumElements();
    if (count == 0) return;
    const int64_t width = by.NumElements() / count;
    OP_REQUIRES_OK(context, Launch(context, [to = Open<T>(*tensor), from = Open<T>(by),
                                             rows = Open<Index>(indices), count, width] {
                     for (int64_t i = 0; i < count; ++i) {
                       Change(update, to + rows[i] * width, from + i * width, width);
                     }
                   }));
  }
};

template <typename T, typename Index>
class Gather : public OpKernel {
 public:
  explicit Gather(OpKernelConstruction* context) : OpKernel(context) {
    int batch_dimensions = 0;
    OP_REQUIRES_OK(context, context->GetAttr("batch_dims", &batch_dimensions));
    OP_REQUIRES(context, batch_dimensions == 0,
                absl::UnimplementedError("the emulated GPU gathers without batch_dims only"));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context, FindVariable(context, &variable));
    variable->copy_on_read_mode.store(true);
    const Tensor& indices = context->input(1);
    tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& values = *variable->tensor();
    TensorShape shape = indices.shape();
    for (int i = 1; i < values.dims(); ++i) shape.AddDim(values.dim_size(i));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    const int64_t count = indices.NumElements();
    if (count == 0 || output->NumElements() == 0) return;
    const int64_t width = output->NumElements() / count;
    OP_REQUIRES_OK(context, Launch(context, [to = Open<T>(*output), from = Open<T>(values),
                                             rows = Open<Index>(indices), count, width] {
                     for (int64_t i = 0; i < count; ++i) {
                       std::memcpy(to + i * width, from + rows[i] * width,
                                   static_cast<size_t>(width) * sizeof(T));
                     }
                   }));
  }
};

#define REGISTER_ASSIGN(name, T, update)                                                           \
  REGISTER_KERNEL_BUILDER(                                                                         \
      Name(name).Device(tensorflow::DEVICE_GPU).HostMemory("resource").TypeConstraint<T>("dtype"), \
      AssignUpdate<T, update>)
#define REGISTER_SCATTER(name, T, Index, update)                  \
  REGISTER_KERNEL_BUILDER(Name(name)                              \
                              .Device(tensorflow::DEVICE_GPU)     \
                              .HostMemory("resource")             \
                              .TypeConstraint<T>("dtype")         \
                              .TypeConstraint<Index>("Tindices"), \
                          ScatterUpdate<T, Index, update>)
#define REGISTER_ROWS(T, Index)                                         \
  REGISTER_SCATTER("ResourceScatterAdd", T, Index, Update::kAdd);       \
  REGISTER_SCATTER("ResourceScatterSub", T, Index, Update::kSub);       \
  REGISTER_SCATTER("ResourceScatterUpdate", T, Index, Update::kAssign); \
  REGISTER_KERNEL_BUILDER(Name("ResourceGather")                        \
                              .Device(tensorflow::DEVICE_GPU)           \
                              .HostMemory("resource")                   \
                              .TypeConstraint<T>("dtype")               \
                              .TypeConstraint<Index>("Tindices"),       \
                          Gather<T, Index>)
#define REGISTER(T)                                        \
  REGISTER_ASSIGN("AssignAddVariableOp", T, Update::kAdd); \
  REGISTER_ASSIGN("AssignSubVariableOp", T, Update::kSub); \
  REGISTER_ROWS(T, int32_t);                               \
  REGISTER_ROWS(T, int64_t)

REGISTER(float);
REGISTER(double);
REGISTER(Eigen::half);
REGISTER(Eigen::bfloat16);
REGISTER(int64_t);
REGISTER(int32_t);

}  // namespace
