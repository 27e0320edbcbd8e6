/* engine/engine.h - the engine's front: requests in, tokens and text out. Speaks ids, text and sequences, never tensors.
 *
 * Owns:      the scheduler thread, sequences, KV pools, the backend, the weights.
 * Invariant: a request ends with exactly one DONE or FAILED event; after eng_cancel no token event follows its end;
 *            every queue is bounded (ERR_AGAIN when full); the sum of all memory is charged before the start.
 * Threads:   submit, cancel, pause, stats from any thread; events arrive on the scheduler thread and must not block. */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H
#include "engine/formula.h"
#include "engine/model.h"

struct eng_config {
    const char *model_path, *alias;
    const char *disks;        /* --disk: directories with copies of its files, or the rest of them, separated by commas; NULL: none */
    const char *warm_path;    /* --warm: the experts in memory are written there at the end, and read ahead at the start; NULL: no */
    bool verify_reads;        /* --verify-reads: what is read of a packed copy is held against its checksums */
    enum off_io io;           /* --io: how weights are read past the page cache */
    uint32_t ctx;             /* -c: tokens a sequence; 0: what the sheet says, mostly 4096 or less */
    uint32_t seqs;            /* -np: sequences that run at once; 0: the sheet's, mostly 8 */
    uint32_t threads;         /* -t; 0: the cores this process may use */
    uint32_t chunk;           /* -ub: most tokens of a step; 0: the sheet's, mostly 256 */
    uint32_t page_tokens;     /* --page: 16 or a multiple; 0: 64 */
    enum krn_type kv_type;    /* --kv-type; KRN_TYPE_COUNT: f16, or f32 with --precision f32 */
    enum krn_isa isa;         /* --kernels */
    enum krn_precision precision;
    uint64_t ram_max;         /* --ram; 0: what the machine allows less a reserve */
    struct eng_device_config {
        bool vulkan;          /* --device vulkan[:N]; else the CPU */
        unsigned index;       /* N, as `sluice devices` numbers them */
        uint32_t without;     /* --device-without: features left alone (kernels/gpu.h) */
        bool validate;        /* with the validation layer: tests */
        uint64_t bytes_max;   /* --vram; 0: nine tenths of the device's memory */
        const char *cache_dir;/* of compiled kernels; NULL: none is kept */
    } device;
    bool prefix_off;          /* --prefix off: full KV pages of earlier sequences are not used again */
    enum eng_draft_mode { ENG_DRAFT_AUTO, ENG_DRAFT_OFF, ENG_DRAFT_ALWAYS } draft; /* --draft: speculation where it pays, never, wherever there is a guess */
    uint32_t queue_max;       /* requests waiting; 0: 64 */
    uint64_t queue_tokens_max;/* prompt tokens waiting; 0: 4 * seqs * ctx */
    void (*progress)(void *ctx, uint64_t done, uint64_t total); void *progress_ctx;
    void (*lost)(const struct err *e); /* the device is gone: does not return. NULL: what runs fails, and so does what follows */
};

/* Fills zeros with what will be in force for this plan on this machine; ERR_INVALID names the flag that cannot be. */
int eng_config_defaults(struct eng_config *c, const struct eng_plan *p, struct err *e);

struct eng_sampling {
    float temperature;        /* 0: greedy */
    float top_p, min_p;       /* 1, 0: off */
    int32_t top_k;            /* 0: off */
    uint64_t seed;
    uint32_t choice;          /* which of several answers to one prompt: each draws its own numbers from the same seed */
    float presence, frequency;/* 0: off. A logit loses frequency * (times in the output so far) + presence (once it is there) */
    float repetition;         /* 0, 1: off. Logits of tokens in prompt or output: divided by it when above zero, else multiplied */
};
#define ENG_BIAS_MAX 300
#define ENG_TOP_MAX 20
#define ENG_GRAMMAR_MAX (1u << 20)         /* bytes of a grammar's text */
#define ENG_GRAMMAR_TRIGGER_MAX 256
struct eng_bias { int32_t id; float bias; }; /* added to the logit, before penalties */
/* Of one token, from the model's own logits (no bias, no penalty, temperature 1); natural logarithms. top: the likeliest first. */
struct eng_top { int32_t id; float logprob; };
struct eng_logprobs { float logprob; uint32_t n_top; struct eng_top top[ENG_TOP_MAX]; };

