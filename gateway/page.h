/* gateway/page.h - the two pages that a browser is given: the chat at /, live charts of /metrics at /dashboard.
 *
 * Owns:      the files of conf/pages as they stand in the program, and for each the headers that go with it.
 * Leaves:    everything that is secret to the API that the pages talk to: anybody may read the pages themselves.
 * Invariant: a page fetches nothing but this server's own paths, and runs only the script and the style that stand in it: its
 *            Content-Security-Policy names them by digest. Text of a model never becomes markup.
 * Threads:   open once; then any number. */
#ifndef SLUICE_GATEWAY_PAGE_H
#define SLUICE_GATEWAY_PAGE_H
#include "gateway/server.h"

typedef struct gw_pages gw_pages;
int gw_pages_open(gw_pages **out, struct err *e); /* ERR_FORMAT: a page that is not as expected; ERR_NOMEM */
void gw_pages_close(gw_pages *p);                 /* NULL is fine */

bool gw_page_is(const char *path);                /* this module answers it */
/* Answers GET or HEAD of such a path: 200, or 304 where the browser has this very page. Returns the status; x is dead afterwards. */
int gw_page_answer(const gw_pages *p, gw_exchange *x, const struct gw_request *r);

/* What the answer's headers are made of, for tests. */
struct gw_page { const char *path, *data; size_t n; char *csp; char etag[36]; };
const struct gw_page *gw_page_find(const gw_pages *p, const char *path); /* NULL: none */
/* Does a field If-None-Match name this tag (weakly compared, RFC 9110 13.1.2)? */
bool gw_page_matches(const char *if_none_match, const char *etag);
#endif
