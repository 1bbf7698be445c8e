// The socket's promise is single datagrams, whole and in order, whether or not the kernel moves
// them in runs: every test here that can runs with and without its help.
#include "net/udp_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

namespace strom {
namespace {

using Datagrams = std::vector<std::vector<uint8_t>>;

std::unique_ptr<UdpSocket> Opened(const UdpSocketOptions& options = {},
                                  const std::string& literal = "127.0.0.1") {
  std::unique_ptr<UdpSocket> socket;
  const Status status = UdpSocket::Open(literal, 0, &socket, options);
  EXPECT_TRUE(status.ok()) << status.message;
  return socket;
}

Address AddressOf(const UdpSocket& socket, const std::string& literal = "127.0.0.1") {
  Address address;
  EXPECT_TRUE(ParseAddress(literal, socket.port(), &address).ok());
  return address;
}

// Datagrams of these sizes, no two alike.
Datagrams OfSizes(const std::vector<size_t>& sizes) {
  Datagrams datagrams;
  for (const size_t size : sizes) {
    auto& datagram = datagrams.emplace_back(size);
    for (size_t i = 0; i < size; ++i) datagram[i] = static_cast<uint8_t>(datagrams.size() * 7 + i);
  }
  return datagrams;
}

void Push(UdpSocket* socket, const Address& to, const std::vector<uint8_t>& datagram) {
  if (socket->full()) {
    EXPECT_TRUE(socket->Flush());
  }
  const std::span<uint8_t> room = socket->Next();
  ASSERT_GE(room.size(), datagram.size());
  std::copy(datagram.begin(), datagram.end(), room.begin());
  socket->Push(to, datagram.size());
}

// Waits for `count` datagrams, at most 5 s for each batch.
Datagrams Take(UdpSocket* socket, size_t count) {
  Datagrams datagrams;
  while (datagrams.size() < count) {
    pollfd descriptor = {socket->descriptor(), POLLIN, 0};
    if (poll(&descriptor, 1, 5000) != 1) break;
    for (const auto& received : socket->Receive()) {
      datagrams.emplace_back(received.datagram.begin(), received.datagram.end());
    }
  }
  return datagrams;
}

class UdpSocketTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<UdpSocket> left_ = Opened({.offload = GetParam()});
  std::unique_ptr<UdpSocket> right_ = Opened({.offload = GetParam()});
};

INSTANTIATE_TEST_SUITE_P(Offload, UdpSocketTest, testing::Bool());

TEST(UdpSocket, LeavesTheKernelsHelpAloneWhereItIsToldTo) {
  const auto socket = Opened({.offload = false});
  EXPECT_FALSE(socket->segments_sends());
  EXPECT_FALSE(socket->joins_receives());
}

TEST_P(UdpSocketTest, CarriesRunsAndSingleDatagramsWholeAndInOrder) {
  std::vector<size_t> sizes = {1, 1200, 1200, 1200, 52, 1200, 1300, 9000, 9000, 8999, 9000};
  sizes.insert(sizes.end(), 100, 1200);  // more than one run holds
  sizes.insert(sizes.end(), 100, 60);
  const Datagrams sent = OfSizes(sizes);
  for (const auto& datagram : sent) Push(left_.get(), AddressOf(*right_), datagram);
  ASSERT_TRUE(left_->Flush());
  EXPECT_EQ(Take(right_.get(), sent.size()), sent);
  EXPECT_EQ(left_->send_errors(), 0);
}

TEST_P(UdpSocketTest, KeepsPeersApart) {
  const auto third = Opened({.offload = GetParam()});
  const Datagrams sent = OfSizes(std::vector<size_t>(60, 500));
  Datagrams to_right, to_third;
  for (size_t i = 0; i < sent.size(); ++i) {
    const bool right = i % 5 < 2;
    (right ? to_right : to_third).push_back(sent[i]);
    Push(left_.get(), AddressOf(right ? *right_ : *third), sent[i]);
  }
  ASSERT_TRUE(left_->Flush());
  EXPECT_EQ(Take(right_.get(), to_right.size()), to_right);
  EXPECT_EQ(Take(third.get(), to_third.size()), to_third);
}

TEST_P(UdpSocketTest, SaysWhetherMoreWaits) {
  const Datagrams sent = OfSizes({10, 2000, 20, 3000});  // no two in one run
  for (int i = 0; i < 40; ++i) {
    for (const auto& datagram : sent) Push(left_.get(), AddressOf(*right_), datagram);
  }
  ASSERT_TRUE(left_->Flush());
  size_t count = right_->Receive().size();
  EXPECT_FALSE(right_->drained());
  while (!right_->drained()) count += right_->Receive().size();
  EXPECT_EQ(count, 160u);
}

TEST_P(UdpSocketTest, SpeaksIpv4OnASocketOfEveryInterface) {
  const auto any = Opened({.offload = GetParam()}, "");
  const Datagrams sent = OfSizes({700, 700, 700, 20});
  for (const auto& datagram : sent) Push(any.get(), AddressOf(*right_), datagram);
  ASSERT_TRUE(any->Flush());
  EXPECT_EQ(Take(right_.get(), sent.size()), sent);
  for (const auto& datagram : sent) Push(right_.get(), AddressOf(*any), datagram);
  ASSERT_TRUE(right_->Flush());
  EXPECT_EQ(Take(any.get(), sent.size()), sent);
}

TEST_P(UdpSocketTest, TakesDatagramsThatAreTooLongAsCutOnes) {
  // Nobody who keeps the protocol sends them; whoever checks them sees that they are not authentic.
  const auto plain = Opened();
  const std::vector<uint8_t> huge(60'000, 1);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(right_->port());
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(sendto(plain->descriptor(), huge.data(), huge.size(), 0,
                   reinterpret_cast<const sockaddr*>(&to), sizeof(to)),
            static_cast<ssize_t>(huge.size()));
  EXPECT_EQ(Take(right_.get(), 1).size(), 1u);
}

// ---------------------------------------------------------------- what the kernel refuses

// Stands in for sendmmsg: fails with `error` what `refuses` says, counts what it lets pass.
struct Sends {
  static inline int error = 0;
  static inline bool (*refuses)(const mmsghdr&) = nullptr;
  static inline int passed = 0;

  static bool IsRun(const mmsghdr& message) { return message.msg_hdr.msg_controllen > 0; }

  static int Send(int descriptor, mmsghdr* messages, unsigned count, int flags) {
    unsigned accepted = 0;
    while (accepted < count && !refuses(messages[accepted])) ++accepted;
    if (accepted == 0) {
      errno = error;
      return -1;
    }
    const int sent = sendmmsg(descriptor, messages, accepted, flags);
    if (sent > 0) passed += sent;
    return sent;
  }
};

class RefusedSendTest : public testing::Test {
 protected:
  void Refuse(int error, bool (*refuses)(const mmsghdr&)) {
    Sends::error = error;
    Sends::refuses = refuses;
    Sends::passed = 0;
  }
  std::unique_ptr<UdpSocket> left_ = Opened({.send = Sends::Send});
  std::unique_ptr<UdpSocket> right_ = Opened();
};

TEST_F(RefusedSendTest, ARunThatTheCardCannotCutLeavesAtOnceInSingleDatagrams) {
  const Datagrams sent = OfSizes({100, 1200, 1200, 1200, 400, 1200, 1200, 1200});
  for (const int error : {EIO, EINVAL}) {
    left_ = Opened({.send = Sends::Send});
    if (!left_->segments_sends()) GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
    Refuse(error, Sends::IsRun);
    for (const auto& datagram : sent) Push(left_.get(), AddressOf(*right_), datagram);
    ASSERT_TRUE(left_->Flush());
    EXPECT_FALSE(left_->segments_sends());
    EXPECT_EQ(Sends::passed, 8);
    EXPECT_EQ(left_->send_errors(), 0);
    EXPECT_EQ(Take(right_.get(), sent.size()), sent);
  }
}

// A peer whose address takes nothing is not the card's fault.
TEST_F(RefusedSendTest, ARunThatIsRefusedInSingleDatagramsTooLeavesSegmentationOn) {
  if (!left_->segments_sends()) GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
  static uint16_t refused_port = 0;
  const auto nowhere = Opened();
  refused_port = nowhere->port();
  Refuse(EINVAL, [](const mmsghdr& m) {
    return ntohs(static_cast<const sockaddr_in*>(m.msg_hdr.msg_name)->sin_port) == refused_port;
  });
  const Datagrams sent = OfSizes({1200, 1200, 1200});
  for (const auto& datagram : sent) Push(left_.get(), AddressOf(*nowhere), datagram);
  for (const auto& datagram : sent) Push(left_.get(), AddressOf(*right_), datagram);
  ASSERT_TRUE(left_->Flush());
  EXPECT_TRUE(left_->segments_sends());
  EXPECT_EQ(left_->send_errors(), 3);
  EXPECT_EQ(Sends::passed, 1);  // the other run, whole
  EXPECT_EQ(Take(right_.get(), sent.size()), sent);
}

// A link's probe for larger datagrams is sent whole or not at all, whatever follows it. Kernels
// refuse a run of which the first is too long with one error or the other.
TEST_F(RefusedSendTest, ADatagramThatIsTooLongCostsNoOtherAndLeavesSegmentationOn) {
  if (!left_->segments_sends()) GTEST_SKIP() << "this kernel has no UDP_SEGMENT";
  static int error_of_run = 0;
  const auto refuses = [](const mmsghdr& m) {
    Sends::error = Sends::IsRun(m) ? error_of_run : EMSGSIZE;
    return m.msg_hdr.msg_iov->iov_len > 8000;
  };
  for (const int error : {EMSGSIZE, EINVAL}) {
    error_of_run = error;
    Refuse(error, refuses);
    const Datagrams sent = OfSizes({8972, 1200, 1201, 1200});
    for (const auto& datagram : sent) Push(left_.get(), AddressOf(*right_), datagram);
    ASSERT_TRUE(left_->Flush());
    EXPECT_TRUE(left_->segments_sends());
    EXPECT_EQ(left_->send_errors(), 0);
    EXPECT_EQ(Take(right_.get(), 3), Datagrams(sent.begin() + 1, sent.end()));
  }
}

TEST_F(RefusedSendTest, DatagramsThatAreNotGivenOutAreCounted) {
  Refuse(EINVAL, [](const mmsghdr&) { return false; });
  const Address to = AddressOf(*right_);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(to.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      sendto(left_->descriptor(), "", 0, 0, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
      0);
  pollfd readable{right_->descriptor(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 10'000), 1);
  EXPECT_TRUE(right_->Receive().empty());
  EXPECT_EQ(right_->ignored(), 1);
}

TEST_F(RefusedSendTest, NothingIsSentToPort0) {
  Refuse(EINVAL, [](const mmsghdr&) { return false; });
  Address zero = AddressOf(*right_);
  zero.port = 0;
  const Datagrams sent = OfSizes({1200, 1200});
  for (const auto& datagram : sent) Push(left_.get(), zero, datagram);
  for (const auto& datagram : sent) Push(left_.get(), AddressOf(*right_), datagram);
  ASSERT_TRUE(left_->Flush());
  EXPECT_EQ(left_->send_errors(), 2);
  EXPECT_EQ(Take(right_.get(), sent.size()), sent);
}

TEST_F(RefusedSendTest, ALinkLocalPeerIsReachedOverItsOwnInterface) {
  const auto any = Opened({.send = Sends::Send}, "::");
  static uint32_t scope = 0;
  Refuse(ENETUNREACH, [](const mmsghdr& m) {
    scope = static_cast<const sockaddr_in6*>(m.msg_hdr.msg_name)->sin6_scope_id;
    return true;
  });
  Address peer;
  ASSERT_TRUE(ParseAddress("fe80::1%lo", 9, &peer).ok());
  EXPECT_NE(peer.scope, 0u);
  EXPECT_EQ(ToString(peer), "[fe80::1%lo]:9");
  Push(any.get(), peer, OfSizes({100})[0]);
  ASSERT_TRUE(any->Flush());
  EXPECT_EQ(scope, peer.scope);
  EXPECT_FALSE(ParseAddress("fe80::1%nowhere", 9, &peer).ok());
}

TEST_F(RefusedSendTest, ARefusedDatagramCostsOnlyItself) {
  Refuse(ENETUNREACH, [](const mmsghdr& m) { return m.msg_hdr.msg_iov->iov_len == 77; });
  const Datagrams sent = OfSizes({50, 77, 90, 95});
  for (const auto& datagram : sent) Push(left_.get(), AddressOf(*right_), datagram);
  ASSERT_TRUE(left_->Flush());
  EXPECT_EQ(left_->send_errors(), 1);
  const Datagrams passed = {sent[0], sent[2], sent[3]};

  EXPECT_EQ(Take(right_.get(), 3), passed);
}

TEST_F(RefusedSendTest, WhatFindsNoRoomStaysQueuedAndOthersJoinIt) {
  Refuse(EAGAIN, [](const mmsghdr&) { return true; });
  const Datagrams sent = OfSizes({500, 500, 500, 500});
  Push(left_.get(), AddressOf(*right_), sent[0]);
  Push(left_.get(), AddressOf(*right_), sent[1]);
  EXPECT_FALSE(left_->Flush());
  Push(left_.get(), AddressOf(*right_), sent[2]);
  Refuse(0, [](const mmsghdr&) { return false; });
  EXPECT_TRUE(left_->Flush());
  Push(left_.get(), AddressOf(*right_), sent[3]);
  EXPECT_TRUE(left_->Flush());
  EXPECT_EQ(Take(right_.get(), 4), sent);
}

TEST(UdpSocket, ReportsWhatItGotOfTheReceiveBufferThatItAskedFor) {
  const auto socket = Opened({.receive_buffer_bytes = 100'000});
  EXPECT_EQ(socket->receive_buffer_wanted_bytes(), 100'000);
  EXPECT_EQ(socket->receive_buffer_bytes(), 100'000);
}

}  // namespace
}  // namespace strom
