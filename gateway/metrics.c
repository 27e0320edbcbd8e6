#include "gateway/metrics.h"

#include <stdio.h>

static const char *const route_names[GW_ROUTES] = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
                                                  "/tokenize", "/detokenize", "/v1/models", "/v1/models/{id}", "/health", "/ready", "/metrics", "pages", "/admin/requests", "other"};
static const char *const outcome_names[GW_OUTCOMES] = {"stop", "length", "cancelled", "stalled", "deadline", "failed", "lost", "refused"};
static const int statuses[GW_STATUS_SLOTS - 1] = {200, 204, 304, 400, 401, 403, 404, 405, 408, 413, 415, 429, 500, 501, 502, 503, 504, 529};
static const double bounds_s[GW_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25,
                                                      0.5,   0.75,   1,     2.5,  5,     10,   30,    60,  300,  1800};

const char *gw_outcome_name(enum gw_outcome o) { return outcome_names[o]; }
const char *gw_route_name(enum gw_route r) { return route_names[r]; }

void gw_metrics_answer(struct gw_metrics *m, enum gw_route r, int status)
{
    size_t i = 0;
    while (i < GW_STATUS_SLOTS - 1 && statuses[i] != status)
        i++;
    atomic_fetch_add_explicit(&m->answers[r][i], 1, memory_order_relaxed);
}

void gw_histogram_add(struct gw_histogram *h, uint64_t ns)
{
    double s = (double)ns * 1e-9;
    size_t i = 0;
    while (i < GW_HISTOGRAM_BUCKETS && s > bounds_s[i])
        i++;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, ns / 1000, memory_order_relaxed);
}

static unsigned long long get(atomic_uint_fast64_t *v)
{
    return (unsigned long long)atomic_load_explicit(v, memory_order_relaxed);
}

static void put_histogram(struct buf *b, const char *name, const char *help, struct gw_histogram *h)
{
    unsigned long long n = 0;
    buf_printf(b, "# HELP sluice_%s %s\n# TYPE sluice_%s histogram\n", name, help, name);
    for (size_t i = 0; i < GW_HISTOGRAM_BUCKETS; i++)
        buf_printf(b, "sluice_%s_bucket{le=\"%g\"} %llu\n", name, bounds_s[i], n += get(&h->bucket[i]));
    n += get(&h->bucket[GW_HISTOGRAM_BUCKETS]);
    buf_printf(b, "sluice_%s_bucket{le=\"+Inf\"} %llu\nsluice_%s_sum %.6f\nsluice_%s_count %llu\n", name, n, name, (double)get(&h->sum_us) * 1e-6, name, n);
}

static void put(struct buf *b, const char *kind, const char *name, const char *help, unsigned long long v)
{
    buf_printf(b, "# HELP sluice_%s %s\n# TYPE sluice_%s %s\nsluice_%s %llu\n", name, help, name, kind, name, v);
}

static void put_requests(struct gw_metrics *m, struct buf *b)
{
    buf_str(b, "# HELP sluice_requests_total Answers by route and status (of a stream: how it began).\n# TYPE sluice_requests_total counter\n");
    for (int r = 0; r < GW_ROUTES; r++)
        for (size_t i = 0; i < GW_STATUS_SLOTS; i++) {
            unsigned long long v = get(&m->answers[r][i]);
            char status[8] = "other";
            if (i < GW_STATUS_SLOTS - 1)
                snprintf(status, sizeof status, "%d", statuses[i]);
            if (v || (r == GW_ROUTE_CHAT && i == 0))
                buf_printf(b, "sluice_requests_total{route=\"%s\",status=\"%s\"} %llu\n", route_names[r], status, v);
        }
    buf_str(b, "# HELP sluice_generations_total Requests that reached the engine, by how they ended.\n# TYPE sluice_generations_total counter\n");
    for (int i = 0; i < GW_OUTCOMES; i++)
        buf_printf(b, "sluice_generations_total{reason=\"%s\"} %llu\n", outcome_names[i], get(&m->outcomes[i]));
}

/* A label's value: what may not stand in quotes is escaped. */
static void put_label(struct buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_char(b, '\\');
        buf_char(b, (unsigned char)*s < 32 ? ' ' : *s);
    }
}

static void put_drives(const struct eng_stats *e, struct buf *b)
{
    static const struct { const char *name, *help; } rows[] = {{"drive_read_bytes_total", "Bytes of weights read from a drive, and how."},
                                                               {"drive_reads_total", "Reads of weights from a drive."},
                                                               {"drive_errors_total", "Of those, the ones that failed."}};
    for (unsigned k = 0; k < sizeof rows / sizeof *rows && e->n_drives; k++) {
        buf_printf(b, "# HELP sluice_%s %s\n# TYPE sluice_%s counter\n", rows[k].name, rows[k].help, rows[k].name);
        for (uint32_t i = 0; i < e->n_drives; i++) {
            const struct eng_drive *d = &e->drives[i];
            buf_printf(b, "sluice_%s{drive=\"", rows[k].name);
            put_label(b, d->dir);
            buf_str(b, "\",reading=\"");
            put_label(b, d->reading);
            buf_printf(b, "\"} %llu\n", (unsigned long long)(k == 0 ? d->bytes : k == 1 ? d->reads : d->errors));
        }
    }
}

