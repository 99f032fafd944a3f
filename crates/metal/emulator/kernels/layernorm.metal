#include <metal_stdlib>
using namespace metal;

// y = (x - mean) / sqrt(variance + 1e-5) by rows in half precision: one row per group of 64
// threads, elements kept in a private array, packs of four where the row is whole packs.
kernel void layernorm(
    device const half* x [[buffer(0)]],
    device half* y [[buffer(1)]],
    constant uint& columns [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float partial[2];
    threadgroup float shared_mean[1];
    float own[8];
    const uint thread_number = uint(simdgroup) * 32u + uint(lane);
    device const half* row = x + ulong(group) * ulong(columns);
    float sum = 0.0f;
    for (uint trip = 0u; trip < 2u; trip++) {
        const uint at = trip * 256u + thread_number * 4u;
        if (columns % 4u == 0u && at + 3u < columns) {
            const half4 pack = *reinterpret_cast<device const half4*>(row + at);
            own[trip * 4u] = float(pack.x);
            own[trip * 4u + 1u] = float(pack.y);
            own[trip * 4u + 2u] = float(pack.z);
            own[trip * 4u + 3u] = float(pack.w);
        } else {
            for (uint i = 0u; i < 4u; i++) {
                own[trip * 4u + i] = at + i < columns ? float(row[at + i]) : 0.0f;
            }
        }
        for (uint i = 0u; i < 4u; i++) {
            sum += own[trip * 4u + i];
        }
    }
    for (ushort mask = 16; mask > 0; mask /= 2) {
        sum += simd_shuffle_xor(sum, mask);
    }
    if (lane == 0) {
        partial[simdgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_number == 63u) {
        shared_mean[0] = (partial[0] + partial[1]) / float(columns);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float mean = shared_mean[0];
    float squares = 0.0f;
    for (uint i = 0u; i < 8u; i++) {
        const uint at = (i / 4u) * 256u + thread_number * 4u + i % 4u;
        if (at < columns) {
            squares = fma(own[i] - mean, own[i] - mean, squares);
        }
    }
    squares = simd_sum(squares);
    if (lane == 0) {
        partial[simdgroup] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float variance = (partial[0] + partial[1]) / float(columns);
    const float scale = 1.0f / sqrt(variance + 1e-5f);
    for (uint i = 0u; i < 8u; i++) {
        const uint at = (i / 4u) * 256u + thread_number * 4u + i % 4u;
        if (at < columns) {
            y[ulong(group) * ulong(columns) + at] = half((own[i] - mean) * scale);
        }
    }
}
