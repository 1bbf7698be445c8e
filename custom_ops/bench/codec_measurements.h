// What `make bench-codec` times, one measurement at a time. Who asks decides on the order and the
// number of rounds, so that ours, the references and other libraries take turns.
#ifndef KERAS_STROM_BENCH_CODEC_MEASUREMENTS_H_
#define KERAS_STROM_BENCH_CODEC_MEASUREMENTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/huge_array.h"
#include "bench/steady_updates.h"
#include "bench/thread_pool.h"
#include "core/codec/entries.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/step/residual.h"

namespace strom::bench {

struct Request {
  std::string name;
  double density = 0;
  int threads = 1;
  std::string kernel;  // one of StepKernels(); empty = the fastest
};

struct Sample {
  // Of the fastest pass, for what disturbs one is not the code's: the thread's own time, or, where
  // there are several threads, by the clock.
  double seconds = 0;
  int64_t elements = 0;  // of a pass
  int64_t entries = 0;   // of the last pass
  int64_t bytes = 0;     // of the last pass's messages, where it made any
};

class CodecMeasurements {
 public:
  // Every pass goes over `elements` elements, and a measurement is `passes` passes.
  CodecMeasurements(int64_t elements, int passes);
  ~CodecMeasurements();

  static std::vector<std::string> Names();
  static std::vector<std::string> Kernels();

  // Throws std::invalid_argument for a name or a kernel that is not there.
  Sample Measure(const Request& request);

 private:
  using Method = Sample (CodecMeasurements::*)(const Request&);
  struct Update;
  struct Parameters;

  static const std::map<std::string, Method>& Methods();

  // Encoding.
  Sample AddReference(const Request& request);
  Sample Encode(const Request& request);
  Sample EncodeAndCode(const Request& request);
  Sample EncodeBitmap(const Request& request);
  Sample EncodeAndCodeBitmap(const Request& request);
  Sample EncodeBitmap4(const Request& request);
  Sample EncodeAndCodeBitmap4(const Request& request);
  Sample ListOfDeeplearning4j(const Request& request);
  Sample BitmapOfDeeplearning4j(const Request& request);
  // A whole training step.
  Sample UpdateReference(const Request& request);
  Sample StepInFull(const Request& request);
  Sample DifferenceReference(const Request& request);
  Sample StepIntoAfter(const Request& request);
  Sample StepIntoBefore(const Request& request);
  Sample StepInto(const Request& request, float* value);
  template <typename RunAt>
  Sample Step(const Request& request, RunAt run_at);
  template <typename Work>
  Sample PassOverUpdates(const Request& request, Work work);
  // The coder by itself.
  Sample Code(const Request& request);
  Sample Check(const Request& request);
  Sample Decode(const Request& request);
  // Applying.
  Sample ScaleReference(const Request& request);
  Sample Apply(const Request& request);
  Sample ApplyBitmap(const Request& request);
  Sample ApplyBitmap4(const Request& request);
  Sample ApplyEightOneByOne(const Request& request);
  Sample ApplyEightTogether(const Request& request);

  template <typename Prepare, typename Pass>
  Sample Time(const Request& request, Prepare prepare, Pass pass) const;
  Sample ApplyOne(const Request& request, const ParsedMessage& message);
  template <typename Work>
  void ForEachChunk(int threads, Work work);
  void EncodeChunk(const StepKernel& kernel, SteadyResiduals& residuals, const float* update,
                   int64_t chunk, EntryList* entries) const;
  Bitmap FindBitmap(const StepKernel& kernel, SteadyResiduals& residuals, const float* update);
  Bitmap4 FindBitmap4(const Request& request, const float* update);
  float ThresholdWithHalves(double density);

  SteadyResiduals& Residuals(double density, double negative_part = 1);
  const std::vector<Update>& Updates(double density);
  Parameters& parameters();
  int32_t* foreign_output();

  int64_t elements_;
  int64_t chunks_;
  int passes_;
  int64_t iteration_ = 0;  // of the last bitmap of four states
  SteadyUpdates updates_;
  HugeArray<float> reference_residuals_;
  EntryList entries_;
  std::vector<EntryList> chunk_entries_;  // where chunks are encoded in parallel
  std::map<int, ThreadPool> pools_;       // by number of threads

  // Made when first needed.
  std::map<std::pair<double, double>, SteadyResiduals> residuals_;
  std::map<double, SteadyResiduals> halved_residuals_;  // of half the threshold that is used
  std::map<double, std::vector<Update>> kept_;
  std::unique_ptr<HugeArray<uint8_t>> bitmap_memory_;
  std::unique_ptr<HugeArray<uint8_t>> bitmap4_memory_;
  std::unique_ptr<HugeArray<int32_t>> foreign_output_;
  std::unique_ptr<Parameters> parameters_;
};

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_CODEC_MEASUREMENTS_H_
