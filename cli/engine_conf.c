#include "cli/engine_conf.h"

#define AT(f) offsetof(struct cli_engine_conf, f)
const struct cli_flag cli_link_flags[] = {
    {{"listen", CONF_STR, AT(listen), 0, 0, NULL}, NULL, "ADDR", "unix:/path or loopback host:port for gateways (default: in the state directory)"},
    {{"connections", CONF_INT, AT(connections), 1, 1024, NULL}, NULL, "N", "gateways at once (default 16)"},
    {{"queue", CONF_INT, AT(queue), 0, 65536, NULL}, NULL, "N", "requests that may wait (default 64)"},
    {{"queue-tokens", CONF_SIZE, AT(queue_tokens), 0, 0, NULL}, NULL, "N", "prompt tokens that may wait (default 4 x seqs x ctx)"},
    {{"out-high", CONF_SIZE, AT(out_high), 4096, 1 << 30, NULL}, NULL, "SIZE", "unsent bytes at which a gateway's sequences pause (default 256K)"},
    {{"stall", CONF_MS, AT(stall_ms), 100, 86400000, NULL}, NULL, "TIME", "a gateway that takes nothing this long is dropped (default 30s)"},
};
const size_t cli_n_link_flags = sizeof cli_link_flags / sizeof *cli_link_flags;

const struct cli_flag cli_mock_flags[] = {
    {{"mock", CONF_STR, AT(mock.text), 0, 0, NULL}, NULL, "TEXT", "no model: answer everything with this text ({ns}: the time), for load tests"},
    {{"mock-rate", CONF_INT, AT(mock.rate), 0, 1000000, NULL}, NULL, "N", "tokens a second for each request (default 0: as fast as possible)"},
    {{"mock-together", CONF_BOOL, AT(mock.together), 0, 0, NULL}, NULL, NULL, "all requests emit at the same instants, not each at its own"},
};
const size_t cli_n_mock_flags = sizeof cli_mock_flags / sizeof *cli_mock_flags;

int cli_mock_check(const struct cli_mock *m, const struct cli_engine *f, struct err *e)
{
    if (m->text && f->model)
        return err_set(e, ERR_INVALID, "--mock: expected no model (-m) beside it");
    if (!m->text && (m->rate || m->together))
        return err_set(e, ERR_INVALID, "--mock-rate, --mock-together: expected a --mock TEXT beside them");
    return ERR_OK;
}

void cli_engine_tables(struct cli_engine_conf *c, struct cli_flags tables[5])
{
    tables[0] = (struct cli_flags){cli_service_flags, cli_n_service_flags, &c->service};
    tables[1] = (struct cli_flags){cli_engine_flags, cli_n_engine_flags, &c->engine};
    tables[2] = (struct cli_flags){cli_link_flags, cli_n_link_flags, c};
    tables[3] = (struct cli_flags){cli_mock_flags, cli_n_mock_flags, c};
    tables[4] = (struct cli_flags){0};
}
