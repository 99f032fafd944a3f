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
void cross_entropy(
    device const float* x [[buffer(0)]],
    device const int* label [[buffer(1)]],
    device float* loss [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int lane = int(lane_id);
    const int v12 = group0 * 65;
    const float v13 = (lane < 17) ? x[v12 + (lane * 4)] : 0.0f;
    const int v14 = v12 + 1;
    const float v15 = (lane < 16) ? x[v14 + (lane * 4)] : 0.0f;
    const int v16 = v12 + 2;
    const float v17 = (lane < 16) ? x[v16 + (lane * 4)] : 0.0f;
    const int v18 = v12 + 3;
    const float v19 = (lane < 16) ? x[v18 + (lane * 4)] : 0.0f;
    const int v21 = lane * 4;
    const bool v22 = v21 < 65;
    const float v23 = v22 ? tw_max((-INFINITY), v13) : (-INFINITY);
    const bool v26 = (v21 + 1) < 65;
    const float v27 = v26 ? tw_max(v23, v15) : v23;
    const bool v30 = (v21 + 2) < 65;
    const float v31 = v30 ? tw_max(v27, v17) : v27;
    const bool v34 = (v21 + 3) < 65;
    const float v36 = tw_simd_max(v34 ? tw_max(v31, v19) : v31);
    const float v37 = (lane < 17) ? x[v12 + (lane * 4)] : 0.0f;
    const float v38 = (lane < 16) ? x[v14 + (lane * 4)] : 0.0f;
    const float v39 = (lane < 16) ? x[v16 + (lane * 4)] : 0.0f;
    const float v40 = (lane < 16) ? x[v18 + (lane * 4)] : 0.0f;
    const float v50 = v22 ? (0.0f + precise::exp(v37 - v36)) : 0.0f;
    const float v52 = v26 ? (v50 + precise::exp(v38 - v36)) : v50;
    const float v54 = v30 ? (v52 + precise::exp(v39 - v36)) : v52;
    const float v57 = simd_sum(v34 ? (v54 + precise::exp(v40 - v36)) : v54);
    const int v60 = label[group0];
    const float v66 = ((v60 < 65) && (v60 >= 0)) ? x[long(v12) + v60] : NAN;
    if (lane < 1) loss[group0] = (precise::log(v57) + v36) - v66;
}
