#include "motley/report/html.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/page_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Html, TextAndAttributesAreEscaped) {
  EXPECT_EQ(Html("a < b && \"c\" > 'd'").markup(), "a &lt; b &amp;&amp; &quot;c&quot; &gt; &#39;d&#39;");
  EXPECT_EQ(tag("p", {{"title", "\"><script>"}}, "x").markup(), "<p title=\"&quot;&gt;&lt;script&gt;\">x</p>");
  EXPECT_EQ(Html(std::string("a\0b\x1b", 4)).markup(),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(Html("gr\u00fc\u00df dich\n").markup(), "gr\u00fc\u00df dich\n");
}

TEST(Html, WhatIsMarkupIsNotEscapedAgain) {
  const Html inner = tag("b", {}, "<");
  EXPECT_EQ((Html{"a ", inner, " z"}).markup(), "a <b>&lt;</b> z");
  EXPECT_EQ(div("card", inner).markup(), "<div class=\"card\"><b>&lt;</b></div>");
  EXPECT_EQ(div("", "x").markup(), "<div>x</div>");
}

TEST(Html, TablesAlignFigures) {
  const std::string text = table({"name", ">share"}, {{"a<b", "42%"}}).markup();
  EXPECT_THAT(text, HasSubstr("<th scope=\"col\">name</th><th class=\"n\" scope=\"col\">share</th>"));
  EXPECT_THAT(text, HasSubstr("<td>a&lt;b</td><td class=\"n\">42%</td>"));
}

TEST(Html, EmptySectionsAreNotOnThePage) {
  const std::string text = page("kind", "a & b", "head", {{"one", "One", "here"}, {"two", "Two", {}}});
  EXPECT_THAT(text, HasSubstr("<title>a &amp; b</title>"));
  EXPECT_THAT(text, HasSubstr("<a href=\"#one\">One</a>"));
  EXPECT_THAT(text, Not(HasSubstr("Two")));
  EXPECT_EQ(nesting_error(text), "");
}

TEST(PageMarks, WidthsAreShares) {
  EXPECT_EQ(share_of_width(0.123456), "12.35%");
  EXPECT_EQ(share_of_width(0), "0%");
  EXPECT_EQ(share_of_width(1), "100%");
  EXPECT_EQ(share_of_width(7), "100%");
  EXPECT_EQ(share_of_width(-1), "0%");
  EXPECT_EQ(mark("m0", 0.25, 0.75).markup(), "<rect class=\"m0\" x=\"25%\" width=\"50%\"></rect>");
}

TEST(PageMarks, PartsFollowEachOtherUpToTheLimit) {
  const std::string text = stacked_bar({{"m0", 30, "thirty"}, {"m1", 0}, {"m2", 10}}, 50, 100, "a bar").markup();
  EXPECT_THAT(text, HasSubstr("<rect class=\"room\" x=\"0%\" width=\"50%\">"));
  EXPECT_THAT(text, HasSubstr("<rect class=\"m0\" x=\"0%\" width=\"30%\"><title>thirty</title>"));
  EXPECT_THAT(text, HasSubstr("<rect class=\"m2\" x=\"30%\" width=\"10%\">"));
  EXPECT_THAT(text, Not(HasSubstr("m1")));
  EXPECT_THAT(text, HasSubstr("role=\"img\" aria-label=\"a bar\""));
}

TEST(PageMarks, AxesHaveEvenSteps) {
  const PageAxis minute = time_axis(60);
  EXPECT_EQ(minute.labels, (std::vector<std::string>{"0 s", "20 s", "40 s", "60 s"}));
  EXPECT_DOUBLE_EQ(minute.ticks[1], 1.0 / 3);
  EXPECT_EQ(time_axis(0.007).labels, (std::vector<std::string>{"0 ms", "2 ms", "4 ms", "6 ms"}));
  EXPECT_EQ(time_axis(2.5e-6).labels.back(), "2.5 us");
  EXPECT_EQ(count_axis(80).labels, (std::vector<std::string>{"0", "20", "40", "60", "80"}));
  EXPECT_EQ(count_axis(2).labels, (std::vector<std::string>{"0", "1", "2"}));
}

TEST(PageMarks, CurvesAreStepsFromTheGround) {
  const std::string text = area("busy", {0.25, 1}).markup();
  EXPECT_THAT(text, HasSubstr("d=\"M0 100L0 75L1 75L1 0L2 0L2 100Z\""));
}

TEST(PageMarks, ManyDevicesAreShortened) {
  std::vector<std::string> devices;
  for (int i = 0; i < 20; ++i) devices.push_back("machine-" + std::to_string(i) + "/0");
  const std::string text = device_names(devices).markup();
  EXPECT_THAT(text, HasSubstr(">machine-0/0, machine-1/0, machine-2/0 and 17 more<"));
  EXPECT_THAT(text, HasSubstr("machine-19/0\""));
  EXPECT_EQ(device_names({"box/0", "box/1"}).markup(), "box/0-1");
}

TEST(CostOnAPage, TermsBeginWhereTheOneBeforeEnded) {
  const Term tree = sum_of("all", {leaf("first", 1), leaf("second", 3)});
  const std::string text = cost_content(tree).markup();
  EXPECT_THAT(text, HasSubstr("x=\"0%\" width=\"25%\""));
  EXPECT_THAT(text, HasSubstr("x=\"25%\" width=\"75%\""));
  EXPECT_THAT(text, HasSubstr("first: 1.00 s, 25%"));
}

TEST(CostOnAPage, OnlyTheLargestOfAMaximumCounts) {
  const Term tree = sum_of("all", {max_of("both", {leaf("a<b", 2), leaf("large", 4)}, "why"), leaf("rest", 4)});
  const std::string text = cost_content(tree).markup();
  EXPECT_THAT(text, HasSubstr("(2.00 s)"));
  EXPECT_THAT(text, HasSubstr("<rect class=\"fill hidden\" x=\"0%\" width=\"25%\">"));
  EXPECT_THAT(text, HasSubstr("<rect class=\"fill d2\" x=\"0%\" width=\"50%\">"));
  EXPECT_THAT(text, HasSubstr("<rect class=\"fill d1\" x=\"50%\" width=\"50%\">"));
  EXPECT_THAT(text, HasSubstr("a&lt;b"));
  EXPECT_EQ(nesting_error(text), "");
}

TEST(CostOnAPage, LargeTreesEndSooner) {
  std::vector<Term> routes;
  for (int i = 0; i < 30; ++i) {
    std::vector<Term> stages;
    for (int j = 0; j < 40; ++j) stages.push_back(sum_of("stage", {leaf("deep", 1), leaf("deep", 1)}));
    routes.push_back(sum_of("route", std::move(stages)));
  }
  const std::string text = cost_content(sum_of("all", std::move(routes))).markup();
  EXPECT_THAT(text, HasSubstr("route"));
  EXPECT_THAT(text, Not(HasSubstr(">stage<")));
  EXPECT_THAT(text, HasSubstr("`motley explain --depth 16`"));
  EXPECT_THAT(cost_content(sum_of("all", {leaf("one", 1)})).markup(), Not(HasSubstr("omits deeper terms")));
}

}  // namespace
}  // namespace motley
