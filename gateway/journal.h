/* gateway/journal.h - lines for a file or for stderr, written by a thread of its own so that no event loop waits for a disk.
 *
 * Owns:      the file, one buffer of at most GW_JOURNAL_MAX bytes; lines that find it full are dropped and counted.
 * Invariant: a line is whole or absent. A file is appended to, and opened again by gw_journal_reopen (after it was rotated away).
 * Threads:   put and reopen from any; open and close by the owner. */
#ifndef SLUICE_GATEWAY_JOURNAL_H
#define SLUICE_GATEWAY_JOURNAL_H
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define GW_JOURNAL_MAX (4u << 20)
typedef struct gw_journal gw_journal;
int gw_journal_open(gw_journal **out, const char *path, struct err *e); /* "stderr", or a file (made with mode 0640). ERR_IO */
void gw_journal_close(gw_journal *j);                                    /* writes what waits. NULL is fine */
void gw_journal_put(gw_journal *j, const char *line, size_t n);          /* with its line end. NULL j: nothing happens */
void gw_journal_reopen(gw_journal *j);
uint64_t gw_journal_dropped(gw_journal *j);                              /* lines */
size_t gw_journal_waiting(gw_journal *j);                                /* bytes */
#endif
