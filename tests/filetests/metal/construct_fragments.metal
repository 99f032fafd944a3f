#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(32)]]
void construct_fragments(
    device const half* a [[buffer(0)]],
    device const half* w [[buffer(1)]],
    device const float* r [[buffer(2)]],
    device half* y [[buffer(3)]],
    constant float& s [[buffer(4)]])
{
    simdgroup_float8x8 f7 = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);
    for (int v6 = 0; v6 < 16; v6 += 8) {
        simdgroup_half8x8 f8;
        simdgroup_load(f8, a + v6, 16);
        simdgroup_half8x8 f10;
        simdgroup_load(f10, w + (v6 * 8), 8);
        simdgroup_multiply_accumulate(f7, f8, f10, f7);
    }
    simdgroup_float8x8 f13;
    simdgroup_load(f13, r, 8);
    simdgroup_float8x8 f14;
    for (ushort i = 0; i < 2; ++i) {
        f14.thread_elements()[i] = f7.thread_elements()[i] * s;
    }
    simdgroup_float8x8 f15;
    for (ushort i = 0; i < 2; ++i) {
        f15.thread_elements()[i] = f14.thread_elements()[i] + f13.thread_elements()[i];
    }
    simdgroup_half8x8 f16;
    for (ushort i = 0; i < 2; ++i) {
        f16.thread_elements()[i] = half(f15.thread_elements()[i]);
    }
    simdgroup_store(f16, y, 8, ulong2{0, 0}, true);
}
