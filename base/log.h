/* base/log.h - one line an event, to stderr (or a given fd), as text or JSON.
 *
 * Text:  2026-11-30T10:00:00.123Z INFO gateway: listening addr=127.0.0.1:8443
 * JSON:  {"ts":"...","level":"info","part":"gateway","msg":"listening","addr":"127.0.0.1:8443"}
 * The message is a printf format; key=value pairs belong into it. Prompt or answer text is never logged here.
 * Threads: any; a line is one write(2). */
#ifndef SLUICE_BASE_LOG_H
#define SLUICE_BASE_LOG_H
#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
struct log_config { enum log_level level; bool json; int fd; const char *part; };

void log_setup(const struct log_config *c); /* copied; before threads start. Default: info, text, fd 2, part "sluice" */
bool log_on(enum log_level level);
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int log_level_parse(const char *s); /* "error" .. "debug" -> level, -1: unknown */
#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...) do { if (log_on(LOG_DEBUG)) log_at(LOG_DEBUG, __VA_ARGS__); } while (0)
#endif
