#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

// The series below 1, else 1 - t exp(-x^2 + P(t)) with t = 1 / (1 + |x| / 2).
inline float tw_erf(float x) {
    const float square = x * x;
    float series = 1.4807193e-8f;
    series = fma(series, square, (-1.6365844e-7f));
    series = fma(series, square, 1.6462114e-6f);
    series = fma(series, square, (-1.492565e-5f));
    series = fma(series, square, 0.000120553326f);
    series = fma(series, square, (-0.0008548327f));
    series = fma(series, square, 0.005223978f);
    series = fma(series, square, (-0.026866172f));
    series = fma(series, square, 0.11283792f);
    series = fma(series, square, (-0.37612638f));
    series = fma(series, square, 1.1283792f);
    const float t = 1.0f / fma(fabs(x), 0.5f, 1.0f);
    float power = 0.17087276f;
    power = fma(power, t, (-0.82215226f));
    power = fma(power, t, 1.4885159f);
    power = fma(power, t, (-1.135204f));
    power = fma(power, t, 0.27886808f);
    power = fma(power, t, (-0.18628806f));
    power = fma(power, t, 0.09678418f);
    power = fma(power, t, 0.37409195f);
    power = fma(power, t, 1.0000237f);
    power = fma(power, t, (-1.2655122f));
    const float large = 1.0f - t * precise::exp(power - square);
    return fabs(x) < 1.0f ? series * x : copysign(large, x);
}

[[kernel, max_total_threads_per_threadgroup(32)]]
void gelu(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int lane = int(lane_id);
    const int v6 = group0 * 5;
    for (int v7 = 0; v7 < 5; v7 += 32) {
        const int v8 = 5 - v7;
        const int v9 = v6 + v7;
        const float v10 = (lane < v8) ? x[v9 + lane] : 0.0f;
        if (lane < v8) y[v9 + lane] = (0.5f * v10) * (1.0f + tw_erf(v10 * 0.70710677f));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
