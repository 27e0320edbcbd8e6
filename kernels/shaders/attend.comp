#version 450
// Causal attention of one head of one row over its pages (gpu_push_attend), by segments of 512 keys at absolute positions:
// scores of a segment, its maximum, weights and their sum over 64 lanes (key t in lane t % 64, lanes ascending), the sum of values
// over keys ascending; segments are merged ascending. Neither chunk, page size nor company shows in the result.
#include "common.glsl"
#include "kv.glsl"
layout(constant_id = 1) const uint CHANNELS = 1; // of the output, an invocation: dim_v <= 64 * CHANNELS
layout(local_size_x = 64) in;
PUSH(gpu_push_attend);
const uint SEG = 512, DIM_MAX = 512;
shared float query[DIM_MAX];
shared float score[SEG];
shared float lanes[64];

uvec2 page_of(uint seq, uint t) { return at(p.pool, U32(p.tables).v[seq * p.table_stride + t / p.page_tokens], p.page_bytes); }

float score_of(uint seq, uint head, uint t)
{
    uint in_page = t % p.page_tokens;
    uvec2 k = at(page_of(seq, t), p.k_at, 1);
    uint i = (head * (p.page_tokens / KV_BLOCK) + in_page / KV_BLOCK) * p.dim * KV_BLOCK + in_page % KV_BLOCK;
    precise float s = 0.0;
    for (uint d = 0; d < p.dim; d++) s = s + query[d] * kv_get(k, i + d * KV_BLOCK);
    s = s * p.scale;
    if (p.softcap > 0.0) s = p.softcap * m_tanh(s / p.softcap);
    return s;
}

void main()
{
    uint lane = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y, kv_head = head / p.group;
    uvec2 r = U32x2(p.rows).v[row];
    uint seq = r.x, end = r.y + 1, lo = p.window != 0 && end > p.window ? end - p.window : 0;
    for (uint d = lane; d < p.dim; d += 64) query[d] = F32(p.q).v[row * p.q_stride + head * p.q_head + d];
    barrier();
    precise float M = 0.0, L = 0.0, O[CHANNELS];
    for (uint c = 0; c < CHANNELS; c++) O[c] = 0.0;
    for (uint seg = lo / SEG; seg * SEG < end; seg++) {
        uint first = seg * SEG, t0 = max(lo, first), t1 = min(end, first + SEG);
        float top = uintBitsToFloat(0xff800000u);
        for (uint t = first + lane; t < t1; t += 64)
            if (t >= t0) {
                float s = score_of(seq, kv_head, t);
                score[t - first] = s;
                top = max(top, s);
            }
        lanes[lane] = top;
        barrier();
        float m = lanes[0];
        for (uint i = 1; i < 64; i++) m = max(m, lanes[i]);
        barrier();
        precise float sum = 0.0;
        for (uint t = first + lane; t < t1; t += 64)
            if (t >= t0) {
                precise float e = score[t - first] - m;
                e = m_exp(e);
                score[t - first] = e;
                sum = sum + e;
            }
        lanes[lane] = sum;
        barrier();
        precise float l = 0.0, o[CHANNELS];
        for (uint i = 0; i < 64; i++) l = l + lanes[i];
        for (uint c = 0; c < CHANNELS; c++) o[c] = 0.0;
        for (uint t = t0; t < t1;) {
            uint stop = min(t1, (t / KV_BLOCK + 1) * KV_BLOCK);
            uvec2 v = at(page_of(seq, t), p.v_at, 1);
            for (; t < stop; t++) {
                float w = score[t - first];
                uint i = (kv_head * p.page_tokens + t % p.page_tokens) * p.dim_v;
                for (uint c = 0; c < CHANNELS; c++) o[c] = o[c] + w * kv_get(v, i + min(lane + c * 64, p.dim_v - 1));
            }
        }
        if (t0 == lo) {
            M = m;
            L = l;
            for (uint c = 0; c < CHANNELS; c++) O[c] = o[c];
        } else {
            float both = max(M, m);
            precise float a = M - both, b = m - both;
            a = m_exp(a);
            b = m_exp(b);
            L = L * a + l * b;
            for (uint c = 0; c < CHANNELS; c++) O[c] = O[c] * a + o[c] * b;
            M = both;
        }
        barrier();
    }
    if (p.sunk != 0) {
        float sink = F32(p.sinks).v[head], both = max(M, sink);
        precise float a = M - both, b = sink - both;
        a = m_exp(a);
        b = m_exp(b);
        L = L * a + b;
        for (uint c = 0; c < CHANNELS; c++) O[c] = O[c] * a;
    }
    precise float inv = 1.0 / L;
    for (uint c = 0; c < CHANNELS; c++)
        if (lane + c * 64 < p.dim_v) {
            precise float y = O[c] * inv;
            F32(p.y).v[row * p.y_stride + head * p.y_head + lane + c * 64] = y;
        }
}
