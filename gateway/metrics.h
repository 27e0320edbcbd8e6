/* gateway/metrics.h - what the gateway counts, and the Prometheus text of it.
 *
 * Owns:      counters and histograms of requests; label values come from fixed lists, so a client cannot make new series.
 * Leaves:    connections to gateway/server.h, the engine's numbers to its STATS, which are passed in when writing.
 * Threads:   any; everything is atomic. */
#ifndef SLUICE_GATEWAY_METRICS_H
#define SLUICE_GATEWAY_METRICS_H
#include <stdatomic.h>
#include "base/buf.h"
#include "gateway/engine_client.h"
#include "gateway/server.h"

enum gw_route { GW_ROUTE_CHAT, GW_ROUTE_COMPLETIONS, GW_ROUTE_MESSAGES, GW_ROUTE_COUNT, GW_ROUTE_TOKENIZE, GW_ROUTE_DETOKENIZE, GW_ROUTE_MODELS, GW_ROUTE_MODEL, GW_ROUTE_HEALTH, GW_ROUTE_READY, GW_ROUTE_METRICS, GW_ROUTE_PAGE, GW_ROUTE_ADMIN, GW_ROUTE_OTHER, GW_ROUTES };
enum gw_outcome { GW_OUT_STOP, GW_OUT_LENGTH, GW_OUT_CANCELLED, GW_OUT_STALLED, GW_OUT_DEADLINE, GW_OUT_FAILED, GW_OUT_LOST, GW_OUT_REFUSED, GW_OUTCOMES };
#define GW_STATUS_SLOTS 19
#define GW_HISTOGRAM_BUCKETS 20

struct gw_histogram {
    atomic_uint_fast64_t bucket[GW_HISTOGRAM_BUCKETS + 1]; /* not cumulative; the last one is +Inf */
    atomic_uint_fast64_t sum_us;
};
struct gw_metrics {
    atomic_uint_fast64_t answers[GW_ROUTES][GW_STATUS_SLOTS];
    atomic_uint_fast64_t outcomes[GW_OUTCOMES];
    atomic_uint_fast64_t tokens_in, tokens_cached, tokens_out;
    struct gw_histogram ttft, tpot, queue, duration;
};
const char *gw_outcome_name(enum gw_outcome o);
const char *gw_route_name(enum gw_route r);
void gw_metrics_answer(struct gw_metrics *m, enum gw_route r, int status);
void gw_histogram_add(struct gw_histogram *h, uint64_t ns);

struct gw_metrics_now { /* gauges, gathered by the caller */
    size_t waiting, waiting_tokens, preparing, running, pending, log_bytes;
    uint64_t log_dropped;
    const struct gw_engine_stats *engine;
    const struct gw_counters *server;
    uint64_t rss_bytes;
};
void gw_metrics_write(struct gw_metrics *m, const struct gw_metrics_now *now, struct buf *b);
#endif
