#version 450
// A tile of 16 rows of W times TOKENS rows of x (gpu_push_linear). Columns go by units of 64; an invocation is (4 rows, 8 columns of
// every unit, one unit in SPLIT): it loads 4 words side by side, one a row, and has its columns' x to itself. Its sum runs over its
// units ascending; the 8 * SPLIT sums of a row are added ascending at the end. One order, whatever TOKENS is.
#include "common.glsl"
#include "weights.glsl"
layout(constant_id = 1) const uint TOKENS = 1;
layout(constant_id = 2) const uint ALIGNED = 1; // rows of x begin at multiples of 16 bytes
layout(local_size_x = 128) in;
PUSH(gpu_push_linear);
const uint SPLIT = 4, LANES = 8 * SPLIT;
shared float part[TOKENS * LANES * R];

uint quad, g; // of the rows; of the columns
struct Columns { vec4 w[4]; vec4 d, m; uint col; bool valid; }; // w[j]: column col + j of the 4 rows, times d plus m

uvec4 words(U32x4 w, uint base, uint at, uint n) { return w.v[base / 4 + at + n * 4 + quad]; }
vec4 halves(U32x2 w, uint base, uint at)
{
    uvec2 h = w.v[base / 2 + at * 2 + quad];
    return vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y));
}
uvec4 byte4(uvec4 w, uint n) { return (w >> (8 * n)) & 255u; }
vec4 sbyte4(uvec4 w, uint n) { return vec4((ivec4(w) << int(24 - 8 * n)) >> 24); }

// Where quad q of this invocation's columns in unit u lies: its block's first word, its sub-block, which quad of it.
void find(uint u, uint q, out uint block, out uint k, out uint quad_of)
{
    k = 0;
    quad_of = g;
    if (TYPE == T_Q8_0) block = 2 * u + q;
    else if (TYPE == T_Q6_K) {
        block = u / 4;
        k = u % 4 / 2 * 4 + u % 2 + 2 * q;
    } else if (K256) {
        block = u / 4;
        k = u % 4 * 2 + q;
    } else {
        block = 2 * u + g / 4;
        quad_of = g % 4 + 4 * q;
    }
}

Columns columns(uvec2 tile, uint u, uint q)
{
    Columns c;
    uint block, k, n;
    U32x4 w4 = U32x4(tile);
    U32x2 w2 = U32x2(tile);
    find(u, q, block, k, n);
    c.col = K256 ? block * 256 + k * 32 + 4 * n : block * 32 + 4 * n;
    c.valid = c.col < p.cols;
    if (!c.valid) return c;
    uint base = block * BLOCK_WORDS;
    uvec4 w;
    c.d = halves(w2, base, 0);
    c.m = vec4(0.0);
    if (TYPE == T_Q8_0) {
        w = words(w4, base, QUANTS, n);
        for (uint j = 0; j < 4; j++) c.w[j] = sbyte4(w, j);
        return c;
    }
    if (TYPE == T_Q6_K) {
        uint at = QUANTS + k / 4 * 96, s = 2 * k + n / 4;
        w = (words(w4, base, at, k % 2 * 8 + n) >> (4 * q)) & 0x0f0f0f0fu;
        w |= ((words(w4, base, at + 64, n) >> (2 * (k % 4))) & 0x03030303u) << 4;
        precise vec4 d = c.d * sbyte4(words(w4, base, 2, s / 4), s % 4);
        c.d = d;
    } else if (K256) {
        w = (words(w4, base, QUANTS, k / 2 * 8 + n) >> (4 * q)) & 0x0f0f0f0fu;
        if (TYPE == T_Q5_K) w |= ((words(w4, base, HIGH, n) >> k) & 0x01010101u) << 4;
        uvec4 a = byte4(words(w4, base, 4, 0), k % 4), b = byte4(words(w4, base, 4, 1), k % 4), both = byte4(words(w4, base, 4, 2), k % 4);
        uvec4 sc = k < 4 ? a & 63u : (both & 15u) | (a >> 6) << 4, mn = k < 4 ? b & 63u : (both >> 4) | (b >> 6) << 4;
        precise vec4 d = c.d * vec4(sc), m = halves(w2, base, 2) * vec4(mn);
        c.d = d;
        c.m = -m;
    } else {
        w = (words(w4, base, QUANTS, n % 4) >> (4 * q)) & 0x0f0f0f0fu;
        if (TYPE == T_Q5_0 || TYPE == T_Q5_1) w |= ((words(w4, base, HIGH, 0) >> n) & 0x01010101u) << 4;
        if (HAS_MIN) c.m = halves(w2, base, 2);
    }
    float zero = TYPE == T_Q4_0 ? 8.0 : TYPE == T_Q5_0 ? 16.0 : TYPE == T_Q6_K ? 32.0 : 0.0;
    for (uint j = 0; j < 4; j++) c.w[j] = vec4(byte4(w, j)) - zero;
    return c;
}

