// Elements of KV pages (kv_layout.h): KV is enum krn_type, 0 f32, 1 f16, 2 bf16.
layout(constant_id = 0) const uint KV = 0;
const uint KV_BYTES = KV == 0 ? 4 : 2;
const uint KV_BLOCK = 16;

uint round_half(float f) // to nearest even, as krn_f32_to_f16
{
    uint u = floatBitsToUint(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return sign | 0x7e00u;
    if (a >= 0x477ff000u) return sign | 0x7c00u;
    if (a < 0x33000000u) return sign;
    if (a < 0x38800000u) { // subnormal: the mantissa moves by so many bits
        uint shift = 126u - (a >> 23), m = (a & 0x7fffffu) | 0x800000u, r = m >> shift, rest = m & ((1u << shift) - 1u), half_way = 1u << (shift - 1u);
        return sign | (r + (rest > half_way || (rest == half_way && (r & 1u) != 0u) ? 1u : 0u));
    }
    a += 0xc8000fffu + ((a >> 13) & 1u);
    return sign | (a >> 13);
}
uint round_bfloat(float f)
{
    uint u = floatBitsToUint(f);
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}
void kv_put(uvec2 base, uint i, float f)
{
    if (KV == 0) F32(base).v[i] = f;
    else U16(base).v[i] = uint16_t(KV == 1 ? round_half(f) : round_bfloat(f));
}
float kv_get(uvec2 base, uint i)
{
    if (KV == 0) return F32(base).v[i];
    uint u = uint(U16(base).v[i]);
    return KV == 1 ? unpackHalf2x16(u).x : uintBitsToFloat(u << 16);
}
