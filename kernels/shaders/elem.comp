#version 450
// Row operators that look at one element at a time, or at a pair (gpu_push_elem): one shader for all of them, since a branch that
// all invocations take costs nothing and a pipeline does.
#include "common.glsl"
layout(local_size_x = 64) in;
PUSH(gpu_push_elem);

float glu(uint act, float g, float u)
{
    precise float y;
    switch (act) {
    case 0: y = g / (1.0 + m_exp(-g)) * u; break;                                                  // SILU
    case 1: y = (0.5 * g) * (1.0 + m_erf(g * 0.70710678)) * u; break;                              // GELU
    case 2: {                                                                                      // GELU_TANH
        precise float z = g * (g * g * 0.035677408 + 0.79788456);
        y = (0.5 * g) * (1.0 + m_tanh(z)) * u;
        break;
    }
    case 3: {                                                                                      // SITU: c2 beta, c3 beta_u
        precise float v = p.c3 != 0.0 ? p.c3 * m_tanh(u / p.c3) : u;
        y = (p.c2 * m_tanh(g / p.c2)) * m_sigmoid(g) * v;
        break;
    }
    case 4: {                                                                                      // CLAMP_SWIGLU: c0 alpha, c1 limit
        precise float h = g > p.c1 ? p.c1 : g;
        precise float v = u > p.c1 ? p.c1 : u < -p.c1 ? -p.c1 : u;
        y = (v + 1.0) * (h / (1.0 + m_exp(-(p.c0 * h))));
        break;
    }
    case 5: y = (g < 0.0 ? 0.0 : g) * u; break;                                                    // RELU
    default: y = g / (1.0 + m_exp(-(1.702 * g))) * u; break;                                       // QUICK_GELU
    }
    return y;
}

void rotate(uint t, uint h, uint i)
{
    F32 a = F32(p.a), y = F32(p.y), table = F32(p.aux);
    uint from = t * p.a_stride + h * p.a_head, to = t * p.y_stride + h * p.y_head;
    if (i >= p.n_freq) { // channels that do not turn
        i += p.n_freq;
        if (i < p.dim) y.v[to + i] = a.v[from + i];
        return;
    }
    uint first = p.adjacent != 0 ? 2 * i : i, second = p.adjacent != 0 ? first + 1 : i + p.n_freq;
    float u = a.v[from + first], v = a.v[from + second], c = table.v[t * 2 * p.n_freq + i], s = table.v[(t * 2 + 1) * p.n_freq + i];
    precise float ru = u * c - v * s, rv = v * c + u * s;
    y.v[to + first] = ru;
    y.v[to + second] = rv;
}

void main()
{
    uint i = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, t = gl_WorkGroupID.y, h = i / p.dim;
    if (h >= p.heads) return;
    i -= h * p.dim;
    if (p.op == GPU_ELEM_ROPE) {
        rotate(t, h, i);
        return;
    }
    uint row = p.op == GPU_ELEM_PICK ? U32(p.aux).v[t] : t;
    float a = F32(p.a).v[row * p.a_stride + h * p.a_head + i], b = 0.0;
    if (p.op == GPU_ELEM_ADD || p.op == GPU_ELEM_MUL || p.op >= GPU_ELEM_GLU) b = F32(p.b).v[t * p.b_stride + h * p.b_head + (p.b_one != 0 ? 0 : i)];
    precise float y;
    switch (p.op) {
    case GPU_ELEM_ADD: y = a + b; break;
    case GPU_ELEM_MUL: y = a * b; break;
    case GPU_ELEM_SCALE: y = a * p.c0; break;
    case GPU_ELEM_SIGMOID: y = m_sigmoid(a); break;
    case GPU_ELEM_SILU: y = a / (1.0 + m_exp(-a)); break;
    case GPU_ELEM_SOFTCAP: y = p.c0 * m_tanh(a / p.c0); break;
    case GPU_ELEM_COPY: case GPU_ELEM_PICK: y = a; break;
    default: y = glu(p.op - GPU_ELEM_GLU, a, b); break;
    }
    F32(p.y).v[t * p.y_stride + h * p.y_head + i] = y;
}
