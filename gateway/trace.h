/* gateway/trace.h - the trace that a request belongs to, as its caller names it, for the logs.
 *
 * Source:    W3C Trace Context, traceparent: version "-" trace-id "-" parent-id "-" flags.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_TRACE_H
#define SLUICE_GATEWAY_TRACE_H
#include <stdbool.h>

#define GW_TRACE_ID 33 /* 32 hex digits and a NUL */
/* The trace-id of a well-formed header; else "" (NULL is not well-formed) and false. */
bool gw_trace_id(const char *traceparent, char id[GW_TRACE_ID]);
#endif
