#include "tf/held_values.h"

#include <utility>

#include "tf/replica_resource.h"

namespace keras_strom {

using tensorflow::Tensor;

void HeldValues::Hold(int64_t offset, const Tensor& value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  values_.try_emplace(offset, value);
}

Tensor HeldValues::Take(int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = values_.extract(offset);
  return found.empty() ? Tensor() : std::move(found.mapped());
}

bool HeldValues::Has(int64_t offset) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return values_.find(offset) != values_.end();
}

void HeldValues::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  values_.clear();
}

absl::Status HeldValues::Find(tensorflow::OpKernelContext* context, strom_handle replica,
                              tensorflow::core::RefCountPtr<HeldValues>* values) {
  return FindOfReplica(context, "values_before_local_steps", replica, values);
}

}  // namespace keras_strom
