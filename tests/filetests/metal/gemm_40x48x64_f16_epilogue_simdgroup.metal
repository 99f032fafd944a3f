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

[[kernel, max_total_threads_per_threadgroup(64)]]
void gemm(
    device const half* a [[buffer(0)]],
    device const half* b [[buffer(1)]],
    device const half* bias [[buffer(2)]],
    device const half* residual [[buffer(3)]],
    device half* c [[buffer(4)]],
    constant float& alpha [[buffer(5)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.y);
    const int group1 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup half a_2[1024];
    threadgroup half b_2[1024];
    threadgroup float d[1024];
    const int v23 = subgroup * 16;
    const int v24 = group0 * 32;
    const int v25 = group1 * 32;
    const int v28 = subgroup * 32;
    simdgroup_float8x8 f30 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f31 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f32 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f33 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f34 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f35 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f36 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f37 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int v29 = 0; v29 < 64; v29 += 32) {
        for (int v38 = 0; v38 < 1024; v38 += 64) {
            const int v39 = v28 + v38;
            const int v40 = v39 / 32;
            const int v41 = v39 % 32;
            const int v42 = v24 + v40;
            const half v47 = (v42 < 40) ? a[((v29 + v41) + (v42 * 64)) + lane] : half(0.0f);
            a_2[(v41 + (v40 * 32)) + lane] = v47;
        }
        for (int v50 = 0; v50 < 1024; v50 += 64) {
            const int v51 = v28 + v50;
            const int v52 = v51 / 32;
            const int v53 = v51 % 32;
            const int v55 = v25 + v53;
            const half v59 = (lane < (48 - v55)) ? b[(v55 + ((v29 + v52) * 48)) + lane] : half(0.0f);
            b_2[(v53 + (v52 * 32)) + lane] = v59;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int v62 = 0; v62 < 32; v62 += 8) {
            simdgroup_half8x8 f71;
            simdgroup_load(f71, a_2 + v62, 32);
            simdgroup_half8x8 f73;
            simdgroup_load(f73, a_2 + (v62 + 256), 32);
            simdgroup_half8x8 f75;
            simdgroup_load(f75, a_2 + (v62 + 512), 32);
            simdgroup_half8x8 f77;
            simdgroup_load(f77, a_2 + (v62 + 768), 32);
            const int v79 = v23 + (v62 * 32);
            simdgroup_half8x8 f80;
            simdgroup_load(f80, b_2 + v79, 32);
            simdgroup_half8x8 f82;
            simdgroup_load(f82, b_2 + (v79 + 8), 32);
            simdgroup_multiply_accumulate(f30, f71, f80, f30);
            simdgroup_multiply_accumulate(f31, f71, f82, f31);
            simdgroup_multiply_accumulate(f32, f73, f80, f32);
            simdgroup_multiply_accumulate(f33, f73, f82, f33);
            simdgroup_multiply_accumulate(f34, f75, f80, f34);
            simdgroup_multiply_accumulate(f35, f75, f82, f35);
            simdgroup_multiply_accumulate(f36, f77, f80, f36);
            simdgroup_multiply_accumulate(f37, f77, f82, f37);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    simdgroup_store(f30, d + v23, 32);
    simdgroup_store(f31, d + (v23 + 8), 32);
    simdgroup_store(f32, d + (v23 + 256), 32);
    simdgroup_store(f33, d + (v23 + 264), 32);
    simdgroup_store(f34, d + (v23 + 512), 32);
    simdgroup_store(f35, d + (v23 + 520), 32);
    simdgroup_store(f36, d + (v23 + 768), 32);
    simdgroup_store(f37, d + (v23 + 776), 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int v113 = 0; v113 < 1024; v113 += 64) {
        const int v114 = v28 + v113;
        const int v115 = v114 / 32;
        const int v116 = v114 % 32;
        const float v119 = d[(v116 + (v115 * 32)) + lane];
        const int v121 = v25 + v116;
        const int v122 = 48 - v121;
        const half v123 = (lane < v122) ? bias[v121 + lane] : half(0.0f);
        const float v125 = (alpha * v119) + float(v123);
        const int v131 = v24 + v115;
        const int v133 = v121 + (v131 * 48);
        const bool v136 = (lane < v122) && (v131 < 40);
        const half v137 = v136 ? residual[v133 + lane] : half(0.0f);
        const float v139 = ((0.5f * v125) * (1.0f + tw_erf(v125 * 0.70710677f))) + float(v137);
        if (v136) c[v133 + lane] = half(v139);
    }
}
