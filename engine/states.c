#include "engine/states.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct eng_states {
    uint32_t n, slots, snapshots;
    size_t bytes, snapshot_bytes;
    uint8_t *pool, *room; /* of slots, group by group; of snapshots */
    struct krn_states g[];
};

bool eng_states_layout(const struct eng_recurrent *r, enum krn_type kv, struct krn_state_layout *l)
{
    *l = (struct krn_state_layout){.n_layers = r->n_layers, .n_fields = r->n_fields};
    for (uint32_t i = 0; i < r->n_fields; i++) {
        const uint64_t *d = r->field[i].dims;
        l->field[i] = (struct krn_state_field){.n_dims = r->field[i].n_dims, .type = kv == KRN_F32 ? KRN_F32 : r->field[i].type};
        if (r->field[i].n_dims == 3) { /* a matrix a head, always f32 */
            l->field[i].heads = (uint32_t)d[0];
            l->field[i].dk = (uint32_t)d[1];
            l->field[i].dv = (uint32_t)d[2];
        } else {
            l->field[i].keep = (uint32_t)d[0];
            l->field[i].cols = (uint32_t)d[1];
        }
    }
    return krn_state_layout_init(l);
}

uint64_t eng_states_bytes(const struct eng_plan *p, enum krn_type kv, uint32_t slots)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->n_recurrent; i++) {
        struct krn_state_layout l;
        uint64_t n;
        if (!eng_states_layout(&p->recurrent[i], kv, &l) || __builtin_mul_overflow((uint64_t)l.slot_bytes, (uint64_t)slots, &n) || __builtin_add_overflow(sum, n, &sum))
            return UINT64_MAX;
    }
    return sum;
}

uint64_t eng_states_snapshot_bytes(const struct eng_plan *p, enum krn_type kv)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->n_recurrent; i++) {
        struct krn_state_layout l;
        if (!eng_states_layout(&p->recurrent[i], kv, &l) || __builtin_add_overflow(sum, (uint64_t)krn_state_kept_bytes(&l), &sum))
            return 0;
    }
    return sum;
}

int eng_states_open(eng_states **out, const struct eng_plan *p, enum krn_type kv, uint32_t slots, uint32_t snapshots, struct err *e)
{
    uint64_t own = eng_states_bytes(p, kv, slots), one = eng_states_snapshot_bytes(p, kv), kept, bytes, at = 0;
    *out = NULL;
    if (own == UINT64_MAX || __builtin_mul_overflow(one, (uint64_t)snapshots, &kept) || __builtin_add_overflow(own, kept, &bytes))
        return err_set(e, ERR_UNSUPPORTED, "recurrent state $%s: no possible layout", p->recurrent[0].state);
    eng_states *s = calloc(1, sizeof *s + p->n_recurrent * sizeof s->g[0]);
    if (!s)
        return err_set(e, ERR_NOMEM, "recurrent states");
    s->n = p->n_recurrent;
    s->slots = slots;
    s->snapshots = snapshots;
    s->snapshot_bytes = (size_t)one;
    s->bytes = (size_t)bytes;
    if (bytes) {
        void *m = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED) {
            free(s);
            return err_set(e, ERR_NOMEM, "recurrent states of %zu bytes", (size_t)bytes);
        }
        s->pool = m;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        eng_states_layout(&p->recurrent[i], kv, &s->g[i].layout);
        s->g[i].base = s->pool + at;
        at += (uint64_t)s->g[i].layout.slot_bytes * slots;
    }
    s->room = s->pool + at;
    *out = s;
    return ERR_OK;
}

void eng_states_close(eng_states *s)
{
    if (!s)
        return;
    if (s->pool)
        munmap(s->pool, s->bytes);
    free(s);
}

const struct krn_states *eng_states_step(const eng_states *s, uint32_t *n)
{
    *n = s->n;
    return s->g;
}

uint32_t eng_states_guesses_max(const eng_states *s, uint32_t pos)
{
    uint32_t row = pos % KRN_TILE, room = row == KRN_TILE - 1 ? KRN_TILE - 1 : KRN_TILE - 2 - row;
    if (!s->n)
        return UINT32_MAX;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->g[i].layout.n_fields; k++) {
            const struct krn_state_field *f = &s->g[i].layout.field[k];
            if (f->n_dims == 2 && KRN_STATE_ROWS - f->keep - 1 < room)
                room = KRN_STATE_ROWS - f->keep - 1;
        }
    return room;
}

uint8_t *eng_states_snapshot(const eng_states *s, uint32_t i)
{
    assert(i < s->snapshots);
    return s->room + i * s->snapshot_bytes;
}

/* Rows before position 0 are never read. */
void eng_states_load(eng_states *s, uint32_t slot, uint32_t pos, const uint8_t *snap)
{
    assert(slot < s->slots && pos % KRN_TILE == 0);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct krn_state_layout *l = &s->g[i].layout;
        for (uint32_t layer = 0; layer < l->n_layers; layer++, snap += l->kept_layer_bytes) {
            uint8_t *at = s->g[i].base + slot * l->slot_bytes + layer * l->layer_bytes;
            for (const struct krn_state_field *f = l->field; f < l->field + l->n_fields; f++) {
                bool rows = f->n_dims == 2;
                size_t one = rows ? (size_t)f->cols * (f->type == KRN_F32 ? 4 : 2) : (size_t)f->heads * f->dk * f->dv * sizeof(float);
                for (uint32_t k = 0, n = rows ? f->keep : 1; k < n; k++)
                    if (!rows || n - k <= pos)
                        memcpy(at + f->offset + (rows ? (pos - n + k) % KRN_STATE_ROWS * one : 0), snap + f->kept_offset + k * one, one);
            }
        }
    }
}
