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
    const int v8 = group0 * 768;
    float v10 = (-INFINITY);
    for (int v9 = 0; v9 < 6; ++v9) {
        const float4 p13 = *(device const float4*)(x + ((v8 + (v9 * 128)) + (lane * 4)));
        const float v20 = tw_max(v10, tw_max(tw_max(p13.x, p13.y), tw_max(p13.z, p13.w)));
        v10 = v20;
    }
    const float v22 = tw_simd_max(v10);
    #pragma clang loop unroll(full)
    for (int v23 = 0; v23 < 6; ++v23) {
        const float4 p27 = *(device const float4*)(x + ((v8 + (v23 * 128)) + (lane * 4)));
        exp[v23 * 4] = precise::exp(p27.x - v22);
        exp[(v23 * 4) + 1] = precise::exp(p27.y - v22);
        exp[(v23 * 4) + 2] = precise::exp(p27.z - v22);
        exp[(v23 * 4) + 3] = precise::exp(p27.w - v22);
    }
    float v40 = 0.0f;
    #pragma clang loop unroll(full)
    for (int v39 = 0; v39 < 6; ++v39) {
        const float v42 = exp[v39 * 4];
        const float v43 = exp[(v39 * 4) + 1];
        const float v44 = exp[(v39 * 4) + 2];
        const float v45 = exp[(v39 * 4) + 3];
        const float v49 = v40 + ((v42 + v43) + (v44 + v45));
        v40 = v49;
    }
    const float v51 = simd_sum(v40);
    #pragma clang loop unroll(full)
    for (int v52 = 0; v52 < 6; ++v52) {
        const float v55 = exp[v52 * 4];
        const float v56 = exp[(v52 * 4) + 1];
        const float v57 = exp[(v52 * 4) + 2];
        const float v58 = exp[(v52 * 4) + 3];
        *(device float4*)(y + ((v8 + (v52 * 128)) + (lane * 4))) = float4{v55 / v51, v56 / v51, v57 / v51, v58 / v51};
    }
}
