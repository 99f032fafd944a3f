#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(32)]]
void row_sum(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int lane = int(lane_id);
    const int v6 = group0 * 40;
    float v8 = 0.0f;
    for (int v7 = 0; v7 < 40; v7 += 32) {
        const int v9 = 40 - v7;
        const float v11 = (lane < v9) ? x[(v6 + v7) + lane] : 0.0f;
        const float v14 = v8 + ((lane < v9) ? v11 : 0.0f);
        v8 = v14;
    }
    const float v16 = simd_sum(v8);
    if (lane < 1) y[group0] = v16;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
