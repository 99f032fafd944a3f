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

// simd_min passes over NaN; here a NaN of any lane is the result.
inline float tw_simd_min(float x) {
    const float extremum = simd_min(x);
    return simd_any(isnan(x)) ? NAN : extremum;
}

[[kernel, max_total_threads_per_threadgroup(64)]]
void construct_control(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    constant long& n [[buffer(2)]],
    constant float& s [[buffer(3)]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float tile[72];
    float own[3];
    float v9 = s;
    float v10 = 1.0f;
    float v11 = 1.0f;
    #pragma clang loop unroll_count(4)
    for (long v8 = 0; v8 < n; v8 += 2) {
        const float v12 = v9 + v10;
        const float n9 = v10;
        const float n11 = v9;
        v9 = n9;
        v10 = v12;
        v11 = n11;
    }
    const int v16 = subgroup * 32;
    const float v17 = x[v16 + lane];
    tile[(v16 + lane) + (((v16 + lane) / 32) * 4)] = tw_max(v17, v11);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v20 = tile[((32 - v16) + lane) + ((((32 - v16) + lane) / 32) * 4)];
    #pragma clang loop unroll(full)
    for (int v21 = 0; v21 < 3; ++v21) {
        own[v21] = v20;
    }
    const float v22 = own[2];
    float v26;
    if (subgroup < n) {
        const float v24 = v9 * v22;
        v26 = v24;
    } else {
        const float v25 = fmin(v10, v22);
        v26 = v25;
    }
    const float v27 = simd_broadcast(v26, ushort(31));
    const float v28 = simd_shuffle_xor(v27, ushort(1));
    const float v29 = tw_simd_min(v28);
    const float v30 = simd_product(v29);
    y[v16 + lane] = v30;
}
