#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(128)]]
void rmsnorm(
    device const half* x [[buffer(0)]],
    device const half* gamma [[buffer(1)]],
    device half* y [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float add[4];
    const int v16 = subgroup * 128;
    const int v17 = group0 * 1537;
    const int v18 = v16 + v17;
    float v20 = 0.0f;
    for (int v19 = 0; v19 < 3; ++v19) {
        const int v22 = v18 + (v19 * 512);
        const half v23 = x[v22 + (lane * 4)];
        const half v25 = x[(v22 + 1) + (lane * 4)];
        const half v27 = x[(v22 + 2) + (lane * 4)];
        const half v29 = x[(v22 + 3) + (lane * 4)];
        const float v30 = float(v23);
        const float v31 = float(v25);
        const float v32 = float(v27);
        const float v33 = float(v29);
        const float v37 = fma(v33, v33, fma(v32, v32, fma(v31, v31, fma(v30, v30, v20))));
        v20 = v37;
    }
    const int v40 = lane + (subgroup * 32);
    const bool v41 = v40 == 0;
    const int v43 = (v40 * 4) + 1536;
    float v47;
    if (v41) {
        const half v44 = x[v17 + v43];
        const float v45 = float(v44);
        const float v46 = fma(v45, v45, v20);
        v47 = v46;
    } else {
        v47 = v20;
    }
    const float v48 = simd_sum(v47);
    if (lane < 1) add[subgroup] = v48;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v49 = (lane < 4) ? add[lane] : 0.0f;
    const float v50 = simd_sum(v49);
    const float v53 = precise::sqrt((v50 / 1537.0f) + 1e-5f);
    for (int v54 = 0; v54 < 3; ++v54) {
        const int v55 = v54 * 512;
        const int v57 = v18 + v55;
        const half v58 = x[v57 + (lane * 4)];
        const int v59 = v57 + 1;
        const half v60 = x[v59 + (lane * 4)];
        const int v61 = v57 + 2;
        const half v62 = x[v61 + (lane * 4)];
        const int v63 = v57 + 3;
        const half v64 = x[v63 + (lane * 4)];
        const half4 p73 = *(device const half4*)(gamma + ((v16 + v55) + (lane * 4)));
        y[v57 + (lane * 4)] = half((float(v58) / v53) * float(p73.x));
        y[v59 + (lane * 4)] = half((float(v60) / v53) * float(p73.y));
        y[v61 + (lane * 4)] = half((float(v62) / v53) * float(p73.z));
        y[v63 + (lane * 4)] = half((float(v64) / v53) * float(p73.w));
    }
    if (v41) {
        const half v89 = x[v17 + v43];
        const half v92 = gamma[v43];
        y[v17 + v43] = half((float(v89) / v53) * float(v92));
    }
}