/* ids: the prompt, then n_done tokens that an earlier life of this request produced (they count as output; their first text_skip
 * bytes were delivered). All borrowed during the call. */
struct eng_request {
    uint64_t id;              /* the caller's name for it; unique among live ones */
    const int32_t *ids; uint32_t n_ids, n_done;
    uint64_t text_skip;
    uint32_t max_tokens;      /* of output, n_done included; 0: to the end of the context */
    uint32_t min_tokens;      /* end-of-sequence is not sampled before */
    bool ignore_eos;
    bool markers;             /* text has the control tokens that the model's format names, ENG_MARK before each */
    struct eng_sampling sampling;
    const struct eng_bias *bias; uint32_t n_bias; /* at most ENG_BIAS_MAX, ids different */
    bool logprobs; uint32_t top_logprobs;         /* tokens come with logprobs, and so many alternatives */
    const char *const *stops; const uint32_t *stop_lens; uint32_t n_stops; /* at most 16 of at most 256 bytes */
    const char *grammar; uint32_t grammar_n;      /* GBNF (engine/grammar.h) that the output must follow; NULL: any output */
    const char *grammar_trigger; uint32_t grammar_trigger_n; /* NULL: from the first token; else what follows this text, each time (engine/guide.h) */
    uint64_t deadline_ns;     /* clock_now_ns(); 0: none */
    int32_t priority;         /* larger first */
    const char *tenant;       /* namespace and fair share; NULL: "default" */
};
enum eng_finish { ENG_STOP, ENG_LENGTH, ENG_CANCELLED, ENG_DEADLINE, ENG_FAILED };
/* draft: tokens that were guessed, and those of them that came true (they are part of output). reasoning: of the output; the engine leaves it 0,
 * who reads the text by its format counts them. */
struct eng_usage { uint32_t prompt_tokens, cached_tokens, output_tokens, reasoning_tokens, draft_tokens, draft_accepted; uint64_t queue_ns, prefill_ns, decode_ns; };
enum eng_event_type { ENG_EV_STARTED /* left the queue */, ENG_EV_TOKEN, ENG_EV_DONE };
struct eng_event {
    enum eng_event_type type;
    uint64_t id;
    int32_t token; uint32_t n_out;        /* TOKEN: the id, its number in the output (1-based) */
    const char *text; size_t n;           /* TOKEN, DONE: text that may go out now (maybe empty); valid in the call */
    const struct eng_logprobs *logprobs;  /* TOKEN: NULL unless asked for; valid in the call */
    int32_t stop;                         /* DONE: which stop string was met; -1: none */
    enum eng_finish finish; const struct eng_usage *usage; const struct err *err; /* DONE; err when FAILED */
};
typedef void (*eng_event_fn)(void *ctx, const struct eng_event *ev);

typedef struct eng_engine eng_engine;
/* Loads the model, charges memory (weights, KV, activations) against ram_max, starts the scheduler, generates one token as a
 * self-test. ERR_BUDGET says every item and what is missing. */
