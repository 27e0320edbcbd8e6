/* Configurations: the files in conf/ load and are complete, flags override them, what serve writes reads back equal. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/engine_conf.h"
#include "gateway/gateway.h"
#include "tests/support/suite.h"

static char path[] = "/tmp/sluice-conf-XXXXXX";

static void write_conf(const char *text)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static char *slurp(const char *file)
{
    static char text[65536];
    FILE *f = fopen(file, "r");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* Each directive stands at the start of a line, or behind "# " where it is commented out. */
static bool mentions(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = text; p; p = (p = strchr(p, '\n')) ? p + 1 : NULL) {
        const char *q = p + (p[0] == '#' && p[1] == ' ' ? 2 : 0);
        if (!strncmp(q, name, n) && q[n] == ' ')
            return true;
    }
    return false;
}

START_TEST(files)
{
    struct err e = {0};
    struct arena a;
    struct cli_engine_conf c = CLI_ENGINE_CONF_DEFAULTS;
    const struct cli_engine_conf def = CLI_ENGINE_CONF_DEFAULTS;
    struct cli_flags t[5];
    struct gw_config g;
    arena_init(&a, 1 << 20);
    cli_engine_tables(&c, t);
    OK(cli_read_config("conf/engine.conf", t, &a, &e));
    ck_assert_str_eq(c.engine.model, "/srv/models/model.gguf");
    ck_assert(c.connections == def.connections && c.out_high == def.out_high && c.stall_ms == def.stall_ms &&
              c.service.drain_ms == def.service.drain_ms && c.service.log_level == def.service.log_level && !c.engine.ctx && !c.engine.kv_type);
    const char *text = slurp("conf/engine.conf");
    for (const struct cli_flags *x = t; x->flags; x++)
        for (size_t i = 0; i < x->n; i++) {
            const char *name = cli_directive(x->flags[i].d.name, &a);
            if (strcmp(name, "config") && strcmp(name, "ready_fd"))
                ck_assert_msg(mentions(text, name), "conf/engine.conf lacks %s", name);
        }
    gw_config_default(&g);
    OK(gw_config_read_file(&g, "conf/gateway.conf", &a, &e));
    text = slurp("conf/gateway.conf");
    for (size_t i = 0; i < gw_config_n_directives; i++)
        ck_assert_msg(mentions(text, gw_config_directives[i].name), "conf/gateway.conf lacks %s", gw_config_directives[i].name);
    arena_free(&a);
}
END_TEST

static int read_args(struct cli_engine_conf *c, struct arena *a, char **argv)
{
    struct cli_flags t[5];
    int argc = 0;
    while (argv[argc])
        argc++;
    cli_engine_tables(c, t);
    return cli_service_read(argc, argv, "test", "...", t, a);
}
#define ARGS(...) (char *[]){"engine", __VA_ARGS__, NULL}

START_TEST(flags)
{
    struct arena a;
    arena_init(&a, 1 << 20);
    ck_assert(close(mkstemp(path)) == 0);
    write_conf("model a.gguf\nctx 100\nkv_type bf16\nlog_level warn\ndrain 5s\nqueue_tokens 2K\nlog_json on\n");
    struct cli_engine_conf c = CLI_ENGINE_CONF_DEFAULTS;
    ck_assert_int_eq(read_args(&c, &a, ARGS("-c", "200", "--config", path, "--kernels=c", "--ram", "50%", "-np", "3")), CLI_OK);
    ck_assert(c.engine.ctx == 200 && c.engine.kv_type == 3 && c.engine.kernels == 1 && c.engine.seqs == 3 && c.queue_tokens == 2048);
    ck_assert(!strcmp(c.engine.model, "a.gguf") && !strcmp(c.engine.ram, "50%") && c.service.log_level == LOG_WARN && c.service.drain_ms == 5000 &&
              c.service.log_json && !log_on(LOG_INFO) && log_on(LOG_WARN));

    struct cli_engine_conf again = CLI_ENGINE_CONF_DEFAULTS;
    struct cli_flags t[5];
    struct buf b;
    struct err e = {0};
    buf_init(&b, 1 << 16);
    c.engine.model = "/odd \"name\"\\ #1.gguf";
    cli_engine_tables(&c, t);
    OK(cli_put_config(&b, t, &a, &e));
    write_conf(b.data);
    ck_assert_int_eq(read_args(&again, &a, ARGS("--config", path)), CLI_OK);
    ck_assert_str_eq(again.engine.model, c.engine.model);
    ck_assert_str_eq(again.engine.ram, c.engine.ram);
    again.service.config = c.service.config;
    again.engine.model = c.engine.model;
    again.engine.ram = c.engine.ram;
    ck_assert(!memcmp(&again, &c, sizeof c));
    c.engine.alias = "two\nlines";
    buf_reset(&b);
    FAILS(ERR_INVALID, "alias: expected text without control", cli_put_config(&b, t, &a, &e));
    buf_free(&b);
    unlink(path);
    arena_free(&a);
}
END_TEST

