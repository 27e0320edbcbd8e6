/* cli/engine_conf.h - everything an engine process is told: conf/engine.conf and the flags of `sluice engine` are the same table. */
#ifndef SLUICE_CLI_ENGINE_CONF_H
#define SLUICE_CLI_ENGINE_CONF_H
#include "cli/service.h"

struct cli_mock { const char *text; int64_t rate; bool together; }; /* text NULL: a real engine */
struct cli_engine_conf {
    struct cli_service service;
    struct cli_engine engine;
    struct cli_mock mock;
    const char *listen;
    int64_t connections, queue;
    uint64_t queue_tokens, out_high, stall_ms;
};
#define CLI_ENGINE_CONF_DEFAULTS {.service = CLI_SERVICE_DEFAULTS, .engine = CLI_ENGINE_DEFAULTS, .connections = 16, .out_high = 256 << 10, .stall_ms = 30000}
extern const struct cli_flag cli_link_flags[];
extern const size_t cli_n_link_flags;
extern const struct cli_flag cli_mock_flags[]; /* their target is the struct cli_engine_conf */
extern const size_t cli_n_mock_flags;
int cli_mock_check(const struct cli_mock *m, const struct cli_engine *f, struct err *e); /* ERR_INVALID: a mixture of both */
void cli_engine_tables(struct cli_engine_conf *c, struct cli_flags tables[5]);
#endif
