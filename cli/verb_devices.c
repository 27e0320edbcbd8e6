/* sluice devices [--json]: what --device vulkan:N can mean on this machine, with the features and limits that matter. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/verbs.h"
#include "kernels/gpu.h"

static void print_text(const struct gpu_info *g, unsigned i)
{
    printf("vulkan:%u  %s (%s), driver %s %s, Vulkan %s\n", i, g->name, gpu_type_names[g->type], g->driver, g->driver_info, g->api);
    for (unsigned h = 0; h < g->n_heaps; h++) {
        printf("          heap %u: %.1f MiB%s%s", h, (double)g->heaps[h].bytes / (1 << 20), g->heaps[h].local ? ", the device's own" : ", the host's",
               g->heaps[h].mapped ? ", host sees it" : "");
        if (g->heaps[h].budget)
            printf(", %.1f MiB free to take", (double)g->heaps[h].budget / (1 << 20));
        printf("\n");
    }
    printf("          subgroup %u", g->subgroup);
    if (g->subgroup_min != g->subgroup_max)
        printf(" (%u to %u)", g->subgroup_min, g->subgroup_max);
    printf(", work group %u, shared memory %u KiB, one allocation at most %.0f MiB\n", g->group_invocations, g->group_shared / 1024, (double)g->alloc_max / (1 << 20));
    printf("          copy queue %s, timestamps %s, f16 %s, int8 dot %s, cooperative matrix %s, host import %s, memory budget %s\n", g->transfer_queue ? "yes" : "no",
           g->timestamp_ns > 0 ? "yes" : "no", g->f16 ? "yes" : "no", g->int8_dot ? "yes" : "no", g->coop_matrix ? "yes" : "no", g->host_import ? "yes" : "no",
           g->memory_budget ? "yes" : "no");
    if (g->missing[0])
        printf("          cannot run models: it has no %s\n", g->missing);
}

static void put_str(struct buf *b, const char *key, const char *s)
{
    buf_printf(b, "\"%s\": ", key);
    json_put_str(b, s, strlen(s));
    buf_str(b, ", ");
}

static void print_json(struct buf *b, const struct gpu_info *g, unsigned i)
{
    buf_printf(b, "%s{\"device\": \"vulkan:%u\", ", i ? ", " : "", i);
    put_str(b, "name", g->name);
    put_str(b, "type", gpu_type_names[g->type]);
    put_str(b, "driver", g->driver);
    put_str(b, "driver_info", g->driver_info);
    put_str(b, "api", g->api);
    put_str(b, "missing", g->missing);
    buf_str(b, "\"heaps\": [");
    for (unsigned h = 0; h < g->n_heaps; h++)
        buf_printf(b, "%s{\"bytes\": %" PRIu64 ", \"budget\": %" PRIu64 ", \"local\": %s, \"mapped\": %s}", h ? ", " : "", g->heaps[h].bytes, g->heaps[h].budget,
                   g->heaps[h].local ? "true" : "false", g->heaps[h].mapped ? "true" : "false");
    buf_printf(b, "], \"subgroup\": [%u, %u, %u], \"group_invocations\": %u, \"group_shared\": %u, \"push_bytes\": %u, \"alloc_max\": %" PRIu64 ", ", g->subgroup_min, g->subgroup,
               g->subgroup_max, g->group_invocations, g->group_shared, g->push_bytes, g->alloc_max);
    buf_printf(b, "\"timestamp_ns\": %g, \"transfer_queue\": %s, \"f16\": %s, \"int8_dot\": %s, \"coop_matrix\": %s, \"host_import\": %s, \"memory_budget\": %s}", g->timestamp_ns,
               g->transfer_queue ? "true" : "false", g->f16 ? "true" : "false", g->int8_dot ? "true" : "false", g->coop_matrix ? "true" : "false", g->host_import ? "true" : "false",
               g->memory_budget ? "true" : "false");
}

int verb_devices(int argc, char **argv)
{
    struct gpu_info g[GPU_DEVICES_MAX];
    struct err e = {0};
    struct buf out;
    unsigned n;
    bool json = argc == 2 && !strcmp(argv[1], "--json");
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        puts("usage: sluice devices [--json]\n\nThe Vulkan devices of this machine, as --device vulkan:N numbers them: memory, features, limits.");
        return CLI_OK;
    }
    if (argc > 1 && !json) {
        fprintf(stderr, "sluice devices: unexpected '%s' (--json is the one flag)\n", argv[1]);
        return CLI_USAGE;
    }
    int rc = gpu_list(g, GPU_DEVICES_MAX, &n, &e);
    if (rc) {
        fprintf(stderr, "sluice devices: %s\n", e.msg);
        return rc == ERR_NOTFOUND || rc == ERR_UNSUPPORTED ? CLI_NO : CLI_FAULT;
    }
    buf_init(&out, 1 << 20);
    for (unsigned i = 0; i < n; i++)
        if (json)
            print_json(&out, &g[i], i);
        else
            print_text(&g[i], i);
    if (json)
        printf("[%s]\n", out.data ? out.data : "");
    buf_free(&out);
    return CLI_OK;
}
