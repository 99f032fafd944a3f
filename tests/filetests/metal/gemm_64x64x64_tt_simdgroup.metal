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
    const int v18 = group0 * 32;
    const int v21 = (subgroup * 16) + (group1 * 32);
    const int v22 = v21 * 64;
    simdgroup_float8x8 f24 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f25 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f26 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f27 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f28 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f29 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f30 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_float8x8 f31 = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int v23 = 0; v23 < 64; v23 += 32) {
        const int v32 = v22 + v23;
        for (int v33 = 0; v33 < 32; v33 += 8) {
            const int v44 = v18 + ((v23 + v33) * 64);
            simdgroup_float8x8 f45;
            simdgroup_load(f45, a + v44, 64, ulong2{0, 0}, true);
            simdgroup_float8x8 f47;
            simdgroup_load(f47, a + (v44 + 8), 64, ulong2{0, 0}, true);
            simdgroup_float8x8 f49;
            simdgroup_load(f49, a + (v44 + 16), 64, ulong2{0, 0}, true);
            simdgroup_float8x8 f51;
            simdgroup_load(f51, a + (v44 + 24), 64, ulong2{0, 0}, true);
            const int v52 = v32 + v33;
            simdgroup_float8x8 f53;
            simdgroup_load(f53, b + v52, 64, ulong2{0, 0}, true);
            simdgroup_float8x8 f55;
            simdgroup_load(f55, b + (v52 + 512), 64, ulong2{0, 0}, true);
            simdgroup_multiply_accumulate(f24, f45, f53, f24);
            simdgroup_multiply_accumulate(f25, f45, f55, f25);
            simdgroup_multiply_accumulate(f26, f47, f53, f26);
            simdgroup_multiply_accumulate(f27, f47, f55, f27);
            simdgroup_multiply_accumulate(f28, f49, f53, f28);
            simdgroup_multiply_accumulate(f29, f49, f55, f29);
            simdgroup_multiply_accumulate(f30, f51, f53, f30);
            simdgroup_multiply_accumulate(f31, f51, f55, f31);
        }
    }
    const int v81 = v21 + (group0 * 2048);
    simdgroup_store(f24, c + v81, 64);
    simdgroup_store(f25, c + (v81 + 8), 64);
    simdgroup_store(f26, c + (v81 + 512), 64);
    simdgroup_store(f27, c + (v81 + 520), 64);
    simdgroup_store(f28, c + (v81 + 1024), 64);
    simdgroup_store(f29, c + (v81 + 1032), 64);
    simdgroup_store(f30, c + (v81 + 1536), 64);
    simdgroup_store(f31, c + (v81 + 1544), 64);
}
