/* What is a traceparent and what is not. */
#include "gateway/trace.h"
#include "tests/support/suite.h"

#define T "0af7651916cd43dd8448eb211c80319c"
#define P "b7ad6b7169203331"

START_TEST(core)
{
    static const struct { const char *header; bool ok; } cases[] = {
        {"00-" T "-" P "-01", true}, {"00-" T "-" P "-00", true}, {"01-" T "-" P "-01-more", true}, {"cc-" T "-" P "-01", true},
        {NULL, false}, {"", false}, {"00-" T "-" P, false}, {"00-" T "-" P "-01-more", false}, {"ff-" T "-" P "-01", false}, {"00-" T "-" P "-0g", false},
        {"00-00000000000000000000000000000000-" P "-01", false}, {"00-" T "-0000000000000000-01", false}, {"00-0AF7651916CD43DD8448EB211C80319C-" P "-01", false},
        {"00_" T "-" P "-01", false}, {"01-" T "-" P "-01more", false}, {"00-" T "\n" P "-01", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char id[GW_TRACE_ID] = "x";
        ck_assert_msg(gw_trace_id(cases[i].header, id) == cases[i].ok, "%s", cases[i].header);
        ck_assert_str_eq(id, cases[i].ok ? T : "");
    }
}
END_TEST

SUITE("gateway", "trace", core)
