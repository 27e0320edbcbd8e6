/* base/err.h - the one error type: what the caller should do next, where it came from, and the numbers.
 *
 * Every function that can fail takes `struct err *e` as its last parameter and returns a code (0 is success).
 * Errors are returned, never printed; the top of the program reports once. e may be NULL. */
#ifndef SLUICE_BASE_ERR_H
#define SLUICE_BASE_ERR_H

enum err_code {
    ERR_OK = 0,
    ERR_AGAIN,       /* full or not ready: try again later (429 / 503 at the edge) */
    ERR_NOMEM,       /* an allocation failed */
    ERR_BUDGET,      /* a stated ceiling (--ram, KV pool, queue bytes) does not hold it */
    ERR_IO,          /* the system refused: open, read, write, socket */
    ERR_FORMAT,      /* bytes from a file or peer are not what they claim to be */
    ERR_UNSUPPORTED, /* understood, and there is no code for it: dtype, operator, architecture */
    ERR_INVALID,     /* the caller's (user's) value is out of range or of the wrong kind */
    ERR_NOTFOUND,    /* the named thing does not exist */
    ERR_LIMIT,       /* a bound on steps, bytes, depth or length was reached */
    ERR_CANCELLED,   /* somebody asked for the end */
    ERR_TIMEOUT,     /* a deadline passed */
    ERR_CLOSED       /* the peer or the queue is gone */
};

struct err {
    int code;           /* enum err_code */
    const char *where;  /* "file.c:123", static */
    char msg[400];      /* one line: what, expected, found; NUL-terminated, cut at a whole UTF-8 character */
};

/* Fills *e (if not NULL) and returns code. msg is formatted like printf. */
#define err_set(e, code, ...) err_set_at((e), (code), __FILE__ ":" ERR_STR(__LINE__), __VA_ARGS__)
#define ERR_STR(x) ERR_STR2(x)
#define ERR_STR2(x) #x
int err_set_at(struct err *e, int code, const char *where, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Puts "prefix: " in front of a message that is already there; returns e->code (or code when e is NULL). */
int err_prefix(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

const char *err_name(int code); /* "again", "nomem", ...; "?" for an unknown code */

#endif
