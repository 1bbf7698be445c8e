// The values that variables had when their worker last shared an update, while local steps go on.
//
// A step that only is local keeps the tensor that `before` was: the optimizer has written its
// result into another buffer, so nothing is copied. The step that shares takes the tensors back;
// the update is then the change since.
#ifndef KERAS_STROM_TF_LOCAL_PROGRESS_H_
#define KERAS_STROM_TF_LOCAL_PROGRESS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"

namespace keras_strom {

// Variables go by their flat offset; lives as long as the replica's ops.
class LocalProgress : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "keras-strom's shared values"; }

  // Remembers `value` unless the variable has progress already.
  void Begin(int64_t offset, const tensorflow::Tensor& value);
  // The value from before the variable's progress, which ends here; an empty tensor if it has none.
  tensorflow::Tensor End(int64_t offset);
  bool Has(int64_t offset) const;
  // Every variable's value, as it is, is the shared one.
  void Clear();

  static absl::Status Find(tensorflow::OpKernelContext* context, strom_handle replica,
                           tensorflow::core::RefCountPtr<LocalProgress>* progress);

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, tensorflow::Tensor> values_;  // guarded by mutex_
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_LOCAL_PROGRESS_H_
