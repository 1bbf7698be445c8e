#include "tf/variable_thresholds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace keras_strom {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status VariableThresholds::Read(OpKernelContext* context, int input, int variables) {
  const Tensor& thresholds = context->input(input);
  differ_ = thresholds.dims() > 0;
  if (differ_ && (thresholds.dims() != 1 || thresholds.NumElements() != variables)) {
    return absl::InvalidArgumentError(
        absl::StrCat("threshold must be a scalar or have one element for each of ", variables,
                     " variables, not the shape ", thresholds.shape().DebugString()));
  }
  const float* const values = static_cast<const float*>(thresholds.data());
  if (differ_) {
    of_variables_.assign(values, values + variables);
  } else {
    of_variables_.assign(static_cast<size_t>(variables), *values);
  }
  return absl::OkStatus();
}

void VariableThresholds::Set(strom_step_options* options) {
  if (!differ_) {
    options->threshold = of_variables_.front();
    return;
  }
  of_segments_.clear();
  for (const size_t variable : variable_of_) of_segments_.push_back(of_variables_[variable]);
  results_.assign(variable_of_.size(), {});
  options->thresholds = of_segments_.data();
  options->segment_results = results_.data();
}

void VariableThresholds::Note(const strom_step_result& result) {
  if (!differ_) of_variables_.assign(of_variables_.size(), result.threshold);
}

float VariableThresholds::used(size_t variable) const {
  const auto segment = std::find(variable_of_.begin(), variable_of_.end(), variable);
  if (results_.empty() || segment == variable_of_.end()) return of_variables_[variable];
  return results_[static_cast<size_t>(segment - variable_of_.begin())].threshold;
}

absl::Status VariableThresholds::Output(OpKernelContext* context, int output) const {
  const int64_t rows = differ_ ? static_cast<int64_t>(of_variables_.size()) : 0;
  Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(
      context->allocate_output(output, TensorShape({rows, kVariableStatistics}), &tensor));
  double* const statistics = static_cast<double*>(tensor->data());
  std::fill_n(statistics, rows * kVariableStatistics, 0.0);
  for (size_t i = 0; i < results_.size(); ++i) {
    const strom_segment_result& segment = results_[i];
    double* const row = statistics + static_cast<int64_t>(variable_of_[i]) * kVariableStatistics;
    row[0] += static_cast<double>(segment.count);
    row[1] += static_cast<double>(segment.elements);
    row[2] = std::max(row[2], static_cast<double>(segment.max_residual));
    row[3] = static_cast<double>(segment.threshold);
    row[4] += segment.sum_residual;
    row[5] = std::max(row[5], static_cast<double>(segment.value));
  }
  return absl::OkStatus();
}

}  // namespace keras_strom
