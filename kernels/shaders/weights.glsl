// Quantised and float matrices in the tile layout of slot.h, never read by less than 32 bits: TYPE is enum krn_type. Offsets and sizes
// are in bytes of a row, as in slot.h; 16 rows lie side by side, so that a byte of a row is 4 words of a tile. What follows the
// constants reads one row (embed.comp); linear.comp reads four rows at a time.
// A sub-block is 32 columns; quads(g) gives columns 4g .. 4g+3 of it as numbers, scales() what they are multiplied by and what is
// added: w = d[g / 4] * q + m.
const uint T_F32 = 0, T_F16 = 1, T_BF16 = 2, T_Q4_0 = 13, T_Q4_1 = 14, T_Q5_0 = 15, T_Q5_1 = 16, T_Q8_0 = 17, T_Q4_K = 20, T_Q5_K = 21, T_Q6_K = 22;
layout(constant_id = 0) const uint TYPE = 0;
const bool FLOATS = TYPE <= T_BF16;
const bool K256 = TYPE >= T_Q4_K;
const bool HAS_MIN = TYPE == T_Q4_1 || TYPE == T_Q5_1 || TYPE == T_Q4_K || TYPE == T_Q5_K;
const uint R = 16;

// Words of one block of 16 rows: 4 bytes of a row are 16 words of a tile.
const uint BLOCK_BYTES = TYPE == T_Q4_0 ? 18 : TYPE == T_Q4_1 ? 20 : TYPE == T_Q5_0 ? 22 : TYPE == T_Q5_1 ? 24 : TYPE == T_Q8_0 ? 34 : TYPE == T_Q4_K ? 144 : TYPE == T_Q5_K ? 176 : 210;
const uint BLOCK_WORDS = BLOCK_BYTES * 4;
const uint QUANTS = TYPE == T_Q4_1 ? 4 : TYPE == T_Q5_0 ? 6 : TYPE == T_Q5_1 ? 8 : TYPE == T_Q4_K ? 16 : TYPE == T_Q5_K ? 48 : TYPE == T_Q6_K ? 18 : 2;
const uint HIGH = TYPE == T_Q5_0 ? 2 : TYPE == T_Q5_1 ? 4 : 16;

struct Sub { U32 w; uint base, k, row; }; // base: word of the block's start; k: sub-block of it
Sub sub_at(U32 tile, uint b, uint row)
{
    return Sub(tile, (K256 ? b / 8 : b) * BLOCK_WORDS, K256 ? b % 8 : 0, row);
}
// Word n of the 4-byte pieces that begin `at` row bytes into the block.
uint word(Sub s, uint at, uint n) { return s.w.v[s.base + at * 4 + n * R + s.row]; }
float half_at(Sub s, uint at) { return half_of(s.w.v[s.base + at * 4 + s.row / 2], s.row & 1); }

vec4 bytes4(uint w) { return vec4(w & 255u, (w >> 8) & 255u, (w >> 16) & 255u, w >> 24); }
vec4 quads(Sub s, uint g)
{
    if (TYPE == T_Q8_0) {
        int w = int(word(s, QUANTS, g));
        return vec4((w << 24) >> 24, (w << 16) >> 24, (w << 8) >> 24, w >> 24);
    }
    if (TYPE == T_Q4_K || TYPE == T_Q5_K) {
        uint w = (word(s, QUANTS, s.k / 2 * 8 + g) >> (4 * (s.k & 1))) & 0x0f0f0f0fu;
        if (TYPE == T_Q5_K) w |= ((word(s, HIGH, g) >> s.k) & 0x01010101u) << 4;
        return bytes4(w);
    }
    if (TYPE == T_Q6_K) {
        uint at = QUANTS + s.k / 4 * 96;
        uint w = (word(s, at, s.k % 2 * 8 + g) >> (4 * (s.k / 2 % 2))) & 0x0f0f0f0fu;
        w |= ((word(s, at + 64, g) >> (2 * (s.k % 4))) & 0x03030303u) << 4;
        return bytes4(w) - 32.0;
    }
    uint w = (word(s, QUANTS, g % 4) >> (g / 4 * 4)) & 0x0f0f0f0fu;
    if (TYPE == T_Q5_0 || TYPE == T_Q5_1) w |= ((word(s, HIGH, 0) >> g) & 0x01010101u) << 4;
    return bytes4(w) - (TYPE == T_Q4_0 ? 8.0 : TYPE == T_Q5_0 ? 16.0 : 0.0);
}
uint byte_of(uint w, uint n) { return (w >> (8 * n)) & 255u; }
void scales(Sub s, out precise vec2 d, out precise float m)
{
    float base = half_at(s, 0);
    d = vec2(base);
    m = 0.0;
    if (TYPE == T_Q4_1 || TYPE == T_Q5_1) m = half_at(s, 2);
    if (TYPE == T_Q4_K || TYPE == T_Q5_K) {
        uint n = s.k % 4, a = byte_of(word(s, 4, 0), n), b = byte_of(word(s, 4, 1), n), c = byte_of(word(s, 4, 2), n);
        uint sc = s.k < 4 ? a & 63u : (c & 15u) | (a >> 6) << 4, mn = s.k < 4 ? b & 63u : (c >> 4) | (b >> 6) << 4;
        d = vec2(base * float(sc));
        m = -(half_at(s, 2) * float(mn));
    }
    if (TYPE == T_Q6_K) {
        int w = int(word(s, 2, s.k / 2)); // signed bytes 2k and 2k + 1
        int lo = s.k % 2 == 0 ? (w << 24) >> 24 : (w << 8) >> 24, hi = s.k % 2 == 0 ? (w << 16) >> 24 : w >> 24;
        d = vec2(base * float(lo), base * float(hi));
    }
}
// Float types: column c of the tile.
float element(U32 tile, uint c, uint row)
{
    uint i = c * R + row;
    if (TYPE == T_F32) return uintBitsToFloat(tile.v[i]);
    uint w = tile.v[i / 2];
    return TYPE == T_F16 ? half_of(w, i & 1) : bfloat_of(w, i & 1);
}
