/* cli/live.h - one line on the terminal that says how an answer is coming along, while the answer itself is printed.
 *
 * Where text and line meet on one terminal the line has the last row to itself (a scroll region), also after an interrupt; where the text
 * goes elsewhere the line is rewritten in place; where stderr is no terminal there is none.
 * Threads: one at a time, and nobody prints to the terminal meanwhile. */
#ifndef SLUICE_CLI_LIVE_H
#define SLUICE_CLI_LIVE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli_live { bool on, shown; int rows; }; /* rows: of the terminal, where the line has one; 0: in place */
void cli_live_open(struct cli_live *l);
void cli_live_show(struct cli_live *l, const char *text);
void cli_live_close(struct cli_live *l);

/* What the line says: counts of two moments, and what is known beside them. */
struct cli_moment { uint64_t ns, steps, tokens, read_bytes; };
struct cli_course {
    struct cli_moment begin, first, now; /* begin: submitted; first: the first token was there (ns 0: not yet) */
    uint32_t prompt, chunk;       /* tokens of the prompt, most tokens of a step */
    double drive_s;               /* bytes a second that the drive gives; 0: nothing streams, or not measured */
};
void cli_live_text(const struct cli_course *c, char *out, size_t n);
#endif
