#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

// NaN if either is.
inline float tw_max(float a, float b) {
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

// simd_max passes over NaN; here a NaN of any lane is the result.
inline float tw_simd_max(float x) {
    const float extremum = simd_max(x);
    return simd_any(isnan(x)) ? NAN : extremum;
}

[[kernel, max_total_threads_per_threadgroup(96)]]
void softmax(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float max_[3];
    threadgroup float add[3];
    float x_2[9];
    float exp[9];
    const int v17 = group0 * 769;
    const int v18 = (subgroup * 128) + v17;
    #pragma clang loop unroll(full)
    for (int v19 = 0; v19 < 2; ++v19) {
        const int v22 = v18 + (v19 * 384);
        const float v23 = x[v22 + (lane * 4)];
        const float v25 = x[(v22 + 1) + (lane * 4)];
        const float v27 = x[(v22 + 2) + (lane * 4)];
        const float v29 = x[(v22 + 3) + (lane * 4)];
        x_2[v19 * 4] = v23;
        x_2[(v19 * 4) + 1] = v25;
        x_2[(v19 * 4) + 2] = v27;
        x_2[(v19 * 4) + 3] = v29;
    }
    const int v31 = lane + (subgroup * 32);
    const bool v32 = v31 == 0;
    const int v34 = (v31 * 4) + 768;
    if (v32) {
        const float v35 = x[v17 + v34];
        x_2[8] = v35;
    }
    float v37 = (-INFINITY);
    #pragma clang loop unroll(full)
    for (int v36 = 0; v36 < 2; ++v36) {
        const float v39 = x_2[v36 * 4];
        const float v40 = x_2[(v36 * 4) + 1];
        const float v41 = x_2[(v36 * 4) + 2];
        const float v42 = x_2[(v36 * 4) + 3];
        const float v46 = tw_max(v37, tw_max(tw_max(v39, v40), tw_max(v41, v42)));
        v37 = v46;
    }
    float v50;
    if (v32) {
        const float v48 = x_2[8];
        const float v49 = tw_max(v37, v48);
        v50 = v49;
    } else {
        v50 = v37;
    }
    const float v51 = tw_simd_max(v50);
    if (lane < 1) max_[subgroup] = v51;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v52 = (lane < 3) ? max_[lane] : (-INFINITY);
    const float v53 = tw_simd_max(v52);
    #pragma clang loop unroll(full)
    for (int v54 = 0; v54 < 2; ++v54) {
        const int v55 = v54 * 4;
        const float v56 = x_2[v55];
        const float v57 = x_2[v55 + 1];
        const float v58 = x_2[v55 + 2];
        const float v59 = x_2[v55 + 3];
        exp[v55] = precise::exp(v56 - v53);
        exp[v55 + 1] = precise::exp(v57 - v53);
        exp[v55 + 2] = precise::exp(v58 - v53);
        exp[v55 + 3] = precise::exp(v59 - v53);
    }
    if (v32) {
        const float v68 = x_2[8];
        exp[8] = precise::exp(v68 - v53);
    }
    float v72 = 0.0f;
    #pragma clang loop unroll(full)
    for (int v71 = 0; v71 < 2; ++v71) {
        const float v74 = exp[v71 * 4];
        const float v75 = exp[(v71 * 4) + 1];
        const float v76 = exp[(v71 * 4) + 2];
        const float v77 = exp[(v71 * 4) + 3];
        const float v81 = v72 + ((v74 + v75) + (v76 + v77));
        v72 = v81;
    }
    float v85;
    if (v32) {
        const float v83 = exp[8];
        const float v84 = v72 + v83;
        v85 = v84;
    } else {
        v85 = v72;
    }
    const float v86 = simd_sum(v85);
    if (lane < 1) add[subgroup] = v86;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v87 = (lane < 3) ? add[lane] : 0.0f;
    const float v88 = simd_sum(v87);
    #pragma clang loop unroll(full)
    for (int v89 = 0; v89 < 2; ++v89) {
        const float v92 = exp[v89 * 4];
        const float v93 = exp[(v89 * 4) + 1];
        const float v94 = exp[(v89 * 4) + 2];
        const float v95 = exp[(v89 * 4) + 3];
        const int v100 = v18 + (v89 * 384);
        y[v100 + (lane * 4)] = v92 / v88;
        y[(v100 + 1) + (lane * 4)] = v93 / v88;
        y[(v100 + 2) + (lane * 4)] = v94 / v88;
        y[(v100 + 3) + (lane * 4)] = v95 / v88;
    }
    if (v32) {
        const float v104 = exp[8];
        y[v17 + v34] = v104 / v88;
    }
}
