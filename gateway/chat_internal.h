/* gateway/chat_internal.h - one request for text, whatever API asked: shared by chat.c (its life), chat_prepare.c (what the worker does) and chat_answer.c (what the client sees). */
#ifndef SLUICE_GATEWAY_CHAT_INTERNAL_H
#define SLUICE_GATEWAY_CHAT_INTERNAL_H
#include <pthread.h>
#include "gateway/api.h"
#include "gateway/app_internal.h"
#include "gateway/call_grammar.h"
#include "gateway/trace.h"

#define ANSWER_BYTES_MAX (64u << 20)

struct gw_cut { uint32_t bytes, tokens; }; /* of text that came together */

/* One answer: a stream of the engine's. Fields are touched by the thread named beside them. */
struct gw_choice {
    struct gw_chat *c;
    uint32_t index, prompt;        /* number in the answer; of its prompt */
    uint32_t n_prompt;             /* its prompt's tokens */
    uint64_t stream_id;            /* worker; loop, once admitted */
    bool submitted;                /* the same */

    uint64_t first_ns, last_ns;    /* client */
    uint32_t n_out;
    bool queued;                   /* client, after submit: a place in the queue is held */

    struct buf pend, toks;         /* lock: text and tokens (struct gw_lp_token) not yet given to the exchange */
    struct buf cuts;               /* lock: struct gw_cut of pend, where the format knows reasoning */
    size_t counted;                /* lock: of pend, toks and cuts, in app->pending */
    bool ended; struct gw_stream_event end;

    bool begun, end_taken, finished; /* loop: something went out; nothing more comes; its end went out */
    struct buf text, toks_out, cuts_out; /* loop: taken from those above */
    uint32_t n_reasoning;          /* loop: tokens of reasoning so far */
    uint64_t delivered;            /* loop: bytes of text that went out */
    struct gw_lp lp;               /* loop; with logprobs only */
    gw_calls *calls;               /* loop; NULL: the text is content as it stands */
    struct gw_part plain;          /* then it is this part */
    struct gw_blocks blocks;       /* loop */
};

struct gw_chat {
    atomic_int refs;
    struct gw_app *app;
    const struct gw_api *api;
    gw_loop *loop;
    gw_tenant *tenant;
    uint64_t start_ns, submit_ns;
    atomic_int gone;               /* 0, or 1 + enum gw_gone; set by the loop */

    char trace[GW_TRACE_ID];       /* the caller's, or "" */
    struct gw_running run;         /* for the lists and logs */
    gw_exchange *x;                /* loop; NULL: ended */
    bool begun, opened, paused;    /* loop. begun: a stream's head went out; opened: and what its API begins with */
    bool streaming;                /* lock: the answer is a stream. Set once, when the request has been read */

    char *body; size_t body_n;     /* worker */
    struct arena mem;              /* worker: its thread's, while it prepares */
    struct gw_served *served;      /* kept to the end: head points into it */
    struct gw_chat_req req;
    struct eng_ids ids;            /* of all prompts, one after the other */
    uint32_t *prompt_end;          /* in mem: where each ends */
    const char *grammar; uint32_t grammar_n; /* in mem; NULL: any answer */
    struct gw_api_error ae;
    struct gw_answer_head head;
    char *stops;                   /* the list behind head.stops, with its strings */
    struct arena kept;             /* what is read after the prompt is gone: */
    struct gw_tools tools;         /* those that may be called */
    enum gw_call_place place;      /* where the prompt left the answer */
    struct gw_call_grammar calls_grammar; /* what the answers must follow; empty: nothing */

    bool no_eos;                   /* ignore_eos */
    atomic_uint n_left;            /* choices that have not settled */
    atomic_bool first_seen;        /* the first token of any choice was counted */
    atomic_uint_fast64_t out;      /* tokens of output, as they settle */

    pthread_mutex_t lock;
    bool admitted;                 /* lock: the worker is through with it, whatever came of it (ae.status); choices and streaming stand */
    bool posted;                   /* lock */
    uint32_t n_choices;
    struct gw_choice *choices;
};

void gw_chat_unref(struct gw_chat *c);
int gw_chat_prepare(struct gw_chat *c); /* worker: body -> req, ids, choices; 0, or the status in ae */
/* chat_tools.c, for it; each 0, or the status in ae. */
int gw_chat_check_tools(struct gw_chat *c);   /* this model can be shown tools, and its calls read */
int gw_chat_set_reasoning(struct gw_chat *c); /* req.body gets the variables that switch reasoning */
int gw_chat_make_grammar(struct gw_chat *c);  /* for calls that are demanded, or strict */
int gw_chat_keep_tools(struct gw_chat *c);
int gw_chat_open_calls(struct gw_chat *c, struct gw_choice *k); /* who reads the answer, where there is more in it than content */
/* Loop. Takes what has come and gives it to the exchange, if there is one and it does not lag. */
void gw_chat_deliver(struct gw_chat *c);
bool gw_chat_admitted(struct gw_chat *c);
void gw_chat_cancel(struct gw_chat *c);        /* tells the engine that nobody waits for what is not finished; before admission the worker does, once it sees `gone` */
void gw_chat_break(struct gw_chat *c, const struct gw_api_error *ae); /* loop: the exchange ends with this error, whatever it was at */
void gw_chat_pause(struct gw_chat *c, bool paused);
void gw_chat_end_error(const struct gw_chat *c, const struct gw_stream_event *ev, struct gw_api_error *ae);
#endif
