// What links tell a node, as a test says it.
#ifndef KERAS_STROM_TESTS_NATIVE_SUPPORT_LINK_EVENTS_H_
#define KERAS_STROM_TESTS_NATIVE_SUPPORT_LINK_EVENTS_H_

#include <utility>

#include "core/base/link_layer.h"
#include "core/replication/control.h"

namespace strom {

inline LinkEvent HelloOn(LinkId link, Buffer payload) {
  return {
      .type = LinkEvent::Type::kHello, .link = link, .payload = std::move(payload), .reason = {}};
}

inline LinkEvent Up(LinkId link, Buffer payload = MakeBuffer({})) {
  return {.type = LinkEvent::Type::kUp, .link = link, .payload = std::move(payload), .reason = {}};
}

inline LinkEvent Down(LinkId link, Code code) {
  return {.type = LinkEvent::Type::kDown,
          .link = link,
          .payload = {},
          .code = code,
          .reason = "silent"};
}

inline LinkEvent MessageOn(LinkId link, Channel channel, Buffer payload) {
  return {.type = LinkEvent::Type::kMessage,
          .link = link,
          .channel = channel,
          .payload = std::move(payload),
          .reason = {}};
}

inline LinkEvent MessageOn(LinkId link, const ControlMessage& message) {
  return MessageOn(link, Channel::kControl, EncodeControl(message));
}

}  // namespace strom

#endif  // KERAS_STROM_TESTS_NATIVE_SUPPORT_LINK_EVENTS_H_
