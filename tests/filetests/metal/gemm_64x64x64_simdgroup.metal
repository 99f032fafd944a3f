#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(64)]]
void gemm(
    device const float* a [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]])
{
    const int group0 = int(group_id.y);
    const int group1 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int v19 = group0 * 2048;
    const int v20 = (subgroup * 16) + (group1 * 32);
    simdgroup_float8x8 f22 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f23 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f24 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f25 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f26 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f27 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f28 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f29 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int v21 = 0; v21 < 64; v21 += 32) {
        const int v30 = v19 + v21;
        for (int v31 = 0; v31 < 32; v31 += 8) {
            const int v41 = v30 + v31;
            simdgroup_float8x8 f42;
            simdgroup_load(f42, a + v41, 64);
            simdgroup_float8x8 f44;
            simdgroup_load(f44, a + (v41 + 512), 64);
            simdgroup_float8x8 f46;
            simdgroup_load(f46, a + (v41 + 1024), 64);
            simdgroup_float8x8 f48;
            simdgroup_load(f48, a + (v41 + 1536), 64);
            const int v50 = v20 + ((v21 + v31) * 64);
            simdgroup_float8x8 f51;
            simdgroup_load(f51, b + v50, 64);
            simdgroup_float8x8 f53;
            simdgroup_load(f53, b + (v50 + 8), 64);
            simdgroup_multiply_accumulate(f22, f42, f51, f22);
            simdgroup_multiply_accumulate(f23, f42, f53, f23);
            simdgroup_multiply_accumulate(f24, f44, f51, f24);
            simdgroup_multiply_accumulate(f25, f44, f53, f25);
            simdgroup_multiply_accumulate(f26, f46, f51, f26);
            simdgroup_multiply_accumulate(f27, f46, f53, f27);
            simdgroup_multiply_accumulate(f28, f48, f51, f28);
            simdgroup_multiply_accumulate(f29, f48, f53, f29);
        }
    }
    const int v78 = v20 + v19;
    simdgroup_store(f22, c + v78, 64);
    simdgroup_store(f23, c + (v78 + 8), 64);
    simdgroup_store(f24, c + (v78 + 512), 64);
    simdgroup_store(f25, c + (v78 + 520), 64);
    simdgroup_store(f26, c + (v78 + 1024), 64);
    simdgroup_store(f27, c + (v78 + 1032), 64);
    simdgroup_store(f28, c + (v78 + 1536), 64);
    simdgroup_store(f29, c + (v78 + 1544), 64);
}
