#include "tf/wait.h"

#include <utility>

#include "tf/variables.h"

namespace keras_strom {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelContext;

Wait::Wait(OpKernelContext* context, AsyncOpKernel::DoneCallback done, Then then)
    : context_(context), done_(std::move(done)), then_(std::move(then)) {}

void Wait::Start(OpKernelContext* context, AsyncOpKernel::DoneCallback done, const Begin& begin,
                 Then then) {
  const std::shared_ptr<Wait> wait(new Wait(context, std::move(done), std::move(then)));
  if (!wait->RegisterCancellation()) return;
  auto* owner = new std::shared_ptr<Wait>(wait);
  const int code = begin(&Wait::Announced, owner);
  if (code != STROM_OK) {
    delete owner;  // The callback was not taken over.
    wait->Finish(code, strom_last_error());
  }
}

bool Wait::RegisterCancellation() {
  cancellation_ = context_->cancellation_manager();
  if (cancellation_ == nullptr) return true;
  token_ = cancellation_->get_cancellation_token();
  auto self = shared_from_this();
  if (cancellation_->RegisterCallback(token_, [self] { self->Cancel(); })) return true;
  Cancel();
  return false;
}

void Wait::Cancel() {
  if (finished_.exchange(true)) return;
  context_->SetStatus(absl::CancelledError("the training step was cancelled"));
  done_();
}

void Wait::Finish(int code, const char* message) {
  if (finished_.exchange(true)) return;
  if (cancellation_ != nullptr) cancellation_->DeregisterCallback(token_);
  auto self = shared_from_this();
  (*context_->runner())([self, status = ToStatus(code, message)] {
    const absl::Status ended = status.ok() ? self->then_() : status;
    if (!ended.ok()) self->context_->SetStatus(ended);
    self->done_();
  });
}

void Wait::Announced(void* owner, int code, const char* message) {
  auto* wait = static_cast<std::shared_ptr<Wait>*>(owner);
  (*wait)->Finish(code, message == nullptr ? "" : message);
  delete wait;
}

}  // namespace keras_strom
