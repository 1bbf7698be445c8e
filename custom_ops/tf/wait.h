// An asynchronous op that waits for the network, off the executor's threads.
#ifndef KERAS_STROM_TF_WAIT_H_
#define KERAS_STROM_TF_WAIT_H_

#include <atomic>
#include <functional>
#include <memory>

#include "capi/strom.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_strom {

// The network's thread announces what is waited for, or TensorFlow cancels the step (another op
// failed, the session ends); whichever comes first finishes the op.
class Wait : public std::enable_shared_from_this<Wait> {
 public:
  // Asks the C interface to call `done(owner, code, message)` once; a code other than STROM_OK says
  // that it will not.
  using Begin = std::function<int(strom_callback done, void* owner)>;
  // What remains to be done when it has come; runs on one of TensorFlow's threads.
  using Then = std::function<absl::Status()>;

  // Returns at once. `done` is called once, whatever happens.
  static void Start(tensorflow::OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done, const Begin& begin, Then then);

 private:
  Wait(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done,
       Then then);

  // False: already cancelled, and the op is done.
  bool RegisterCancellation();
  void Cancel();
  // Runs on the network's thread: hands the work to TensorFlow's and returns.
  void Finish(int code, const char* message);
  static void Announced(void* owner, int code, const char* message);

  tensorflow::OpKernelContext* context_;
  tensorflow::AsyncOpKernel::DoneCallback done_;
  Then then_;
  tensorflow::CancellationManager* cancellation_ = nullptr;
  tensorflow::CancellationToken token_ = tensorflow::CancellationManager::kInvalidToken;
  std::atomic<bool> finished_{false};
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_WAIT_H_
