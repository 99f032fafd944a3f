#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct Sizes {
    uint m, n, k;
};

// c = a·b with blocks of 32 by 32 by 16: four simdgroups of 2 by 2 fragments, operands staged in
// threadgroup memory with zeros beyond the edges, results through it, too.
[[kernel, max_total_threads_per_threadgroup(128)]] void gemm_simdgroup(
    device const half* a [[buffer(0)]],
    device const half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Sizes& sizes [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup half left[32 * 16];
    threadgroup half right[16 * 32];
    threadgroup float result[32 * 32];
    const uint first_row = group.y * 32u;
    const uint first_column = group.x * 32u;
    const uint row = simdgroup / 2u * 16u;
    const uint column = simdgroup % 2u * 16u;
    simdgroup_float8x8 sums[2][2];
    for (uint i = 0u; i < 2u; i++) {
        for (uint j = 0u; j < 2u; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    for (uint k = 0u; k < sizes.k; k += 16u) {
        for (uint i = thread_number; i < 512u; i += 128u) {
            const uint r = first_row + i / 16u;
            const uint d = k + i % 16u;
            left[i] = r < sizes.m && d < sizes.k ? a[ulong(r) * ulong(sizes.k) + d] : half(0.0f);
        }
        for (uint i = thread_number; i < 512u; i += 128u) {
            const uint d = k + i / 32u;
            const uint s = first_column + i % 32u;
            right[i] = d < sizes.k && s < sizes.n ? b[ulong(d) * ulong(sizes.n) + s] : half(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint d = 0u; d < 16u; d += 8u) {
            simdgroup_half8x8 l[2];
            simdgroup_half8x8 r[2];
            for (uint i = 0u; i < 2u; i++) {
                simdgroup_load(l[i], left + (row + i * 8u) * 16u + d, 16);
                simdgroup_load(r[i], right + d * 32u + column + i * 8u, 32);
            }
            for (uint i = 0u; i < 2u; i++) {
                for (uint j = 0u; j < 2u; j++) {
                    simdgroup_multiply_accumulate(sums[i][j], l[i], r[j], sums[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0u; i < 2u; i++) {
        for (uint j = 0u; j < 2u; j++) {
            simdgroup_store(sums[i][j], result + (row + i * 8u) * 32u + column + j * 8u, 32);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_number; i < 1024u; i += 128u) {
        const uint r = first_row + i / 32u;
        const uint s = first_column + i % 32u;
        if (r < sizes.m && s < sizes.n) {
            c[ulong(r) * ulong(sizes.n) + s] = result[i];
        }
    }
}
