#include <metal_stdlib>
using namespace metal;

// y = softmax(x) by rows: one row per group of 128 threads, each with 4 consecutive elements per
// trip; partial results meet in threadgroup memory.
[[kernel, max_total_threads_per_threadgroup(128)]] void softmax(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    constant uint& columns [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float partial[4];
    const uint thread_number = simdgroup * 32u + lane;
    const ulong row = ulong(group.x) * ulong(columns);
    float largest = -INFINITY;
    for (uint at = thread_number * 4u; at < columns; at += 512u) {
        for (uint i = 0u; i < 4u; i++) {
            if (at + i < columns) {
                const float v = x[row + at + i];
                largest = isnan(v) || isnan(largest) ? NAN : max(largest, v);
            }
        }
    }
    const bool found = simd_any(isnan(largest));
    largest = simd_max(largest);
    if (found) {
        largest = NAN;
    }
    if (lane == 0u) {
        partial[simdgroup] = largest;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    largest = partial[0];
    for (uint i = 1u; i < 4u; i++) {
        const float v = partial[i];
        largest = isnan(v) || isnan(largest) ? NAN : max(largest, v);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (uint at = thread_number * 4u; at < columns; at += 512u) {
        for (uint i = 0u; i < 4u; i++) {
            if (at + i < columns) {
                sum += precise::exp(x[row + at + i] - largest);
            }
        }
    }
    sum = simd_sum(sum);
    if (lane == 0u) {
        partial[simdgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = partial[0] + partial[1] + partial[2] + partial[3];
    for (uint at = thread_number * 4u; at < columns; at += 512u) {
        for (uint i = 0u; i < 4u; i++) {
            if (at + i < columns) {
                y[row + at + i] = precise::exp(x[row + at + i] - largest) / sum;
            }
        }
    }
}
