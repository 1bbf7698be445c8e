#include "tf/local_progress.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace keras_strom {

using tensorflow::Tensor;

void LocalProgress::Begin(int64_t offset, const Tensor& value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  values_.try_emplace(offset, value);
}

Tensor LocalProgress::End(int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = values_.extract(offset);
  return found.empty() ? Tensor() : std::move(found.mapped());
}

bool LocalProgress::Has(int64_t offset) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return values_.find(offset) != values_.end();
}

void LocalProgress::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  values_.clear();
}

absl::Status LocalProgress::Find(tensorflow::OpKernelContext* context, strom_handle replica,
                                 tensorflow::core::RefCountPtr<LocalProgress>* progress) {
  LocalProgress* found = nullptr;
  TF_RETURN_IF_ERROR(context->resource_manager()->LookupOrCreate<LocalProgress>(
      "keras_strom", absl::StrCat("local_progress_of_replica_", replica), &found,
      [](LocalProgress** created) {
        *created = new LocalProgress;
        return absl::OkStatus();
      }));
  progress->reset(found);
  return absl::OkStatus();
}

}  // namespace keras_strom
