#version 450
// Keys and values of a step's rows into their pages (gpu_push_store): an invocation is one channel of one KV head.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 64) in;
PUSH(gpu_push_store);

void main()
{
    uint i = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, row = gl_WorkGroupID.y, n_k = p.heads * p.dim;
    if (i >= n_k + p.heads * p.dim_v) return;
    uvec2 r = U32x2(p.rows).v[row];
    uint page = U32(p.tables).v[r.x * p.table_stride + r.y / p.page_tokens], t = r.y % p.page_tokens;
    uvec2 at_page = at(p.pool, page, p.page_bytes);
    if (i < n_k) {
        uint h = i / p.dim, d = i % p.dim;
        kv_put(at(at_page, p.k_at, 1), ((h * (p.page_tokens / KV_BLOCK) + t / KV_BLOCK) * p.dim + d) * KV_BLOCK + t % KV_BLOCK,
               F32(p.k).v[row * p.k_stride + h * p.k_head + d]);
    } else {
        i -= n_k;
        uint h = i / p.dim_v, d = i % p.dim_v;
        kv_put(at(at_page, p.v_at, 1), (h * p.page_tokens + t) * p.dim_v + d, F32(p.v).v[row * p.v_stride + h * p.v_head + d]);
    }
}