int eng_open(eng_engine **out, const struct eng_config *cfg, eng_event_fn f, void *ctx, struct err *e);
/* What eng_open would do with this configuration, from headers alone. Same errors; the fields of config are those in force. */
struct eng_prediction {
    struct eng_config config;
    uint64_t weight_slot_bytes;       /* all weights, as they lie in memory */
    uint64_t resident_bytes, window_bytes, staging_bytes; /* those that stay; what the others pass through; their readers' buffers */
    uint64_t sweep_bytes;             /* of weights that pass in every step; 0: all stay */
    uint64_t expert_bytes, experts_bytes_all; /* of the cache of experts, 0: they stay; of them all, 0: a model without */
    uint32_t expert_slots, experts, expert_layers, experts_per_layer, experts_chosen; /* it holds; there are; in how many layers; of one; by a token of one */
    uint64_t activation_bytes, state_bytes, snapshot_bytes, kv_bytes, kv_token_bytes, kv_seq_bytes; /* all; a token's; one whole sequence's */
    uint32_t snapshots;               /* of recurrent states that there is room for */
    uint32_t ctx_made;                /* tokens that the model was made for */
    struct eng_formula formulas[ENG_FORMULAS_MAX]; uint32_t n_formulas; /* of kv_token_bytes and kv_seq_bytes, and of a sequence's states */
};
int eng_predict(const struct eng_config *cfg, struct eng_prediction *out, struct err *e);
void eng_close(eng_engine *g);               /* cancels what runs */
const struct eng_model *eng_model_of(const eng_engine *g);
int eng_submit(eng_engine *g, const struct eng_request *r, struct err *e); /* ERR_AGAIN full; ERR_LIMIT prompt too long; ERR_INVALID */
void eng_cancel(eng_engine *g, uint64_t id);
void eng_pause(eng_engine *g, uint64_t id, bool paused); /* a reader that lags stops its own sequence only */
void eng_drain(eng_engine *g);               /* refuses new requests with ERR_CLOSED; running ones go on */

enum { ENG_DRIVES_MAX = 8 };
struct eng_stats {
    uint32_t running, waiting, seqs_max; uint64_t waiting_tokens;
    uint64_t requests, tokens_in, tokens_out, steps; /* accepted requests and their prompt tokens; tokens sampled */
    uint64_t step_ns, model_ns, draw_ns;  /* turns of the scheduler that ran a step; of them, computing it, and drawing tokens: the rest is the scheduler's own */
    uint64_t kv_pages, kv_pages_used, kv_bytes, weight_bytes, activation_bytes, ram_max; /* used: held by sequences */
    uint64_t weight_sweep_bytes;  /* of weights that pass through memory in a step; 0: all stay */
    uint64_t weight_read_bytes, weight_stalls, weight_stall_ns; /* from files; leases that had to wait, and how long */
    uint64_t weight_wanted_bytes; /* of those read: what was wanted, without what alignment adds */
    uint64_t weight_failing;      /* 1: weights that stream cannot be read at present */
    struct eng_drive { char dir[200], reading[64]; uint64_t bytes, reads, errors; } drives[ENG_DRIVES_MAX]; /* the first ones */
    uint32_t n_drives;
    uint64_t expert_slots, experts; /* of the cache of experts (0: they all stay), and how many there are */
    uint64_t expert_hits, expert_misses, expert_read_bytes, expert_preloaded; /* chosen and there; chosen and read; read; read ahead at the start */
    uint64_t prefix_lookups, prefix_hits, prefix_tokens; /* admissions; those that found pages; tokens that were not computed */
    uint64_t draft_tokens, draft_accepted;               /* guessed; guessed right */
    uint64_t prefix_pages, prefix_evictions;             /* pages in the index, held or not; pages and snapshots that left it for want of room */
    uint64_t snapshots, snapshots_taken, snapshots_restored; /* of recurrent states: in the index now; put there; sequences that went on from one */
    uint64_t snapshots_max, snapshot_bytes;              /* that there is room for; of all of them (kv_bytes are pages alone) */
};
void eng_stats(eng_engine *g, struct eng_stats *s);
/* The configuration in force after defaults, and the description a gateway gets (JSON object: id, aliases, ctx, seqs, vocab,
 * page_tokens, kv_type, numerics, tokenizer and template digests (hex), eos ids, sampling defaults). Keys as gateway/description.c reads
 * them: id, aliases [], ctx, seqs, vocab, page_tokens, kv_type, numerics, fingerprint, tokenizer (hex), template (hex or null),
 * special_tokens {}, eos [], temperature, top_p, top_k, queue_max, queue_tokens_max, format {} (engine/format.h). */
void eng_config_in_force(const eng_engine *g, struct eng_config *c);
const char *eng_isa(const eng_engine *g); /* the kernels in use: "avx2" */
int eng_describe(const eng_engine *g, struct buf *json, struct err *e);
#endif
