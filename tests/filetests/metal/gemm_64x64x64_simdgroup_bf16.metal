#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(64)]]
void gemm(
    device const bfloat* a [[buffer(0)]],
    device const bfloat* b [[buffer(1)]],
    device bfloat* c [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.y);
    const int group1 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float d[1024];
    const int v18 = subgroup * 16;
    const int v19 = group0 * 32;
    const int v20 = group1 * 32;
    const int v23 = group0 * 2048;
    const int v24 = v18 + v20;
    simdgroup_float8x8 f26 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f27 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f28 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f29 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f30 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f31 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f32 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f33 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int v25 = 0; v25 < 64; v25 += 32) {
        const int v34 = v23 + v25;
        for (int v35 = 0; v35 < 32; v35 += 8) {
            const int v45 = v34 + v35;
            simdgroup_bfloat8x8 f46;
            simdgroup_load(f46, a + v45, 64);
            simdgroup_bfloat8x8 f48;
            simdgroup_load(f48, a + (v45 + 512), 64);
            simdgroup_bfloat8x8 f50;
            simdgroup_load(f50, a + (v45 + 1024), 64);
            simdgroup_bfloat8x8 f52;
            simdgroup_load(f52, a + (v45 + 1536), 64);
            const int v54 = v24 + ((v25 + v35) * 64);
            simdgroup_bfloat8x8 f55;
            simdgroup_load(f55, b + v54, 64);
            simdgroup_bfloat8x8 f57;
            simdgroup_load(f57, b + (v54 + 8), 64);
            simdgroup_multiply_accumulate(f26, f46, f55, f26);
            simdgroup_multiply_accumulate(f27, f46, f57, f27);
            simdgroup_multiply_accumulate(f28, f48, f55, f28);
            simdgroup_multiply_accumulate(f29, f48, f57, f29);
            simdgroup_multiply_accumulate(f30, f50, f55, f30);
            simdgroup_multiply_accumulate(f31, f50, f57, f31);
            simdgroup_multiply_accumulate(f32, f52, f55, f32);
            simdgroup_multiply_accumulate(f33, f52, f57, f33);
        }
    }
    simdgroup_store(f26, d + v18, 32);
    simdgroup_store(f27, d + (v18 + 8), 32);
    simdgroup_store(f28, d + (v18 + 256), 32);
    simdgroup_store(f29, d + (v18 + 264), 32);
    simdgroup_store(f30, d + (v18 + 512), 32);
    simdgroup_store(f31, d + (v18 + 520), 32);
    simdgroup_store(f32, d + (v18 + 768), 32);
    simdgroup_store(f33, d + (v18 + 776), 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const int v88 = subgroup * 32;
    for (int v89 = 0; v89 < 1024; v89 += 64) {
        const int v90 = v88 + v89;
        const int v91 = v90 / 32;
        const int v92 = v90 % 32;
        const float v95 = d[(v92 + (v91 * 32)) + lane];
        c[((v20 + v92) + ((v19 + v91) * 64)) + lane] = bfloat(v95);
    }
}