static void put_engine(const struct gw_engine_stats *s, struct buf *b)
{
    put(b, "gauge", "engine_up", "1 while an engine is connected and has generated a token.", s->up);
    put(b, "counter", "engine_connects_total", "Times the engine was connected.", s->connects);
    put(b, "counter", "engine_restarts_total", "Times another engine process was found in place of the last.", s->restarts);
    put(b, "counter", "resubmitted_total", "Requests sent again after the engine was lost.", s->resubmitted);
    put(b, "counter", "lost_total", "Requests given up because no engine came back in time.", s->lost);
    put(b, "gauge", "inflight_requests", "Requests at the engine, running or waiting.", s->streams);
    put(b, "gauge", "engine_link_bytes", "Bytes of frames that the engine has not taken.", s->link_bytes);
    if (!s->has_engine)
        return;
    const struct eng_stats *e = &s->engine;
    put(b, "gauge", "engine_running", "Sequences that run.", e->running);
    put(b, "gauge", "engine_waiting", "Requests that wait inside the engine.", e->waiting);
    put(b, "gauge", "engine_waiting_tokens", "Their prompt tokens.", e->waiting_tokens);
    put(b, "gauge", "engine_sequences_max", "Sequences that can run at once.", e->seqs_max);
    put(b, "counter", "engine_steps_total", "Steps over all running sequences.", e->steps);
    put(b, "counter", "engine_step_microseconds_total", "Time of the scheduler's turns that ran a step.", e->step_ns / 1000);
    put(b, "counter", "engine_model_microseconds_total", "Of that, computing the model.", e->model_ns / 1000);
    put(b, "counter", "engine_draw_microseconds_total", "Of that, drawing tokens, grammars included.", e->draw_ns / 1000);
    put(b, "counter", "draft_tokens_total", "Tokens that were guessed and computed beside known ones.", e->draft_tokens);
    put(b, "counter", "draft_accepted_total", "Of those, the ones that came true.", e->draft_accepted);
    put(b, "gauge", "kv_pages", "Pages of the KV pools.", e->kv_pages);
    put(b, "gauge", "kv_pages_used", "Pages that running sequences hold.", e->kv_pages_used);
    put(b, "gauge", "prefix_pages", "Full pages that later prompts can use, held by a sequence or not.", e->prefix_pages);
    put(b, "counter", "prefix_lookups_total", "Prompts looked up in the prefix index: once for each admission to a slot.", e->prefix_lookups);
    put(b, "counter", "prefix_hits_total", "Of those, the ones that found pages.", e->prefix_hits);
    put(b, "counter", "prefix_tokens_total", "Tokens found there and not computed.", e->prefix_tokens);
    put(b, "counter", "prefix_evictions_total", "Pages and snapshots dropped from the index for want of room.", e->prefix_evictions);
    put(b, "gauge", "snapshots", "Snapshots of recurrent states that later prompts can go on from.", e->snapshots);
    put(b, "gauge", "snapshots_max", "Snapshots that there is room for.", e->snapshots_max);
    put(b, "gauge", "snapshot_bytes", "Bytes of that room.", e->snapshot_bytes);
    put(b, "counter", "snapshots_taken_total", "Snapshots put into the prefix index.", e->snapshots_taken);
    put(b, "counter", "snapshots_restored_total", "Sequences that went on from one.", e->snapshots_restored);
    put(b, "gauge", "kv_bytes", "Bytes of the KV pools.", e->kv_bytes);
    put(b, "gauge", "weight_bytes", "Bytes of memory that weights take: what stays, and the window and buffers through which the rest passes.", e->weight_bytes);
    put(b, "gauge", "weight_sweep_bytes", "Bytes of weights that pass through that window in every step.", e->weight_sweep_bytes);
    put(b, "counter", "weight_read_bytes_total", "Bytes of weights read from files.", e->weight_read_bytes);
    put(b, "counter", "weight_wanted_bytes_total", "Of those, the bytes that were wanted; the others come with alignment.", e->weight_wanted_bytes);
    put(b, "gauge", "weight_failing", "1 while weights that stream cannot be read.", e->weight_failing);
    put_drives(e, b);
    put(b, "counter", "weight_stalls_total", "Times a step waited for weights.", e->weight_stalls);
    put(b, "counter", "weight_stall_microseconds_total", "How long steps waited for weights.", e->weight_stall_ns / 1000);
    put(b, "gauge", "expert_slots", "Routed experts that the cache holds; 0: all of them stay in memory, or there are none.", e->expert_slots);
    put(b, "gauge", "experts", "Routed experts that the cache serves.", e->experts);
    put(b, "counter", "expert_hits_total", "Times that a step chose an expert which was in the cache or on its way there.", e->expert_hits);
    put(b, "counter", "expert_misses_total", "Times that it had to be read.", e->expert_misses);
    put(b, "counter", "expert_read_bytes_total", "Bytes of experts that came into the cache.", e->expert_read_bytes);
    put(b, "counter", "expert_preloaded_total", "Experts read ahead of any use, by what an earlier run left.", e->expert_preloaded);
    put(b, "gauge", "activation_bytes", "Bytes of activations.", e->activation_bytes);
    put(b, "gauge", "engine_ram_max_bytes", "The engine's memory budget.", e->ram_max);
}

