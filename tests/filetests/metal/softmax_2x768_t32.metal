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

[[kernel, max_total_threads_per_threadgroup(32)]]
void softmax(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int lane = int(lane_id);
    float exp[24];
    const int v11 = group0 * 768;
    float v13 = (-INFINITY);
    for (int v12 = 0; v12 < 6; ++v12) {
        const int v15 = v11 + (v12 * 128);
        const float v16 = x[v15 + (lane * 4)];
        const float v18 = x[(v15 + 1) + (lane * 4)];
        const float v20 = x[(v15 + 2) + (lane * 4)];
        const float v22 = x[(v15 + 3) + (lane * 4)];
        const float v26 = tw_max(v13, tw_max(tw_max(v16, v18), tw_max(v20, v22)));
        v13 = v26;
    }
    const float v28 = tw_simd_max(v13);
    #pragma clang loop unroll(full)
    for (int v29 = 0; v29 < 6; ++v29) {
        const int v32 = v11 + (v29 * 128);
        const float v33 = x[v32 + (lane * 4)];
        const float v35 = x[(v32 + 1) + (lane * 4)];
        const float v37 = x[(v32 + 2) + (lane * 4)];
        const float v39 = x[(v32 + 3) + (lane * 4)];
        exp[v29 * 4] = precise::exp(v33 - v28);
        exp[(v29 * 4) + 1] = precise::exp(v35 - v28);
        exp[(v29 * 4) + 2] = precise::exp(v37 - v28);
        exp[(v29 * 4) + 3] = precise::exp(v39 - v28);
    }
    float v49 = 0.0f;
    #pragma clang loop unroll(full)
    for (int v48 = 0; v48 < 6; ++v48) {
        const float v51 = exp[v48 * 4];
        const float v52 = exp[(v48 * 4) + 1];
        const float v53 = exp[(v48 * 4) + 2];
        const float v54 = exp[(v48 * 4) + 3];
        const float v58 = v49 + ((v51 + v52) + (v53 + v54));
        v49 = v58;
    }
    const float v60 = simd_sum(v49);
    #pragma clang loop unroll(full)
    for (int v61 = 0; v61 < 6; ++v61) {
        const float v64 = exp[v61 * 4];
        const float v65 = exp[(v61 * 4) + 1];
        const float v66 = exp[(v61 * 4) + 2];
        const float v67 = exp[(v61 * 4) + 3];
        const int v72 = v11 + (v61 * 128);
        y[v72 + (lane * 4)] = v64 / v60;
        y[(v72 + 1) + (lane * 4)] = v65 / v60;
        y[(v72 + 2) + (lane * 4)] = v66 / v60;
        y[(v72 + 3) + (lane * 4)] = v67 / v60;
    }
}
