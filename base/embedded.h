/* base/embedded.h - files built into the program (model sheets, pages): made by scripts/embed.sh. */
#ifndef SLUICE_BASE_EMBEDDED_H
#define SLUICE_BASE_EMBEDDED_H
#include <stddef.h>
struct embedded { const char *name; const char *data, *end; }; /* name: path in the repository; data is NUL-terminated at end */
extern const struct embedded sluice_embedded[];                /* ended by a NULL name */
#endif
