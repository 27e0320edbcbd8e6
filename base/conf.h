/* base/conf.h - the config reader: lines of `name value`, a table of directives, errors with file:line.
 *
 * Syntax: one directive a line; `#` starts a comment outside quotes; values are words, "quoted strings" allowed.
 * Sizes take K M G T (1024-based); durations take ms s m h; switches are on/off. An unknown name, a bad value or
 * a directive given twice (unless CONF_LIST) stops with "file:line: name: expected ..., found ...". */
#ifndef SLUICE_BASE_CONF_H
#define SLUICE_BASE_CONF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

enum conf_type { CONF_STR, CONF_INT, CONF_SIZE, CONF_MS, CONF_BOOL, CONF_FLOAT, CONF_ENUM, CONF_LIST };
struct conf_list { const char **items; size_t n; };
struct conf_directive {
    const char *name;
    enum conf_type type;
    size_t offset;             /* of the field in the target: const char *, int64_t, uint64_t (bytes), uint64_t (ms), bool, double, int (index), struct conf_list */
    double min, max;           /* INT, SIZE, MS, FLOAT; both 0: no bound */
    const char *const *words;  /* ENUM: NULL-terminated */
};
/* Fills *target (already holding the defaults); strings live in a. */
int conf_read_file(const char *path, const struct conf_directive *d, size_t n, void *target, struct arena *a, struct err *e);
int conf_read_text(const char *name, const char *text, const struct conf_directive *d, size_t n, void *target, struct arena *a, struct err *e);
/* One value, as the command line uses it; `what` names it in the error. */
int conf_set(const char *what, const char *value, const struct conf_directive *d, void *target, struct arena *a, struct err *e);
int conf_size(const char *s, uint64_t *out); /* 0 or -1 */
#endif
