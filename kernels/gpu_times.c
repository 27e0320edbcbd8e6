/* kernels/gpu_times.c - where a step's time goes on the device: a timestamp after every dispatch of a timed command buffer.
 *
 * The first call of times() starts the clocks: from then on lists replay command buffers of their own, in which each dispatch waits for
 * the one before it, so that a difference of two stamps is the time of one dispatch. Their sum is a little above an untimed step's, where
 * dispatches overlap. Stamps are read after the wait that ends a step. Without timestamps (or with --device-without timestamps) there is nothing. */
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu_internal.h"

enum { STORE = KRN_OP_COUNT, SCAN, TIMED };
struct gpu_times {
    uint64_t mask;             /* of a stamp's valid bits */
    krn_list *pending;         /* submitted since the last wait */
    uint64_t stamps[GPU_STAMPS_MAX];
    double ns[TIMED][KRN_TYPE_COUNT]; uint64_t calls[TIMED][KRN_TYPE_COUNT];
};

void gpu_times_kind(struct gpu_call *c, const struct krn_op *op, const struct krn_weight *weights)
{
    bool matrix = op->code == KRN_LINEAR || op->code == KRN_EMBED;
    c->what = !strcmp(c->spec.shader, "store") ? STORE : (uint16_t)op->code;
    c->type = matrix ? (uint8_t)weights[op->weight[0]].type : KRN_F32;
}
void gpu_times_scan(struct gpu_call *c)
{
    c->what = SCAN;
    c->type = KRN_F32;
}

bool gpu_times_of(const krn_backend *b, const krn_list *l) { return b->times && l->n < GPU_STAMPS_MAX; }

int gpu_times_begin(krn_backend *b, krn_list *l, VkCommandBuffer c, struct err *e)
{
    if (!l->stamps) {
        VkQueryPoolCreateInfo q = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = (uint32_t)l->n + 1};
        VkResult r = b->g->vk.vkCreateQueryPool(b->g->device, &q, NULL, &l->stamps);
        if (r != VK_SUCCESS) return gpu_vk_fail(e, r, "timestamps");
    }
    b->g->vk.vkCmdResetQueryPool(c, l->stamps, 0, (uint32_t)l->n + 1);
    gpu_times_mark(b, l, c, 0);
    return ERR_OK;
}

void gpu_times_mark(krn_backend *b, krn_list *l, VkCommandBuffer c, size_t i)
{
    b->g->vk.vkCmdWriteTimestamp(c, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, l->stamps, (uint32_t)i);
}

void gpu_times_submitted(krn_backend *b, krn_list *l)
{
    if (l->pending) return; /* twice in one step: the later one's stamps are read */
    l->pending = true;
    l->next = b->times->pending;
    b->times->pending = l;
}

static void gather(krn_backend *b, const krn_list *l)
{
    struct gpu_times *t = b->times;
    uint32_t n = (uint32_t)l->n + 1;
    if (b->g->vk.vkGetQueryPoolResults(b->g->device, l->stamps, 0, n, n * sizeof *t->stamps, t->stamps, sizeof *t->stamps, VK_QUERY_RESULT_64_BIT) != VK_SUCCESS) return;
    for (size_t i = 0; i < l->n; i++) {
        const struct gpu_call *c = &l->calls[i];
        t->ns[c->what][c->type] += (double)((t->stamps[i + 1] - t->stamps[i]) & t->mask) * b->g->info.timestamp_ns;
        t->calls[c->what][c->type]++;
    }
}

void gpu_times_waited(krn_backend *b)
{
    if (!b->times) return;
    for (krn_list *l = b->times->pending; l; l = l->next) {
        gather(b, l);
        l->pending = false;
    }
    b->times->pending = NULL;
}

void gpu_times_forget(krn_backend *b, krn_list *l)
{
    if (l->pending) gpu_times_waited(b);
    if (l->stamps) b->g->vk.vkDestroyQueryPool(b->g->device, l->stamps, NULL);
}

static void start(krn_backend *b)
{
    VkQueueFamilyProperties f[16];
    uint32_t n = 16, family = b->g->families[GPU_COMPUTE];
    b->g->vk.vkGetPhysicalDeviceQueueFamilyProperties(b->g->physical, &n, f);
    uint32_t bits = family < n ? f[family].timestampValidBits : 0;
    if (!bits || b->g->info.timestamp_ns <= 0 || !(b->times = calloc(1, sizeof *b->times))) return;
    b->times->mask = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}

size_t gpu_times_take(krn_backend *b, struct krn_time *out, size_t max)
{
    size_t n = 0;
    if (!b->times) {
        start(b);
        return 0;
    }
    for (unsigned what = 0; what < TIMED; what++)
        for (unsigned k = 0; k < KRN_TYPE_COUNT; k++) {
            const char *name = what == STORE ? "store kv" : what == SCAN ? "scan" : krn_op_name((enum krn_opcode)what);
            struct krn_time one = {.name = name, .type = (enum krn_type)k, .ns = (uint64_t)b->times->ns[what][k], .calls = b->times->calls[what][k]};
            if (one.calls && n < max) out[n++] = one;
            b->times->ns[what][k] = 0;
            b->times->calls[what][k] = 0;
        }
    return n;
}
