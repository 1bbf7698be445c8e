// The variables that one op works on, locked together, and their buffers as the C ABI wants them.
//
// Every op takes the same three things: N resource handles, the flat offset of each, and the handle
// of the replica. A lock on all variables is held while the core reads and writes their buffers, so
// that no reader sees a half-applied update.
#ifndef KERAS_STROM_TF_VARIABLES_H_
#define KERAS_STROM_TF_VARIABLES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace keras_strom {

// What a code of the C ABI and its words become in TensorFlow. Never OutOfRange: Keras takes that
// for the end of the data.
absl::Status ToStatus(int code, const char* words);

// The attributes that every op of ours has.
struct ReplicaAttributes {
  int variables = 0;             // N
  strom_handle replica = 0;      // strom_replica_create's; of StromPull the local model's
  std::vector<int64_t> offsets;  // of the N variables in the flat space, ascending

  // `replica_name` is that of the attribute with the handle.
  absl::Status Read(tensorflow::OpKernelConstruction* context,
                    const char* replica_name = "replica");
};

// Where the op's input of that name, or the list of that name, begins among its inputs.
absl::Status FirstInput(const tensorflow::OpKernel& op, const char* name, int* first);

// Remembers where the last op left each variable's buffer. A buffer that lies elsewhere when the
// next step begins was assigned outside `strategy.run`; such a change is shared with nobody.
class BufferWatch : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "keras-strom's variable buffers"; }

  // Which variables were assigned since Remember: not those that it does not know, nor those whose
  // `found` is null.
  std::vector<bool> FindAssigned(const std::vector<int64_t>& offsets,
                                 const std::vector<const void*>& found);
  void Remember(const std::vector<int64_t>& offsets, const std::vector<const void*>& left);

 private:
  std::mutex mutex_;
  std::map<int64_t, const void*> buffers_;  // by flat offset; guarded by mutex_
};

// Whether the optimizer has written a variable since `before` was read. TensorFlow writes a
// variable whose buffer somebody else holds (here: `before`) into a new buffer, so a changed
// variable lies elsewhere. Not so variables in copy-on-read mode (they had sparse updates), which
// are read by copy, and those that XLA might have assigned (under a condition, as in gradient
// accumulation), which it always writes; there the contents decide (`compare_contents`).
absl::Status HasChanged(const tensorflow::Tensor& before, tensorflow::Var& now,
                        bool compare_contents, bool* changed);

// Copies a variable's buffer first where somebody else still reads it.
absl::Status MakeWritable(tensorflow::OpKernelContext* context, tensorflow::Tensor* tensor);

class LockedVariables {
 public:
  LockedVariables() = default;
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;
  ~LockedVariables();

  // Looks up inputs 0..N-1, and `others` more from input `first_other` on that have no place in the
  // flat space, and locks all in address order, so that two ops over the same variables cannot wait
  // for each other. Fails on an uninitialised or not-float32 variable.
  absl::Status Lock(tensorflow::OpKernelContext* context, const ReplicaAttributes& attributes,
                    int first_other = 0, int others = 0);

  size_t size() const { return variables_.size(); }
  tensorflow::Var& operator[](size_t i) { return *variables_[i]; }
  tensorflow::Var& other(size_t i) { return *others_[i]; }

  // Segments whose `value` is the variable's own buffer, copied first where somebody else still
  // reads it. `before` and `after` equal `value`.
  absl::Status InPlaceSegments(tensorflow::OpKernelContext* context,
                               std::vector<strom_segment>* segments);

  // Tells the watch that the buffers are as this op leaves them.
  absl::Status RememberBuffers(tensorflow::OpKernelContext* context);
  // Which of them were assigned since; `found` are the buffers, null for what is not asked about.
  absl::Status FindAssigned(tensorflow::OpKernelContext* context,
                            const std::vector<const void*>& found, std::vector<bool>* assigned);

 private:
  absl::Status Watch(tensorflow::OpKernelContext* context,
                     tensorflow::core::RefCountPtr<BufferWatch>* watch);

  const ReplicaAttributes* attributes_ = nullptr;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> others_;
  std::vector<tensorflow::Var*> locked_;  // each once, in address order
};

// Writes strom_step_result as the op's output 0, a float64 vector in the order of
// keras_strom/sharing/statistics.py. `stepped`: whether the optimizer has changed a shared
// variable.
inline constexpr int64_t kStatistics = 16;
// The same of StromPull's, the float64 vector of keras_strom/sharing/pull_statistics.py.
inline constexpr int64_t kPullStatistics = 10;
absl::Status OutputStatistics(tensorflow::OpKernelContext* context, const strom_step_result& result,
                              bool stepped = false, int64_t assigned_outside = 0);

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_VARIABLES_H_
