#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(128)]]
void gemm(
    device const float* a [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.y);
    const int group1 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float a_2[1024];
    threadgroup float b_2[1024];
    threadgroup float d[1024];
    const int v19 = (subgroup % 2) * 16;
    const int v20 = group0 * 32;
    const int v21 = group1 * 32;
    const int v23 = subgroup * 32;
    const int v24 = (subgroup / 2) * 512;
    simdgroup_float8x8 f26 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f27 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f28 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f29 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int v25 = 0; v25 < 61; v25 += 32) {
        for (int v30 = 0; v30 < 1024; v30 += 128) {
            const int v31 = v23 + v30;
            const int v32 = v31 / 32;
            const int v33 = v31 % 32;
            const int v34 = v20 + v32;
            const int v35 = v25 + v33;
            const float v42 = ((lane < (61 - v35)) && (v34 < 33)) ? a[(v35 + (v34 * 61)) + lane] : 0.0f;
            a_2[(v33 + (v32 * 32)) + lane] = v42;
        }
        for (int v45 = 0; v45 < 1024; v45 += 128) {
            const int v46 = v23 + v45;
            const int v47 = v46 / 32;
            const int v48 = v46 % 32;
            const int v49 = v25 + v47;
            const int v50 = v21 + v48;
            const float v57 = ((lane < (65 - v50)) && (v49 < 61)) ? b[(v50 + (v49 * 65)) + lane] : 0.0f;
            b_2[(v48 + (v47 * 32)) + lane] = v57;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int v60 = 0; v60 < 32; v60 += 8) {
            const int v65 = v24 + v60;
            simdgroup_float8x8 f66;
            simdgroup_load(f66, a_2 + v65, 32);
            simdgroup_float8x8 f68;
            simdgroup_load(f68, a_2 + (v65 + 256), 32);
            const int v70 = v19 + (v60 * 32);
            simdgroup_float8x8 f71;
            simdgroup_load(f71, b_2 + v70, 32);
            simdgroup_float8x8 f73;
            simdgroup_load(f73, b_2 + (v70 + 8), 32);
            simdgroup_multiply_accumulate(f26, f66, f71, f26);
            simdgroup_multiply_accumulate(f27, f66, f73, f27);
            simdgroup_multiply_accumulate(f28, f68, f71, f28);
            simdgroup_multiply_accumulate(f29, f68, f73, f29);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const int v86 = v19 + v24;
    simdgroup_store(f26, d + v86, 32);
    simdgroup_store(f27, d + (v86 + 8), 32);
    simdgroup_store(f28, d + (v86 + 256), 32);
    simdgroup_store(f29, d + (v86 + 264), 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int v90 = 0; v90 < 1024; v90 += 128) {
        const int v91 = v23 + v90;
        const int v92 = v91 / 32;
        const int v93 = v91 % 32;
        const float v96 = d[(v93 + (v92 * 32)) + lane];
        const int v97 = v20 + v92;
        const int v98 = v21 + v93;
        if ((lane < (65 - v98)) && (v97 < 33)) c[(v98 + (v97 * 65)) + lane] = v96;
    }
}
