// A variable of which a step changes known rows only: an embedding under an optimizer that applies
// sparse gradients as they are. Instead of the whole table the core then gets a segment a row, and
// between those segments that only receive.
//
// A row's element sends one threshold a step. What reaches it beyond that would wait until the row
// is looked up again, which may be never; so such rows are visited in the next step that changes
// any.
#ifndef KERAS_STROM_TF_ROW_SEGMENTS_H_
#define KERAS_STROM_TF_ROW_SEGMENTS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"

namespace keras_strom {

// The rows that wait to be visited, by their variable's flat offset; lives as long as the replica.
class WaitingRows : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "keras-strom's rows beyond the threshold"; }

  std::vector<int64_t> Get(int64_t offset) const;
  void Set(int64_t offset, std::vector<int64_t> rows);

  static absl::Status Find(tensorflow::OpKernelContext* context, strom_handle replica,
                           tensorflow::core::RefCountPtr<WaitingRows>* waiting);

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<int64_t>> rows_;  // guarded by mutex_
};

// Refuses rows that `variable` has not, and a `before` that does not hold one row of it for each.
// TensorFlow's kernels on a GPU take no notice of such rows.
absl::Status CheckRows(const tensorflow::Tensor& rows, const tensorflow::Tensor& before,
                       const tensorflow::Tensor& variable);

class RowSegments {
 public:
  // `rows` are the rows that the step changed, in any order, also repeatedly; `before` their values
  // before it, [rows, elements of a row]. `waiting` are more rows to visit, ascending. Appends the
  // segments of the whole variable, whose buffer must be nobody else's.
  absl::Status Append(const tensorflow::Tensor& rows, const tensorflow::Tensor& before,
                      const std::vector<int64_t>& waiting, tensorflow::Tensor* variable,
                      int64_t offset, const char* name, std::vector<strom_segment>* segments);

  // After the step: the visited rows that hold a residual of at least `threshold`, ascending.
  absl::Status FindWaiting(strom_handle replica, float threshold, std::vector<int64_t>* rows) const;

 private:
  int64_t offset_ = 0;
  int64_t row_elements_ = 0;
  std::vector<int64_t> visited_;
  std::vector<float> unchanged_;  // copies of the rows that only wait
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_ROW_SEGMENTS_H_