START_TEST(errors)
{
    struct arena a;
    struct cli_engine_conf c = CLI_ENGINE_CONF_DEFAULTS;
    struct eng_config ec;
    struct err e = {0};
    arena_init(&a, 1 << 20);
    ck_assert(freopen("/dev/null", "w", stderr) != NULL);
    ck_assert_int_eq(read_args(&c, &a, ARGS("--config", "/nonexistent.conf")), CLI_FAULT);
    ck_assert_int_eq(read_args(&c, &a, ARGS("--config")), CLI_USAGE);
    ck_assert_int_eq(read_args(&c, &a, ARGS("--nothing")), CLI_USAGE);
    ck_assert_int_eq(read_args(&c, &a, ARGS("word")), CLI_USAGE);
    ck_assert_int_eq(read_args(&c, &a, ARGS("-c", "many")), CLI_USAGE);
    ck_assert_int_eq(read_args(&c, &a, ARGS("--kernels", "mmx")), CLI_USAGE);
    ck_assert(close(mkstemp(path)) == 0);
    write_conf("ready_fd 3\n");
    ck_assert_int_eq(read_args(&c, &a, ARGS("--config", path)), CLI_USAGE);
    unlink(path);
    FAILS(ERR_INVALID, "no model given", cli_engine_config(&c.engine, &ec, &e));
    c.engine.model = "m.gguf";
    c.engine.device = "cuda:0";
    FAILS(ERR_INVALID, "--device cuda:0: expected cpu", cli_engine_config(&c.engine, &ec, &e));
    arena_free(&a);
}
END_TEST

START_TEST(signals)
{
    struct err e = {0};
    pid_t early = fork();
    if (!early) { /* before it is ready a signal ends it at once */
        if (cli_signals_open(&e))
            _exit(1);
        kill(getpid(), SIGTERM);
        clock_sleep_ns(20 * NS_PER_S);
        _exit(2);
    }
    int status;
    ck_assert(waitpid(early, &status, 0) == early && WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
    OK(cli_signals_open(&e));
    cli_signals_ready();
    ck_assert_int_eq(cli_signal(0), 0);
    kill(getpid(), SIGTERM);
    ck_assert_int_eq(cli_signal(-1), SIGTERM);
    kill(getpid(), SIGINT);
    ck_assert_int_eq(cli_signal(60000), SIGINT);
    ck_assert_int_eq(cli_signal(10), 0);
    raise(SIGPIPE); /* ignored */
    pid_t parent = getpid(), child = fork();
    if (!child) { /* while the parent is inside the call */
        clock_sleep_ns(50 * NS_PER_MS);
        kill(parent, SIGTERM);
        clock_sleep_ns(50 * NS_PER_MS);
        _exit(0);
    }
    ck_assert_int_eq(cli_signal(-1), SIGTERM);
    ck_assert_int_eq(cli_signal(60000), SIGCHLD);
    ck_assert_int_eq(cli_signal(0), 0);
    waitpid(child, NULL, 0);
    int fds[2];
    char line[8] = "";
    ck_assert(pipe(fds) == 0);
    cli_tell(fds[1], "ready\n");
    ck_assert(read(fds[0], line, sizeof line) == 6 && !strcmp(line, "ready\n"));
    cli_tell(-1, "nobody\n");
}
END_TEST

SUITE("cli", "service", files, flags, errors, signals)
