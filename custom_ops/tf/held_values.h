// The values that variables had before local steps changed them.
//
// Such a value is the tensor that the step's `before` was: the optimizer has written elsewhere, so
// nothing is copied. The next step that shares takes it back, as `before` and, where a variable
// holds what all workers share, as the buffer of its next value.
#ifndef KERAS_STROM_TF_HELD_VALUES_H_
#define KERAS_STROM_TF_HELD_VALUES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"

namespace keras_strom {

// Variables go by their flat offset; lives as long as the replica's ops.
class HeldValues : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "values held by keras-strom"; }

  // Holds `value` unless the variable has one already.
  void Hold(int64_t offset, const tensorflow::Tensor& value);
  // Gives the variable's value away; an empty tensor if it has none.
  tensorflow::Tensor Take(int64_t offset);
  bool Has(int64_t offset) const;
  // Of no variable is a value held any more.
  void Clear();

  static absl::Status Find(tensorflow::OpKernelContext* context, strom_handle replica,
                           tensorflow::core::RefCountPtr<HeldValues>* values);

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, tensorflow::Tensor> values_;  // guarded by mutex_
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_HELD_VALUES_H_
