// Texts of peers in the status: whatever they hold, Python can read it.
#include "core/base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace strom {
namespace {

std::string Quoted(const std::string& text) {
  const std::string json = JsonObject().Add("t", text).Text();
  return json.substr(7, json.size() - 9);
}

TEST(JsonTest, KeepsWhatIsUtf8) {
  const std::string text = "worker 3: K\xc3\xb6ln \xe2\x82\xac \xf0\x9f\x98\x80";
  EXPECT_EQ(Quoted(text), text);
  EXPECT_EQ(Quoted("\"a\\b\"\n"), "\\\"a\\\\b\\\" ");
}

TEST(JsonTest, ReplacesWhatIsNot) {
  EXPECT_EQ(Quoted("cut \xe2\x82"), "cut ??");
  EXPECT_EQ(Quoted("\xc0\xaf"), "??") << "overlong";
  EXPECT_EQ(Quoted("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(Quoted("\xf4\x90\x80\x80"), "????") << "over U+10FFFF";
  EXPECT_EQ(Quoted("\xff\x80z"), "??z");
}

}  // namespace
}  // namespace strom
