#include "sim/joint_program.h"

#include <algorithm>

namespace strom {

void JointProgram::Begin(const JointPlan& plan, int32_t rank, int32_t workers) {
  plan_ = plan;
  rank_ = rank;
  joint_ = nullptr;
  waits_ = steps_ = false;
  // It owns the local model, so that this is no owner.
  const std::shared_ptr<JointExchange> self(this, [](JointExchange*) {});
  local_.Begin(self, plan.size(), plan.method, rank, workers);
}

std::vector<LocalPiece> JointProgram::Pieces(std::vector<float>* x) const {
  std::vector<LocalPiece> pieces;
  for (const ElementRange& range : plan_.ranges) {
    pieces.push_back(
        {std::span(*x).subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.size)),
         "variable"});
  }
  return pieces;
}

bool JointProgram::Step(int64_t now_ns, int64_t iteration, std::vector<float>* x) {
  now_ns_ = now_ns;
  strom_pull_result result{};
  failure_ = local_.Step(Pieces(x), iteration, now_ns, {}, &result);
  waits_ = result.waits != 0;
  return !waits_;
}

bool JointProgram::Continue(int64_t now_ns, std::vector<float>* x) {
  now_ns_ = now_ns;
  if (!waits_) return true;
  if (JointValues round = node_->TakeRound()) joint_ = std::move(round);
  if (joint_ == nullptr) {
    if (!node_->WaitsForMaster()) return false;
    node_->WithdrawFromJoint();  // as net/worker_agent.h does
  }
  waits_ = false;
  if (plan_.IsOfGradients()) {
    TakeGradient(now_ns, x);
    return true;
  }
  strom_pull_result result{};
  failure_ = local_.Install(Pieces(x), now_ns, {}, &result);
  return true;
}

// Parts and pieces do not end together.
std::vector<GradientPiece<const float>> JointProgram::Cut(const std::vector<float>& gradient) {
  std::vector<GradientPiece<const float>> pieces;
  const size_t most = 37 + gradient.size() / 20;
  for (size_t at = 0; at < gradient.size(); at += most) {
    const std::span<const float> values =
        std::span(gradient).subspan(at, std::min(most, gradient.size() - at));
    pieces.push_back({values, static_cast<int64_t>(at), "variable"});
  }
  return pieces;
}

void JointProgram::GiveEarly(int64_t now_ns, int64_t iteration, const std::vector<float>& gradient,
                             size_t first, size_t last) {
  now_ns_ = now_ns;
  const std::vector<GradientPiece<const float>> pieces = Cut(gradient);
  failure_ = local_.GiveEarly(std::span(pieces).subspan(first, last - first), 1.0f, iteration, {});
}

void JointProgram::StepByGradient(int64_t now_ns, int64_t iteration,
                                  const std::vector<float>& gradient) {
  now_ns_ = now_ns;
  failure_ = local_.GiveGradient(Cut(gradient), 1.0f, iteration, now_ns, {});
  waits_ = true;
}

void JointProgram::TakeGradient(int64_t now_ns, std::vector<float>* x) {
  const bool is_of_all = joint_ != nullptr;
  mean_.assign(static_cast<size_t>(plan_.size()), 0.0f);
  const GradientPiece<float> piece{std::span(mean_), 0, "variable"};
  float rate = 0;
  failure_ = local_.TakeGradient({&piece, 1}, false, now_ns, {}, &rate);
  if (!failure_.ok()) return;
  size_t from = 0;
  for (const LocalPiece& trained : Pieces(x)) {
    for (float& value : trained.values) value += rate * mean_[from++];
  }
  if (!is_of_all) mean_.clear();
}

void JointProgram::Finish(int64_t now_ns, int64_t iteration, const std::vector<float>& x) {
  now_ns_ = now_ns;
  std::vector<float> values;
  Gather(plan_, x, &values);
  failure_ = local_.Finish(values, iteration);
}

JointOrders JointProgram::TakeOrders() {
  if (!std::exchange(steps_, true)) node_->BeginStepping(now_ns_);
  JointOrders orders = node_->TakeJointOrders();
  for (const JointOrders::Target& target : orders.targets) {
    hooks_.on_target(target.shard, orders.round, *target.values);
  }
  return orders;
}

JointValues JointProgram::TakeJoint() {
  JointValues taken = std::exchange(joint_, nullptr);
  if (taken && !plan_.IsOfGradients()) hooks_.on_taken(*taken);
  return taken;
}

void JointProgram::Give(uint64_t mark, int64_t iteration, int64_t steps,
                        std::vector<float> values) {
  hooks_.on_given({now_ns_, rank_, mark, steps, values});
  node_->GiveToJoint(now_ns_, mark, iteration, steps, std::move(values));
}

void JointProgram::BeginGradient(int64_t iteration, GrowingGradient values) {
  node_->BeginGradient(now_ns_, iteration, std::move(values));
}

void JointProgram::EndGradient(int64_t iteration, GrowingGradient values) {
  hooks_.on_given({now_ns_, rank_, 0, 1, {}});
  node_->EndGradient(now_ns_, iteration, std::move(values));
}

void JointProgram::AskJoint() {
  hooks_.on_asked();
  node_->AskJoint(now_ns_);
}

}  // namespace strom
