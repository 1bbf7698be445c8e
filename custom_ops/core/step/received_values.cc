#include "core/step/received_values.h"

#include <algorithm>

#include "core/codec/entries.h"
#include "core/codec/message_layout.h"
#include "core/codec/message_writer.h"
#include "core/step/own_model.h"

namespace strom {
namespace {

std::vector<ParameterRange> Ranges(std::span<const strom_segment> segments) {
  std::vector<ParameterRange> ranges;
  ranges.reserve(segments.size());
  for (const strom_segment& segment : segments) {
    ranges.push_back({segment.offset, {segment.value, static_cast<size_t>(segment.size)}});
  }
  return ranges;
}

// Those of the segments that have a model of the worker's own.
std::vector<ParameterRange> Ranges(std::span<const strom_segment> segments,
                                   float* const* own_models) {
  std::vector<ParameterRange> ranges;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (own_models[i] == nullptr) continue;
    ranges.push_back({segments[i].offset, {own_models[i], static_cast<size_t>(segments[i].size)}});
  }
  return ranges;
}

// How many of a segment's elements lie within the first `known` of the flat space.
int64_t Known(const strom_segment& segment, int64_t known) {
  return std::clamp<int64_t>(known - segment.offset, 0, segment.size);
}

}  // namespace

Status ValuesOnHost::Install(std::span<const float> parameters) {
  const auto known = static_cast<int64_t>(parameters.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const strom_segment& segment = segments[i];
    const int64_t elements = Known(segment, known);
    if (elements == 0) continue;
    std::copy_n(parameters.begin() + segment.offset, elements, segment.value);
    const bool includes = includes_residual == nullptr || includes_residual[i] != 0;
    if (!full || !includes) continue;
    const strom_segment installed{segment.offset, elements,      segment.value,
                                  segment.value,  segment.value, segment.name};
    AddResiduals({&installed, 1}, 1, *residuals, parallel);
  }
  return {};
}

Status ValuesOnHost::AddSum(std::span<const float> sum, size_t* added, int64_t* skipped) {
  const auto size_of_sum = static_cast<int64_t>(sum.size());
  int64_t end = 0;  // of what has been looked at
  const auto skip_to = [&](int64_t next) {
    for (next = std::min(next, size_of_sum); end < next; ++end) {
      *skipped += sum[static_cast<size_t>(end)] != 0 ? 1 : 0;
    }
  };
  for (const strom_segment& segment : segments) {
    skip_to(segment.offset);
    const int64_t elements = std::min(segment.size, size_of_sum - end);
    for (int64_t i = 0; i < elements; ++i) segment.value[i] += sum[static_cast<size_t>(end + i)];
    end += elements;
  }
  skip_to(size_of_sum);
  *added = sum.size();
  return {};
}

Status ValuesOnHost::Add(std::span<const ReceivedUpdate> updates, uint64_t own_origin,
                         size_t* added, int64_t* skipped) {
  const auto add = [&](std::span<const ParameterRange> ranges, bool own_too) {
    std::vector<ParsedMessage> messages;
    int64_t entries = 0;
    for (const ReceivedUpdate& update : updates) {
      if (!own_too && update.id.origin == own_origin) continue;
      messages.push_back(OpenValidatedMessage(update.message()));
      entries += messages.back().count();
    }
    return ApplyMessages(messages, ranges, ForEntries(entries, parallel));
  };
  if (own_models != nullptr) add(Ranges(segments, own_models), false);
  *skipped += add(Ranges(segments), true);
  *added = updates.size();
  return {};
}

