#version 450
// Rows of a tiled matrix, one a token (gpu_push_embed). An invocation expands 4 columns.
#include "common.glsl"
#include "weights.glsl"
layout(local_size_x = 64) in;
PUSH(gpu_push_embed);

void main()
{
    uint c = (gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x) * 4, t = gl_WorkGroupID.y;
    if (c >= p.cols) return;
    uint token = uint(I32(p.tokens).v[t]);
    U32 tile = U32(at(p.w, token / R, p.tile_words * 4));
    F32 y = F32(p.y);
    uint row = token % R, to = t * p.y_stride;
    if (FLOATS) {
        for (uint i = c; i < min(c + 4, p.cols); i++) {
            precise float v = element(tile, i, row) * p.scale;
            y.v[to + i] = v;
        }
        return;
    }
    precise vec2 d;
    precise float m;
    Sub s = sub_at(tile, c / 32, row);
    scales(s, d, m);
    vec4 q = quads(s, c % 32 / 4);
    precise vec4 v = q * (c % 32 < 16 ? d.x : d.y);
    if (HAS_MIN) v = v + m;
    v = v * p.scale;
    y.v[to + c] = v.x;
    y.v[to + c + 1] = v.y;
    y.v[to + c + 2] = v.z;
    y.v[to + c + 3] = v.w;
}
