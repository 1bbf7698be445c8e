// The variables that one op works on, locked together, and their buffers as the C ABI wants them.
//
// Every op takes the same three things: N resource handles, the flat offset of each, and the handle
// of the replica. A lock on all variables is held while the core reads and writes their buffers, so
// that no reader sees a half-applied update.
//
// An op works on each variable's `tensor`: its own on the CPU, so that nothing is copied; elsewhere
// a copy in the host's memory between Fetch and Store, so that what an op does stands once.
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
#include "tf/host_copies.h"

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

class LockedVariables {
 public:
  explicit LockedVariables(tensorflow::OpKernelContext* context);
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;
  ~LockedVariables();

  // Looks up inputs 0..N-1, and `others` more from input `first_other` on that have no place in the
  // flat space, and locks all in address order, so that two ops over the same variables cannot wait
  // for each other. Fails on an uninitialised or not-float32 variable.
  absl::Status Lock(const ReplicaAttributes& attributes, int first_other = 0, int others = 0);

  size_t size() const { return variables_.size(); }
  // Where the variable's values lie, on whatever device.
  const tensorflow::Tensor& placed(size_t i) { return *variables_[i].variable->tensor(); }
  // Its value is given back to it, as it lies on the device.
  void PutBack(size_t i, const tensorflow::Tensor& value);
  // It lies where nobody else holds it, on its device: copied there first where somebody does.
  absl::Status MakePlacedWritable(size_t i);
  // Whether it has had sparse updates: TensorFlow then writes it in place, whoever else reads it.
  bool copies_on_read(size_t i) { return variables_[i].variable->copy_on_read_mode.load(); }

  // The variable's values in the host's memory, to be read and replaced: on the CPU its own tensor,
  // elsewhere a copy, once it is fetched.
  tensorflow::Tensor* tensor(size_t i) { return HostTensor(&variables_[i]); }
  tensorflow::Tensor* other(size_t i) { return HostTensor(&others_[i]); }

  // Begins to fetch a variable's values, unless that was done; they are there after AwaitFetched.
  absl::Status Fetch(size_t i);
  absl::Status FetchOther(size_t i);
  absl::Status FetchAll();
  // The same of a value that variable i had earlier; not for the CPU.
  absl::Status FetchEarlier(size_t i, const tensorflow::Tensor& placed, tensorflow::Tensor* copy);
  absl::Status AwaitFetched();

  // Puts the variables that were fetched back to where they lie, as far as their tensors have been
  // replaced or, by `written`, written to. `written_others`: the same of the others.
  absl::Status Store(const std::vector<bool>& written, bool written_others = false);
  absl::Status StoreAll() { return Store(std::vector<bool>(size(), true)); }
  // Nothing was written to those that were fetched; what they hold is known all the same.
  absl::Status StoreNone() { return Store(std::vector<bool>(size(), false)); }

  // A variable, by its index, and what it held before the optimizer's step.
  struct Earlier {
    size_t variable;
    const tensorflow::Tensor* before;
  };
  // Which of the variables the optimizer has written since. TensorFlow writes a variable whose
  // buffer somebody else holds (here: `before`) into a new buffer, so a changed variable lies
  // elsewhere. Not so variables in copy-on-read mode, which are read by copy, and those that XLA
  // might have assigned (under a condition, as in gradient accumulation), which it always writes;
  // there the contents decide (`compare_contents`), of which `fetched` keeps what was copied to the
  // host for it.
  absl::Status FindChanged(const std::vector<Earlier>& earlier, bool compare_contents,
                           std::vector<bool>* changed, std::vector<tensorflow::Tensor>* fetched);

  // Segments whose `value` is the variable's own buffer, copied first where somebody else still
  // reads it. `before` and `after` equal `value`. The variables were fetched.
  absl::Status InPlaceSegments(std::vector<strom_segment>* segments);

  // Tells the watch that the buffers are as this op leaves them.
  absl::Status RememberBuffers();
  // Which of them were assigned since; `found` are the buffers, null for what is not asked about.
  absl::Status FindAssigned(const std::vector<const void*>& found, std::vector<bool>* assigned);

  // From now on what variables hold is kept in the host's memory as well, until ForgetMirrors.
  void KeepMirrors();
  void ForgetMirrors();

  HostCopies& copies() { return copies_; }
  const HostCopies& copies() const { return copies_; }

 private:
  // A variable and, where it lies on a device, its values in the host's memory.
  struct Locked {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    bool is_fetched = false;
    tensorflow::Tensor copy;
    const void* fetched = nullptr;  // where the copy lay then
    HostMirrors::Mirror mirror;     // until AwaitFetched
  };

  tensorflow::Tensor* HostTensor(Locked* locked);
  absl::Status Fetch(Locked* locked, const int64_t* offset);
  absl::Status Store(Locked* locked, bool written);
  absl::Status Watch(tensorflow::core::RefCountPtr<BufferWatch>* watch);

  tensorflow::OpKernelContext* context_;
  HostCopies copies_;
  tensorflow::core::RefCountPtr<HostMirrors> mirrors_;  // null on the CPU
  const ReplicaAttributes* attributes_ = nullptr;
  std::vector<Locked> variables_;
  std::vector<Locked> others_;
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