Status ValuesOnDevice::Install(std::span<const float> parameters) {
  std::vector<float> values;
  for (size_t k = 0; k < segments.size(); ++k) {
    const strom_segment& segment = segments[k];
    const int64_t elements = Known(segment, static_cast<int64_t>(parameters.size()));
    if (elements == 0) continue;
    values.assign(static_cast<size_t>(elements), 0.0f);
    if (includes_residual == nullptr || includes_residual[k] != 0) {
      if (Status status = residual->Read(segment.offset, values); !status.ok()) return status;
    }
    for (int64_t i = 0; i < elements; ++i) {
      const float r = values[static_cast<size_t>(i)];
      const float shared = parameters[static_cast<size_t>(segment.offset + i)];
      values[static_cast<size_t>(i)] = r == 0 ? shared : shared + r;
    }
    const int code = device->write_values(device->context, segment.offset, elements, values.data());
    if (Status status = StatusOf(*device, code); !status.ok()) return status;
  }
  return {};
}

// As raw spans of messages, some at a time, which devices know how to add.
Status ValuesOnDevice::AddSum(std::span<const float> sum, size_t* added, int64_t* skipped) {
  constexpr int kLog2Span = 14;
  constexpr int64_t kSpan = int64_t{1} << kLog2Span;
  constexpr int64_t kSpansAtOnce = 256;
  const auto size = static_cast<int64_t>(sum.size());
  *added = 0;
  for (int64_t span = 0; span * kSpan < size;) {
    MessageWriter writer({.elements = size}, kLog2Span, kMaxPayloadBytes);
    const int64_t end = std::min(span + kSpansAtOnce, (size + kSpan - 1) / kSpan);
    for (; span < end; ++span) {
      const int64_t elements = std::min(kSpan, size - span * kSpan);
      writer.AddRawSpan(
          span, sum.subspan(static_cast<size_t>(span * kSpan), static_cast<size_t>(elements)));
    }
    for (const std::vector<uint8_t>& message : writer.Finish()) {
      if (Status status = AddMessage(message, skipped); !status.ok()) return status;
    }
    *added = static_cast<size_t>(std::min(span * kSpan, size));
  }
  return {};
}

Status ValuesOnDevice::Add(std::span<const ReceivedUpdate> updates, uint64_t, size_t* added,
                           int64_t* skipped) {
  *added = 0;
  for (const ReceivedUpdate& update : updates) {
    if (Status status = AddMessage(update.message(), skipped); !status.ok()) return status;
    ++*added;
  }
  return {};
}

Status OwnModelsOnDevice::Install(std::span<const float>) {
  return {Code::kInternal, "a snapshot came where replicas agree in every bit"};
}

Status OwnModelsOnDevice::AddSum(std::span<const float> sum, size_t* added, int64_t*) {
  *added = 0;
  if (sum.empty()) return {};
  return {Code::kInternal, "a sum of updates came where replicas agree in every bit"};
}

// The own models have the own updates already, and entries of those lie nowhere else. What the
// device could not add waits, so that all that is shared is in the own models.
Status OwnModelsOnDevice::Add(std::span<const ReceivedUpdate> updates, uint64_t own_origin,
                              size_t* added, int64_t* skipped) {
  Status status;
  for (*added = 0; *added < updates.size() && status.ok();) {
    const auto is_own = [&](size_t i) { return updates[i].id.origin == own_origin; };
    const size_t first = *added;
    size_t end = first;  // of those alike that the own models have
    for (; end < updates.size() && is_own(end) == is_own(first); ++end) {
      if (is_own(end)) continue;
      status = AddMessage(updates[end].message(), skipped);
      if (!status.ok()) break;
    }
    int64_t not_shared = 0;
    size_t shared_added = 0;
    Status at_host =
        shared.Add(updates.subspan(first, end - first), own_origin, &shared_added, &not_shared);
    if (!at_host.ok()) return at_host;
    if (is_own(first)) *skipped += not_shared;
    *added = end;
  }
  return status;
}

Status ValuesOnDevice::AddMessage(Bytes message, int64_t* skipped) {
  int64_t missed = 0;
  const int code = device->apply(device->context, message.data(),
                                 static_cast<int64_t>(message.size()), flat_size, &missed);
  *skipped += missed;
  return StatusOf(*device, code);
}

}  // namespace strom
