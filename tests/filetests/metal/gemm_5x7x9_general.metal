#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(32)]]
void gemm(
    device const float* a [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.y);
    const int group1 = int(group_id.x);
    const int lane = int(lane_id);
    threadgroup float acc[4096];
    threadgroup float mma[4096];
    for (int v12 = 0; v12 < 64; ++v12) {
        const int v13 = v12 * 64;
        for (int v14 = 0; v14 < 64; v14 += 32) {
            if (lane < (64 - v14)) acc[(v13 + v14) + lane] = 0.0f;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int v17 = 0; v17 < 1; ++v17) {
        for (int v19 = 0; v19 < 64; ++v19) {
            const int v20 = v19 * 64;
            const int v23 = v19 * 9;
            const bool v24 = v19 < 5;
            for (int v25 = 0; v25 < 64; v25 += 32) {
                const int v26 = 64 - v25;
                const int v27 = v20 + v25;
                const float v28 = (lane < v26) ? acc[v27 + lane] : 0.0f;
                const bool v32 = lane < min(v26, 7 - v25);
                float v34 = v28;
                for (int v33 = 0; v33 < 64; ++v33) {
                    const bool v37 = v33 < 9;
                    const float v39 = (v24 && v37) ? a[v23 + v33] : 0.0f;
                    const float v43 = (v32 && v37) ? b[(v25 + (v33 * 7)) + lane] : 0.0f;
                    const float v44 = fma(v39, v43, v34);
                    v34 = v44;
                }
                if (lane < v26) mma[v27 + lane] = v34;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int v46 = 0; v46 < 64; ++v46) {
            const int v47 = v46 * 64;
            for (int v48 = 0; v48 < 64; v48 += 32) {
                const int v49 = 64 - v48;
                const int v50 = v47 + v48;
                const float v51 = (lane < v49) ? mma[v50 + lane] : 0.0f;
                if (lane < v49) acc[v50 + lane] = v51;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int v52 = 0; v52 < 64; ++v52) {
        const int v53 = v52 * 64;
        const int v56 = v52 * 7;
        const bool v57 = v52 < 5;
        for (int v58 = 0; v58 < 64; v58 += 32) {
            const int v59 = 64 - v58;
            const float v61 = (lane < v59) ? acc[(v53 + v58) + lane] : 0.0f;
            if ((lane < min(v59, 7 - v58)) && v57) c[(v56 + v58) + lane] = v61;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
