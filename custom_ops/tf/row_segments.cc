#include "tf/row_segments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tf/replica_resource.h"
#include "tf/variables.h"

namespace keras_strom {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

std::vector<int64_t> WaitingRows::Get(int64_t offset) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = rows_.find(offset);
  return found == rows_.end() ? std::vector<int64_t>() : found->second;
}

void WaitingRows::Set(int64_t offset, std::vector<int64_t> rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  rows_[offset] = std::move(rows);
}

absl::Status WaitingRows::Find(OpKernelContext* context, strom_handle replica,
                               tensorflow::core::RefCountPtr<WaitingRows>* waiting) {
  return FindOfReplica(context, "waiting_rows", replica, waiting);
}

namespace {

// A row to visit, and where its value before the step lies: in `before`, or nowhere yet (-1).
struct Visit {
  int64_t row;
  int64_t place;
};

int64_t RowCount(const Tensor& variable) { return variable.dims() > 0 ? variable.dim_size(0) : 0; }

int64_t RowElements(const Tensor& variable) {
  const int64_t row_count = RowCount(variable);
  return row_count > 0 ? variable.NumElements() / row_count : 0;
}

std::vector<Visit> Visits(const Tensor& rows, const std::vector<int64_t>& waiting) {
  const auto changed = rows.flat<int64_t>();
  std::vector<Visit> visits;
  visits.reserve(static_cast<size_t>(changed.size()) + waiting.size());
  for (int64_t i = 0; i < changed.size(); ++i) visits.push_back({changed(i), i});
  for (const int64_t row : waiting) visits.push_back({row, -1});
  // Of a row that comes several times, the first `before` holds its value before any change.
  std::stable_sort(visits.begin(), visits.end(),
                   [](const Visit& a, const Visit& b) { return a.row < b.row; });
  visits.erase(std::unique(visits.begin(), visits.end(),
                           [](const Visit& a, const Visit& b) { return a.row == b.row; }),
               visits.end());
  return visits;
}

}  // namespace

absl::Status CheckRows(const Tensor& rows, const Tensor& before, const Tensor& variable) {
  const int64_t row_count = RowCount(variable);
  if (before.NumElements() != rows.NumElements() * RowElements(variable)) {
    return absl::InvalidArgumentError("rows_before must hold one row of the variable for each row");
  }
  const auto row = rows.flat<int64_t>();
  for (int64_t i = 0; i < row.size(); ++i) {
    if (row(i) >= 0 && row(i) < row_count) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("row ", row(i), " is not in a variable of ", row_count, " rows"));
  }
  return absl::OkStatus();
}

absl::Status RowSegments::Append(const Tensor& rows, const Tensor& before,
                                 const std::vector<int64_t>& waiting, Tensor* variable,
                                 int64_t offset, const char* name,
                                 std::vector<strom_segment>* segments) {
  TF_RETURN_IF_ERROR(CheckRows(rows, before, *variable));
  const int64_t size = variable->NumElements();
  offset_ = offset;
  row_elements_ = RowElements(*variable);
  const std::vector<Visit> visits = Visits(rows, waiting);
  // Their pointers would not survive growing.
  unchanged_.reserve(waiting.size() * static_cast<size_t>(row_elements_));

  float* const values = static_cast<float*>(variable->data());
  const float* const given = static_cast<const float*>(before.data());
  int64_t end = 0;  // of what has a segment
  const auto append_receiving = [&](int64_t until) {
    if (end == until) return;
    segments->push_back({offset + end, until - end, nullptr, nullptr, values + end, name});
    end = until;
  };
  for (const Visit& visit : visits) {
    const int64_t start = visit.row * row_elements_;
    append_receiving(start);
    const float* row_before = given + visit.place * row_elements_;
    if (visit.place < 0) {
      row_before = unchanged_.data() + unchanged_.size();
      unchanged_.insert(unchanged_.end(), values + start, values + start + row_elements_);
    }
    segments->push_back(
        {offset + start, row_elements_, row_before, values + start, values + start, name});
    end = start + row_elements_;
    visited_.push_back(visit.row);
  }
  append_receiving(size);
  return absl::OkStatus();
}

absl::Status RowSegments::FindWaiting(strom_handle replica, float threshold,
                                      std::vector<int64_t>* rows) const {
  std::vector<float> residual(static_cast<size_t>(row_elements_));
  for (const int64_t row : visited_) {
    const int code = strom_replica_read_residual(replica, offset_ + row * row_elements_,
                                                 row_elements_, residual.data());
    TF_RETURN_IF_ERROR(ToStatus(code, strom_last_error()));
    const bool waits = std::any_of(residual.begin(), residual.end(),
                                   [&](float r) { return std::fabs(r) >= threshold; });
    if (waits) rows->push_back(row);
  }
  return absl::OkStatus();
}

}  // namespace keras_strom
