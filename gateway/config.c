/* The directive table: one row per line of conf/gateway.conf. */
#include <stddef.h>

#include "base/log.h"
#include "gateway/gateway.h"

static const char *const admin_words[] = {"auto", "local", "key", NULL}; /* as enum gw_admin_access */
static const char *const metrics_words[] = {"auto", "open", "key", NULL};
static const char *const level_words[] = {"error", "warn", "info", "debug", NULL}; /* as enum log_level */

#define ROW(name_, type_, field, min_, max_) {.name = name_, .type = type_, .offset = offsetof(struct gw_config, field), .min = min_, .max = max_}
#define WORDS(name_, field, words_) {.name = name_, .type = CONF_ENUM, .offset = offsetof(struct gw_config, field), .words = words_}
#define K 1024.0
#define M (1024.0 * K)
#define G (1024.0 * M)
#define HOUR 3600000.0

const struct conf_directive gw_config_directives[] = {
    ROW("listen", CONF_LIST, listen, 0, 0),
    ROW("engine", CONF_STR, engine, 0, 0),
    ROW("state_dir", CONF_STR, state_dir, 0, 0),
    ROW("keys_file", CONF_STR, keys_file, 0, 0),
    ROW("api_key", CONF_STR, api_key, 0, 0),
    ROW("tls", CONF_BOOL, tls, 0, 0),
    ROW("tls_cert", CONF_STR, tls_cert, 0, 0),
    ROW("tls_key", CONF_STR, tls_key, 0, 0),
    ROW("plain_anywhere", CONF_BOOL, plain_anywhere, 0, 0),
    WORDS("admin", admin, admin_words),
    ROW("access_log", CONF_STR, access_log, 0, 0),
    ROW("usage_log", CONF_STR, usage_log, 0, 0),
    ROW("log_prompts", CONF_BOOL, log_prompts, 0, 0),
    ROW("trusted_proxies", CONF_LIST, trusted_proxies, 0, 0),
    ROW("proxy_protocol", CONF_BOOL, proxy_protocol, 0, 0),
    ROW("ticket_period", CONF_MS, ticket_ms, 1000, 24 * HOUR),
    WORDS("metrics", metrics, metrics_words),
    ROW("cors_origins", CONF_LIST, cors_origins, 0, 0),
    ROW("pages", CONF_BOOL, pages, 0, 0),
    ROW("threads", CONF_INT, threads, 0, 256),
    ROW("workers", CONF_INT, workers, 1, 256),
    ROW("connections_max", CONF_INT, connections_max, 1, 1e6),
    ROW("connections_address_max", CONF_INT, connections_address_max, 0, 1e6),
    ROW("handshakes_max", CONF_INT, handshakes_max, 1, 1e6),
    ROW("streams_max", CONF_INT, streams_max, 1, 1e6),
    ROW("queue_requests", CONF_INT, queue_requests, 0, 1e6),
    ROW("queue_tokens", CONF_SIZE, queue_tokens, 0, 0),
    ROW("queue_share", CONF_INT, queue_share, 0, 100),
    ROW("preparing_max", CONF_INT, preparing_max, 1, 1e6),
    ROW("headers_max", CONF_INT, headers_max, 8, 1000),
    ROW("header_bytes", CONF_SIZE, header_bytes, 1 * K, 1 * M),
    ROW("body_bytes", CONF_SIZE, body_bytes, 1 * K, 1 * G),
    ROW("body_bytes_total", CONF_SIZE, body_bytes_total, 1 * K, 64 * G),
    ROW("prompt_memory", CONF_SIZE, prompt_memory, 1 * M, 16 * G),
    ROW("backlog_high", CONF_SIZE, backlog_high, 1 * K, 1 * G),
    ROW("backlog_low", CONF_SIZE, backlog_low, 0, 1 * G),
    ROW("backlog_max", CONF_SIZE, backlog_max, 64 * K, 4 * G),
    ROW("handshake_deadline", CONF_MS, handshake_ms, 100, HOUR),
    ROW("header_deadline", CONF_MS, header_ms, 100, HOUR),
    ROW("body_deadline", CONF_MS, body_ms, 100, HOUR),
    ROW("body_total_deadline", CONF_MS, body_total_ms, 100, 24 * HOUR),
    ROW("idle_deadline", CONF_MS, idle_ms, 100, 24 * HOUR),
    ROW("write_stall_deadline", CONF_MS, write_stall_ms, 100, HOUR),
    ROW("write_min", CONF_SIZE, write_min, 0, 1 * G),
    ROW("socket_buffer", CONF_SIZE, socket_buffer, 0, 64 * M),
    ROW("heartbeat", CONF_MS, heartbeat_ms, 100, HOUR),
    ROW("request_deadline", CONF_MS, request_ms, 0, 24 * HOUR),
    ROW("engine_lost_deadline", CONF_MS, engine_lost_ms, 0, HOUR),
    ROW("drain_deadline", CONF_MS, drain_ms, 0, HOUR),
    WORDS("log_level", log_level, level_words),
    ROW("log_json", CONF_BOOL, log_json, 0, 0),
};
const size_t gw_config_n_directives = sizeof gw_config_directives / sizeof *gw_config_directives;

void gw_config_default(struct gw_config *c)
{
    *c = (struct gw_config){
        .tls = true, .pages = true, .workers = 2, .connections_max = 12000, .connections_address_max = 1024, .handshakes_max = 1024,
        .streams_max = 12000, .preparing_max = 1024, .headers_max = 100,
        .header_bytes = 32u << 10, .body_bytes = 32u << 20, .body_bytes_total = 256u << 20, .prompt_memory = 256u << 20,
        .backlog_high = 64u << 10, .backlog_low = 16u << 10, .backlog_max = 8u << 20, .write_min = 4096, .socket_buffer = 128u << 10,
        .handshake_ms = 10000, .header_ms = 15000, .body_ms = 30000, .body_total_ms = 300000, .idle_ms = 75000, .write_stall_ms = 60000,
        .heartbeat_ms = 10000, .request_ms = 0, .engine_lost_ms = 60000, .drain_ms = 30000, .ticket_ms = 3600000, .log_level = LOG_INFO,
    };
}

int gw_config_read_file(struct gw_config *c, const char *path, struct arena *a, struct err *e)
{
    return conf_read_file(path, gw_config_directives, gw_config_n_directives, c, a, e);
}
