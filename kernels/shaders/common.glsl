// What every shader begins with: addresses, push constants, and our own exp, tanh, erf (mathf.h without fused multiply-add).
// All sums are `precise`: no contraction and no reordering, so that results do not depend on a shader's variant.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_GOOGLE_include_directive : require
#define GPU_GLSL
#include "../gpu_push.h"
#define PUSH(type) layout(push_constant, std430) uniform Push { type p; }

layout(buffer_reference, std430, buffer_reference_align = 4) buffer F32 { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer U32 { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer I32 { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer U32x2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer U32x4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer F32x4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer U16 { uint16_t v[]; };

// base + a * b bytes
uvec2 at(uvec2 base, uint a, uint b)
{
    uint hi, lo, carry;
    umulExtended(a, b, hi, lo);
    lo = uaddCarry(base.x, lo, carry);
    return uvec2(lo, base.y + hi + carry);
}

float half_of(uint word, uint upper) { return unpackHalf2x16(upper != 0 ? word >> 16 : word & 0xffffu).x; }
float bfloat_of(uint word, uint upper) { return uintBitsToFloat(upper != 0 ? word & 0xffff0000u : word << 16); }

float pow2(int k) { return uintBitsToFloat(uint(k + 127) << 23); }
float m_exp(float x0)
{
    precise float x = min(89.0, max(-105.0, x0));
    precise float k = roundEven(x * 1.44269504);
    precise float r = x - k * 0.693359375; // nine bits: the product is exact
    r = r - k * -2.12194440e-4;
    precise float p = r * 0.000198911803 + 0.00139338209;
    p = p * r + 0.00833331048;
    p = p * r + 0.041666463;
    p = p * r + 0.166666672;
    p = p * r + 0.5;
    p = p * (r * r) + r;
    p = p + 1.0;
    int h = int(k) / 2;
    precise float y = p * pow2(h) * pow2(int(k) - h);
    return x0 != x0 ? x0 : y;
}
float m_sigmoid(float x) { precise float y = 1.0 / (1.0 + m_exp(-x)); return y; }
float m_tanh(float x)
{
    precise float a = abs(x);
    precise float z = x * x;
    precise float p = z * 0.00229274482 - 0.00834394526;
    p = p * z + 0.0217689183;
    p = p * z - 0.0539592579;
    p = p * z + 0.133333042;
    p = p * z - 0.333333343;
    precise float low = p * z * a + a;
    precise float high = 1.0 - 2.0 / (m_exp(a + a) + 1.0);
    float y = a < 0.625 ? low : high;
    return x != x ? x : x < 0.0 ? -y : y;
}
float m_erf(float x)
{
    precise float a = abs(x);
    precise float z = x * x;
    precise float p = z * 8.38759079e-05 - 0.000814720232;
    p = p * z + 0.00520146685;
    p = p * z - 0.0268595926;
    p = p * z + 0.112836994;
    p = p * z - 0.376126349;
    p = p * z + 0.128379166;
    precise float low = p * a + a;
    precise float t = min(4.0, a); // 1 in f32 from 3.92 on
    precise float q = t * 1.64357095e-06 - 4.61782765e-05; // ln(1 - erf t)
    q = q * t + 0.000597749837;
    q = q * t - 0.00476362323;
    q = q * t + 0.0264312122;
    q = q * t - 0.110094942;
    q = q * t - 0.631813884;
    q = q * t - 1.13023806;
    q = q * t + 0.000320581632;
    precise float high = 1.0 - m_exp(q);
    float y = a < 0.921875 ? low : high;
    return x != x ? x : x < 0.0 ? -y : y;
}
