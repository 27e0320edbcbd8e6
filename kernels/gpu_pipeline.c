/* kernels/gpu_pipeline.c - compute pipelines by shader and constants, made once. */
#include "kernels/gpu_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu_shaders.h"

static int module_of(struct gpu *g, struct gpu_pipelines *p, const char *name, VkShaderModule *out, struct err *e)
{
    unsigned i = 0;
    while (i < gpu_n_shaders && strcmp(gpu_shaders[i].name, name)) i++;
    if (i == gpu_n_shaders) return err_set(e, ERR_NOTFOUND, "no shader %s in this build", name);
    if (!p->modules && !(p->modules = calloc(gpu_n_shaders, sizeof *p->modules))) return err_set(e, ERR_NOMEM, "shader modules");
    if (!p->modules[i]) {
        VkShaderModuleCreateInfo c = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = gpu_shaders[i].bytes, .pCode = gpu_shaders[i].words};
        VkResult r = g->vk.vkCreateShaderModule(g->device, &c, NULL, &p->modules[i]);
        if (r != VK_SUCCESS) return gpu_vk_fail(e, r, name);
        gpu_name(g, VK_OBJECT_TYPE_SHADER_MODULE, (uint64_t)(uintptr_t)p->modules[i], name);
    }
    *out = p->modules[i];
    return ERR_OK;
}

static int make(struct gpu *g, VkShaderModule module, const struct gpu_spec *s, VkPipeline *out, struct err *e)
{
    VkSpecializationMapEntry map[4];
    char name[96];
    for (uint32_t i = 0; i < 4; i++) map[i] = (VkSpecializationMapEntry){.constantID = i, .offset = 4 * i, .size = 4};
    VkSpecializationInfo spec = {.mapEntryCount = 4, .pMapEntries = map, .dataSize = sizeof s->c, .pData = s->c};
    VkComputePipelineCreateInfo c = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .layout = g->layout,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .pName = "main", .pSpecializationInfo = &spec}};
    VkResult r = g->vk.vkCreateComputePipelines(g->device, g->cache, 1, &c, NULL, out);
    snprintf(name, sizeof name, "%s %u %u %u %u", s->shader, s->c[0], s->c[1], s->c[2], s->c[3]);
    if (r != VK_SUCCESS) return gpu_vk_fail(e, r, name);
    gpu_name(g, VK_OBJECT_TYPE_PIPELINE, (uint64_t)(uintptr_t)*out, name);
    g->pipelines++;
    return ERR_OK;
}

int gpu_pipeline_get(struct gpu *g, struct gpu_pipelines *p, const struct gpu_spec *s, VkPipeline *out, struct err *e)
{
    VkShaderModule module = VK_NULL_HANDLE;
    for (uint32_t i = 0; i < p->n; i++)
        if (!strcmp(p->v[i].spec.shader, s->shader) && !memcmp(p->v[i].spec.c, s->c, sizeof s->c)) {
            *out = p->v[i].pipeline;
            return ERR_OK;
        }
    if (p->n == p->cap) {
        uint32_t cap = p->cap ? 2 * p->cap : 32;
        void *v = realloc(p->v, cap * sizeof *p->v);
        if (!v) return err_set(e, ERR_NOMEM, "pipelines");
        p->v = v;
        p->cap = cap;
    }
    int rc = module_of(g, p, s->shader, &module, e);
    if (rc || (rc = make(g, module, s, out, e))) return rc;
    p->v[p->n].spec = *s;
    p->v[p->n++].pipeline = *out;
    return ERR_OK;
}

void gpu_pipelines_close(struct gpu *g, struct gpu_pipelines *p)
{
    for (uint32_t i = 0; i < p->n; i++) g->vk.vkDestroyPipeline(g->device, p->v[i].pipeline, NULL);
    for (unsigned i = 0; p->modules && i < gpu_n_shaders; i++) g->vk.vkDestroyShaderModule(g->device, p->modules[i], NULL);
    free(p->v);
    free(p->modules);
}