static void put_server(const struct gw_counters *c, struct buf *b)
{
    put(b, "gauge", "connections", "Open connections.", c->connections_open);
    put(b, "counter", "connections_total", "Connections accepted.", c->connections);
    put(b, "counter", "connections_refused_total", "Connections closed at once: too many.", c->connections_refused);
    put(b, "counter", "connections_refused_address_total", "Connections closed at once: too many of one address.", c->connections_refused_address);
    put(b, "counter", "proxy_errors_total", "Connections closed for a bad PROXY header, or for coming from no trusted proxy.", c->proxy_errors);
    put(b, "gauge", "addresses", "Addresses with open connections, where they are counted.", c->addresses);
    put(b, "counter", "accept_pauses_total", "Times a loop accepted nothing for a while: no descriptors, or too many handshakes.", c->accept_pauses);
    put(b, "gauge", "tls_handshakes_open", "Unfinished TLS handshakes.", c->handshakes_open);
    put(b, "counter", "tls_handshakes_evicted_total", "Unfinished TLS handshakes dropped to make room.", c->handshakes_evicted);
    put(b, "counter", "tls_handshakes_resumed_total", "Of the finished ones, those that resumed a session.", c->handshakes_resumed);
    put(b, "counter", "tls_handshakes_total", "TLS handshakes finished.", c->handshakes);
    put(b, "counter", "tls_handshakes_failed_total", "TLS handshakes that failed.", c->handshakes_failed);
    put(b, "counter", "http_parse_errors_total", "Requests refused by the HTTP parser.", c->parse_errors);
    put(b, "counter", "http_timeouts_total", "Connections that ran into a deadline.", c->timeouts);
    put(b, "gauge", "streams", "Open event streams.", c->streams_open);
    put(b, "counter", "heartbeats_total", "SSE comments sent to keep lines alive.", c->heartbeats);
    put(b, "counter", "clients_gone_total", "Clients that left before their answer ended.", c->gone_closed);
    put(b, "counter", "clients_stalled_total", "Clients that did not read and were cut off.", c->gone_stalled);
    put(b, "counter", "received_bytes_total", "Bytes read from clients.", c->bytes_in);
    put(b, "counter", "sent_bytes_total", "Bytes written to clients.", c->bytes_out);
    put(b, "gauge", "backlog_bytes", "Bytes of answers that clients have not taken.", c->backlog_bytes);
    put(b, "gauge", "pipeline_bytes", "Bytes of requests read ahead while an answer runs.", c->pipeline_bytes);
    put(b, "gauge", "loop_tasks_waiting", "Tasks posted to event loops and not yet run.", c->posts_waiting);
    put(b, "counter", "loop_tasks_refused_total", "Tasks refused because too many waited.", c->posts_refused);
    put(b, "gauge", "request_body_bytes", "Bytes of request bodies held.", c->body_bytes_held);
}

void gw_metrics_write(struct gw_metrics *m, const struct gw_metrics_now *now, struct buf *b)
{
    put_requests(m, b);
    put_histogram(b, "time_to_first_token_seconds", "From the whole request to its first token.", &m->ttft);
    put_histogram(b, "time_per_output_token_seconds", "Mean time between tokens of one answer.", &m->tpot);
    put_histogram(b, "queue_seconds", "From submission to the start of prefill.", &m->queue);
    put_histogram(b, "request_seconds", "From the whole request to the end of its answer.", &m->duration);
    put(b, "counter", "prompt_tokens_total", "Prompt tokens of finished requests.", get(&m->tokens_in));
    put(b, "counter", "cached_tokens_total", "Of those, tokens found in the prefix cache.", get(&m->tokens_cached));
    put(b, "counter", "generation_tokens_total", "Tokens generated.", get(&m->tokens_out));
    put(b, "gauge", "queue_requests", "Requests submitted and not yet started.", now->waiting);
    put(b, "gauge", "queue_tokens", "Their prompt tokens.", now->waiting_tokens);
    put(b, "gauge", "preparing_requests", "Requests whose prompt waits to be rendered.", now->preparing);
    put(b, "gauge", "requests_open", "Requests for text from their arrival to their end.", now->running);
    put(b, "gauge", "answer_bytes_waiting", "Bytes of text and tokens from the engine that wait for a client that lags, or for the end of a whole answer.", now->pending);
    put(b, "gauge", "log_bytes_waiting", "Bytes of access and usage lines not yet written.", now->log_bytes);
    put(b, "counter", "log_lines_dropped_total", "Access and usage lines dropped because the disk is too slow.", now->log_dropped);
    put_engine(now->engine, b);
    put_server(now->server, b);
    put(b, "gauge", "resident_bytes", "Resident memory of the gateway process.", now->rss_bytes);
}
