// The benchmark's peers over TCP, plain or under TLS 1.3: what the relay is compared with. A
// message goes out as its length and its bytes in one call, or as many as make up `gather_bytes`
// together; the receiver reads straight into the message.
#ifndef KERAS_STROM_BENCH_RELAY_STREAMS_H_
#define KERAS_STROM_BENCH_RELAY_STREAMS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "bench/relay_traffic.h"
#include "core/base/types.h"

namespace strom::bench {

// One connection, blocking.
class Stream {
 public:
  virtual ~Stream() = default;
  // All of `bytes`. False: the peer is gone.
  virtual bool Write(Bytes bytes) = 0;
  // Fills `out`. False: the stream has ended.
  virtual bool Read(std::span<uint8_t> out) = 0;
  // Wakes a thread that waits in Read.
  virtual void StopReading() = 0;
  // {"retransmits", "segments"} of the data sent.
  virtual std::string CountersJson() const = 0;
};

// Makes streams of connected sockets, which they own; one for a whole process.
class StreamFactory {
 public:
  virtual ~StreamFactory() = default;
  virtual std::unique_ptr<Stream> Make(int descriptor, bool accepted) = 0;
};
std::unique_ptr<StreamFactory> MakeTcpFactory();
// Throws where the program was built without OpenSSL's libssl.
std::unique_ptr<StreamFactory> MakeTlsFactory();
// The version of libssl; "" where there is none.
std::string TlsLibrary();

// Runs the role that `options` names to its end and prints its results. Throws on any failure.
void RunOverStreams(const PeerOptions& options);

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_RELAY_STREAMS_H_
