#version 450
// One head of one row (gpu_push_norm): 64 lanes, channel i in lane i % 64, lanes summed ascending by every invocation.
#include "common.glsl"
layout(local_size_x = 64) in;
PUSH(gpu_push_norm);
shared float lanes[64];

void main()
{
    uint lane = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    F32 x = F32(p.x), y = F32(p.y), w = F32(p.w);
    uint from = t * p.x_stride + head * p.x_head, to = t * p.y_stride + head * p.y_head;
    bool scan = p.mode == GPU_NORM_SCAN;
    precise float sum = 0.0;
    for (uint i = lane; i < p.dim; i += 64) {
        float v = x.v[from + i];
        if (scan) sum = (floatBitsToUint(v) & 0x7f800000u) == 0x7f800000u ? 1.0 : sum;
        else sum = sum + v * v;
    }
    lanes[lane] = sum;
    barrier();
    sum = 0.0;
    for (uint i = 0; i < 64; i++) sum = sum + lanes[i];
    if (scan) {
        if (lane == 0) U32(p.y).v[t] = sum > 0.0 ? 1u : 0u;
        return;
    }
    precise float r = 1.0 / sqrt((p.mode == GPU_NORM_RMS ? sum / float(p.dim) : sum) + p.eps);
    for (uint i = lane; i < p.dim; i += 64) {
        precise float v = x.v[from + i] * r;
        if (p.weighted != 0) v = v * (w.v[i] + p.offset);
        y.v[to + i] = v;
    }
}
