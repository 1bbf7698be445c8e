#include "tf/device_codec.h"

#include <dlfcn.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/public/version.h"
#if TF_MAJOR_VERSION == 2 && TF_MINOR_VERSION == 19
// A header of this release includes LLVM's, which pip's package of it lacks. Nothing here uses what
// it declares, so it is left out.
#define XLA_STREAM_EXECUTOR_GPU_TMA_METADATA_H_
namespace stream_executor::gpu {
class TmaDescriptor {};
struct TmaMetadata {};
}  // namespace stream_executor::gpu
#endif
#include "tensorflow/core/platform/stream_executor.h"
#include "tf/step_warnings.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr int64_t kMaxMessageBytes = (int64_t{4} << 30) - 1;

// libstrom_cuda.so in the folder of the library that this function is in.
std::string LibraryPath() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&LibraryPath), &here) == 0) return "libstrom_cuda.so";
  const std::string path = here.dli_fname;
  return absl::StrCat(path.substr(0, path.rfind('/') + 1), "libstrom_cuda.so");
}

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("libstrom_cuda.so has no ", name));
}

absl::Status Load(DeviceLibrary* functions) {
  const std::string path = LibraryPath();
  const bool is_there = dlsym(RTLD_DEFAULT, "strom_cuda_abi_version") != nullptr;
  void* const library = is_there ? RTLD_DEFAULT : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!is_there && library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the codec on a GPU needs ", path, ", which is built where nvcc is: ", dlerror()));
  }
  decltype(&strom_cuda_abi_version) version = nullptr;
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_abi_version", &version));
  if (version() != STROM_CUDA_ABI_VERSION) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has interface version ", version(),
                                                      ", the operators need ",
                                                      STROM_CUDA_ABI_VERSION, ": build both anew"));
  }
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_last_error", &functions->last_error));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_codec_create", &functions->codec_create));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_codec_close", &functions->codec_close));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_reserve", &functions->reserve));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_step", &functions->step));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_take_back", &functions->take_back));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_compare", &functions->compare));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_copy", &functions->copy));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_find_entries", &functions->find_entries));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_write_messages", &functions->write_messages));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_messages", &functions->messages));
  TF_RETURN_IF_ERROR(Find(library, "strom_cuda_message", &functions->message));
  return Find(library, "strom_cuda_apply", &functions->apply);
}

// Refuses a message of another size as the CPU does. The library takes those of a smaller flat
// space, too, which steps need.
absl::Status CheckSize(const Tensor& message, int64_t size) {
  strom_message_description found{};
  const int code = strom_codec_describe(static_cast<const uint8_t*>(message.data()),
                                        message.NumElements(), &found);
  if (code != STROM_OK) return ToStatus(code, strom_last_error());
  if (found.size == size) return absl::OkStatus();
  const std::string words =
      absl::StrCat("the message is of ", found.size, " parameters and does not fit ", size);
  return ToStatus(STROM_INVALID_ARGUMENT, words.c_str());
}

}  // namespace

absl::Status DeviceLibrary::Open(const DeviceLibrary** library) {
  static DeviceLibrary functions;
  static const absl::Status loaded = Load(&functions);
  *library = &functions;
  return loaded;
}

absl::Status StreamOf(OpKernelContext* context, void** stream) {
  // Only TensorFlow's own kind of GPU has such a handle; of a plug-in's the stream is an SP_Stream.
  *stream = context->op_device_context()->stream()->platform_specific_handle().stream;
  if (*stream != nullptr) return absl::OkStatus();
  TF_Status* const status = TF_NewStatus();
  *stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status);
  const bool found = TF_GetCode(status) == TF_OK && *stream != nullptr;
  TF_DeleteStatus(status);
  return found ? absl::OkStatus() : absl::InternalError("TensorFlow's device has no stream");
}

