// A step's thresholds between the graph, which has one for all variables or one for each, and the
// core, which has segments.
#ifndef KERAS_STROM_TF_VARIABLE_THRESHOLDS_H_
#define KERAS_STROM_TF_VARIABLE_THRESHOLDS_H_

#include <cstdint>
#include <vector>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace keras_strom {

// Columns of the op's output `by_variable`, in the order of keras_strom/sharing/statistics.py.
inline constexpr int64_t kVariableStatistics = 6;

class VariableThresholds {
 public:
  // From a scalar, or a vector with an element for each of N variables.
  absl::Status Read(tensorflow::OpKernelContext* context, int input, int variables);

  // Whether variables have thresholds of their own.
  bool differ() const { return differ_; }

  // The segments up to the one before `segments` that belong to no variable yet are those of
  // `variable`.
  void Cover(size_t variable, size_t segments) { variable_of_.resize(segments, variable); }

  // Points the options at what this object owns.
  void Set(strom_step_options* options);

  // After the step: takes what it has used, which the core may have changed.
  void Note(const strom_step_result& result);

  // Then: the threshold that was used for a variable.
  float used(size_t variable) const;

  // Writes the float64 output `by_variable`, a row a variable; no rows where there is one
  // threshold. All zeros before a step.
  absl::Status Output(tensorflow::OpKernelContext* context, int output) const;

 private:
  bool differ_ = false;
  std::vector<float> of_variables_;
  std::vector<size_t> variable_of_;  // of each segment
  std::vector<float> of_segments_;
  std::vector<strom_segment_result> results_;
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_VARIABLE_THRESHOLDS_H_
