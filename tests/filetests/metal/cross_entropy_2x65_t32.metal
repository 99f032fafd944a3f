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
    const bool v11 = lane < 16;
    const int v12 = group0 * 65;
    const int v13 = v12 + 1;
    const int v14 = v12 + 2;
    const int v15 = v12 + 3;
    const bool v16 = lane == 16;
    const int v17 = lane * 4;
    float v29;
    if (v11) {
        const float v18 = x[v12 + (lane * 4)];
        const float v19 = x[v13 + (lane * 4)];
        const float v20 = x[v14 + (lane * 4)];
        const float v21 = x[v15 + (lane * 4)];
        const float v25 = tw_max((-INFINITY), tw_max(tw_max(v18, v19), tw_max(v20, v21)));
        v29 = v25;
    } else {
        float v28;
        if (v16) {
            const float v26 = x[v12 + v17];
            const float v27 = tw_max((-INFINITY), v26);
            v28 = v27;
        } else {
            v28 = (-INFINITY);
        }
        v29 = v28;
    }
    const float v30 = tw_simd_max(v29);
    float v52;
    if (v11) {
        const float v31 = x[v12 + (lane * 4)];
        const float v32 = x[v13 + (lane * 4)];
        const float v33 = x[v14 + (lane * 4)];
        const float v34 = x[v15 + (lane * 4)];
        const float v45 = (precise::exp(v31 - v30) + precise::exp(v32 - v30)) + (precise::exp(v33 - v30) + precise::exp(v34 - v30));
        const float v46 = 0.0f + v45;
        v52 = v46;
    } else {
        float v51;
        if (v16) {
            const float v47 = x[v12 + v17];
            const float v50 = 0.0f + precise::exp(v47 - v30);
            v51 = v50;
        } else {
            v51 = 0.0f;
        }
        v52 = v51;
    }
    const float v53 = simd_sum(v52);
    const int v56 = label[group0];
    const float v62 = ((v56 < 65) && (v56 >= 0)) ? x[long(v12) + v56] : NAN;
    if (lane < 1) loss[group0] = (precise::log(v53) + v30) - v62;
}