strom_cuda_memory LendMemory(OpKernelContext* context) {
  const auto allocate = [](void* allocator, int64_t bytes) {
    tensorflow::AllocationAttributes at_once;
    at_once.retry_on_failure = false;
    return static_cast<tensorflow::Allocator*>(allocator)->AllocateRaw(
        tensorflow::Allocator::kAllocatorAlignment, static_cast<size_t>(bytes), at_once);
  };
  const auto release = [](void* allocator, void* memory) {
    static_cast<tensorflow::Allocator*>(allocator)->DeallocateRaw(memory);
  };
  // The context's own may be one that watches this op, and goes with it.
  return {context->device()->GetAllocator(tensorflow::AllocatorAttributes()), allocate, release};
}

DeviceCodec::~DeviceCodec() {
  if (codec_ != 0) library_->codec_close(codec_);
}

bool DeviceCodec::IsReady(OpKernelContext* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (codec_ != 0 || refused_) return codec_ != 0;
  const absl::Status created = Create(context);
  if (created.ok()) return true;
  refused_ = true;
  WarnOnce(absl::StrCat("keras_strom.ops on ", context->device()->name(),
                        " copy their tensors to the host and work there, which costs time but "
                        "changes no result: ",
                        created.message()));
  return false;
}

absl::Status DeviceCodec::Encode(OpKernelContext* context, const Tensor& update, Tensor* residual,
                                 const strom_codec_options& options, int output, int64_t* count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  void* stream = nullptr;
  TF_RETURN_IF_ERROR(StreamOf(context, &stream));
  const int64_t size = update.NumElements();
  const strom_cuda_segment segment = {0,       size,
                                      nullptr, static_cast<const float*>(update.data()),
                                      nullptr, static_cast<float*>(residual->data()),
                                      nullptr};
  strom_step_options step{};
  step.scale = 1;
  step.threshold = options.threshold;
  step.iteration = options.iteration;
  strom_step_result result{};
  TF_RETURN_IF_ERROR(
      ToStatus(library_->find_entries(codec_, size, &segment, 1, &step, stream, &result)));
  int64_t bytes = 0, messages = 0;
  TF_RETURN_IF_ERROR(
      ToStatus(library_->write_messages(codec_, options.coding, options.prefer, stream, &bytes)));
  TF_RETURN_IF_ERROR(ToStatus(library_->messages(codec_, &messages)));
  if (messages != 1) {
    return absl::ResourceExhaustedError("the update does not fit into one message of 4 GiB");
  }
  TF_RETURN_IF_ERROR(ToStatus(library_->message(codec_, 0, nullptr, 0, &bytes)));
  Tensor* message = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(output, TensorShape({bytes}), &message));
  *count = result.count;
  return ToStatus(
      library_->message(codec_, 0, static_cast<uint8_t*>(message->data()), bytes, &bytes));
}

absl::Status DeviceCodec::Apply(OpKernelContext* context, const Tensor& message,
                                Tensor* parameters) {
  const std::lock_guard<std::mutex> lock(mutex_);
  void* stream = nullptr;
  TF_RETURN_IF_ERROR(StreamOf(context, &stream));
  const int64_t size = parameters->NumElements();
  TF_RETURN_IF_ERROR(CheckSize(message, size));
  const strom_cuda_segment segment = {
      0, size, nullptr, nullptr, static_cast<float*>(parameters->data()), nullptr, nullptr};
  int64_t skipped = 0;  // None: every element has its place.
  return ToStatus(library_->apply(codec_, static_cast<const uint8_t*>(message.data()),
                                  message.NumElements(), size, &segment, 1, stream, &skipped));
}

absl::Status DeviceCodec::Create(OpKernelContext* context) {
  TF_RETURN_IF_ERROR(DeviceLibrary::Open(&library_));
  const strom_cuda_memory memory = LendMemory(context);
  const auto done = [this](int code) {
    return code == STROM_OK ? absl::OkStatus() : absl::UnavailableError(library_->last_error());
  };
  TF_RETURN_IF_ERROR(done(library_->codec_create(kMaxMessageBytes, &memory, &codec_)));
  // Whether there is a kernel for this card.
  absl::Status reserved = done(library_->reserve(codec_, nullptr, 0));
  if (!reserved.ok()) library_->codec_close(std::exchange(codec_, 0));
  return reserved;
}

absl::Status DeviceCodec::ToStatus(int code) const {
  return keras_strom::ToStatus(code, code == STROM_OK ? "" : library_->last_error());
}

}  // namespace keras_strom
