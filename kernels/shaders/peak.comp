#version 450
// What the device can do, for numbers to stand beside: mode 0 reads a piece of memory once, mode 1 multiplies and adds in registers (gpu_push_peak).
#include "common.glsl"
layout(local_size_x = 256) in;
PUSH(gpu_push_peak);

void main()
{
    if (p.mode == GPU_PEAK_READ) {
        U32x4 x = U32x4(p.x);
        uvec4 a = uvec4(0), b = uvec4(0);
        uint each = p.n / gl_NumWorkGroups.x, first = gl_WorkGroupID.x * each; // a stretch a group, side by side within it
        for (uint k = gl_LocalInvocationID.x; k + 256 < each; k += 512) {
            a ^= x.v[first + k];
            b ^= x.v[first + k + 256];
        }
        a ^= b;
        uint all = a.x ^ a.y ^ a.z ^ a.w;
        if (all == p.never) U32(p.y).v[0] = all; // so that reads cannot be left out
        return;
    }
    vec4 s = vec4(float(gl_WorkGroupID.x * 256 + gl_LocalInvocationID.x)), t = s + 1.0, u = s + 2.0, v = s + 3.0;
    for (uint k = 0; k < p.n; k++) { // 4 x 4 products and sums
        s = fma(s, vec4(p.c), vec4(0.5));
        t = fma(t, vec4(p.c), vec4(0.5));
        u = fma(u, vec4(p.c), vec4(0.5));
        v = fma(v, vec4(p.c), vec4(0.5));
    }
    vec4 all = s + t + u + v;
    if (all.x + all.y + all.z + all.w == -1.0) U32(p.y).v[0] = 1;
}