// Float types: nothing to scale; columns beyond the last are zero.
Columns plain(uvec2 tile, uint u, uint q)
{
    Columns c;
    c.col = u * 64 + g * 8 + q * 4;
    c.valid = c.col < p.cols;
    for (uint j = 0; j < 4; j++) {
        uint col = c.col + j;
        c.w[j] = vec4(0.0);
        if (col >= p.cols) continue;
        if (TYPE == T_F32) c.w[j] = uintBitsToFloat(U32x4(tile).v[col * 4 + quad]);
        else {
            uvec2 h = U32x2(tile).v[col * 4 + quad];
            c.w[j] = TYPE == T_F16 ? vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y)) : uintBitsToFloat(uvec4(h.x << 16, h.x & 0xffff0000u, h.y << 16, h.y & 0xffff0000u));
        }
    }
    return c;
}

vec4 x_at(uint i, uint col)
{
    if (ALIGNED != 0 && !FLOATS) return F32x4(p.x).v[(i + col) / 4];
    F32 x = F32(p.x);
    i += col;
    if (!FLOATS) return vec4(x.v[i], x.v[i + 1], x.v[i + 2], x.v[i + 3]);
    uint last = i - col + p.cols - 1; // beyond it the weights are zero, and x may be anything: the last column again
    return vec4(x.v[i], x.v[min(i + 1, last)], x.v[min(i + 2, last)], x.v[min(i + 3, last)]);
}

void main()
{
    uint id = gl_LocalInvocationID.x, split = id / 32, t0 = gl_WorkGroupID.y * TOKENS;
    quad = id % 4;
    g = id / 4 % 8;
    uint n = U32(p.step).v[p.picked != 0 ? GPU_HEAD_PICKS : GPU_HEAD_TOKENS], units = (p.cols + 63) / 64;
    uvec2 tile = at(p.w, gl_WorkGroupID.x, p.tile_words * 4);
    precise vec4 acc[TOKENS];
    for (uint t = 0; t < TOKENS; t++) acc[t] = vec4(0.0);
    for (uint u = split; u < units; u += SPLIT)
        for (uint q = 0; q < 2; q++) {
            Columns c = FLOATS ? plain(tile, u, q) : columns(tile, u, q);
            if (!c.valid) continue;
            for (uint t = 0; t < TOKENS; t++) {
                vec4 x = x_at(min(t0 + t, n - 1) * p.x_stride, c.col); // rows beyond the step repeat the last one
                precise vec4 s = c.w[0] * x.x + c.w[1] * x.y + (c.w[2] * x.z + c.w[3] * x.w);
                if (FLOATS) acc[t] = acc[t] + s;
                else acc[t] = acc[t] + c.d * s;
                if (HAS_MIN) {
                    precise float sum = x.x + x.y + (x.z + x.w);
                    acc[t] = acc[t] + c.m * sum;
                }
            }
        }
    for (uint t = 0; t < TOKENS; t++)
        for (uint i = 0; i < 4; i++) part[(t * LANES + split * 8 + g) * R + quad * 4 + i] = acc[t][i];
    barrier();
    uint row = id % R, t = id / R, out_row = gl_WorkGroupID.x * R + row;
    if (t >= TOKENS || t0 + t >= n || out_row >= p.rows) return;
    precise float y = 0.0;
    for (uint lane = 0; lane < LANES; lane++) y = y + part[(t * LANES + lane) * R + row];
    if (p.biased != 0) y = y + F32(p.bias).v[out_row];
    F32(p.y).v[(t0 + t) * p.y_stride + out_row] = y;
}
