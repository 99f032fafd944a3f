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
    float exp[9];
    const int v17 = group0 * 769;
    const int v18 = (subgroup * 128) + v17;
    float v20 = (-INFINITY);
    for (int v19 = 0; v19 < 2; ++v19) {
        const int v22 = v18 + (v19 * 384);
        const float v23 = x[v22 + (lane * 4)];
        const float v25 = x[(v22 + 1) + (lane * 4)];
        const float v27 = x[(v22 + 2) + (lane * 4)];
        const float v29 = x[(v22 + 3) + (lane * 4)];
        const float v33 = tw_max(v20, tw_max(tw_max(v23, v25), tw_max(v27, v29)));
        v20 = v33;
    }
    const int v36 = lane + (subgroup * 32);
    const bool v37 = v36 == 0;
    const int v39 = (v36 * 4) + 768;
    float v42;
    if (v37) {
        const float v40 = x[v17 + v39];
        const float v41 = tw_max(v20, v40);
        v42 = v41;
    } else {
        v42 = v20;
    }
    const float v43 = tw_simd_max(v42);
    if (lane < 1) max_[subgroup] = v43;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v44 = (lane < 3) ? max_[lane] : (-INFINITY);
    const float v45 = tw_simd_max(v44);
    #pragma clang loop unroll(full)
    for (int v46 = 0; v46 < 2; ++v46) {
        const int v49 = v18 + (v46 * 384);
        const float v50 = x[v49 + (lane * 4)];
        const float v52 = x[(v49 + 1) + (lane * 4)];
        const float v54 = x[(v49 + 2) + (lane * 4)];
        const float v56 = x[(v49 + 3) + (lane * 4)];
        exp[v46 * 4] = precise::exp(v50 - v45);
        exp[(v46 * 4) + 1] = precise::exp(v52 - v45);
        exp[(v46 * 4) + 2] = precise::exp(v54 - v45);
        exp[(v46 * 4) + 3] = precise::exp(v56 - v45);
    }
    if (v37) {
        const float v65 = x[v17 + v39];
        exp[8] = precise::exp(v65 - v45);
    }
    float v69 = 0.0f;
    #pragma clang loop unroll(full)
    for (int v68 = 0; v68 < 2; ++v68) {
        const float v71 = exp[v68 * 4];
        const float v72 = exp[(v68 * 4) + 1];
        const float v73 = exp[(v68 * 4) + 2];
        const float v74 = exp[(v68 * 4) + 3];
        const float v78 = v69 + ((v71 + v72) + (v73 + v74));
        v69 = v78;
    }
    float v82;
    if (v37) {
        const float v80 = exp[8];
        const float v81 = v69 + v80;
        v82 = v81;
    } else {
        v82 = v69;
    }
    const float v83 = simd_sum(v82);
    if (lane < 1) add[subgroup] = v83;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v84 = (lane < 3) ? add[lane] : 0.0f;
    const float v85 = simd_sum(v84);
    #pragma clang loop unroll(full)
    for (int v86 = 0; v86 < 2; ++v86) {
        const float v89 = exp[v86 * 4];
        const float v90 = exp[(v86 * 4) + 1];
        const float v91 = exp[(v86 * 4) + 2];
        const float v92 = exp[(v86 * 4) + 3];
        const int v97 = v18 + (v86 * 384);
        y[v97 + (lane * 4)] = v89 / v85;
        y[(v97 + 1) + (lane * 4)] = v90 / v85;
        y[(v97 + 2) + (lane * 4)] = v91 / v85;
        y[(v97 + 3) + (lane * 4)] = v92 / v85;
    }
    if (v37) {
        const float v101 = exp[8];
        y[v17 + v39] = v101 / v85;
    }
}
