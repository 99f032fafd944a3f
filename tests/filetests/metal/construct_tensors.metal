#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(32)]]
void construct_tensors(
    device float* a [[buffer(0)]],
    device float* w [[buffer(1)]],
    device float* y [[buffer(2)]],
    constant long& m [[buffer(3)]],
    constant long& n [[buffer(4)]],
    constant long& k [[buffer(5)]],
    constant float& s [[buffer(6)]])
{
    constexpr auto t0 = matmul2d_descriptor(16, 8, static_cast<int>(dynamic_extent), false, false, false, matmul2d_descriptor::mode::multiply);
    matmul2d<t0, execution_simdgroup> op0;
    auto f8 = op0.get_destination_cooperative_tensor<tensor<device float, dextents<int, 2>, tensor_inline>, tensor<device float, dextents<int, 2>, tensor_inline>, float>();
    {
        tensor<device float, dextents<int, 2>, tensor_inline> left(a, dextents<int, 2>(int(max(min(min(long(32), k), k), long(0))), int(max(min(m, long(16)), long(0)))), array<int, 2>{1, int(k)});
        tensor<device float, dextents<int, 2>, tensor_inline> right(w, dextents<int, 2>(int(max(min(n, long(8)), long(0))), int(max(min(min(long(32), k), k), long(0)))), array<int, 2>{1, int(n)});
        op0.run(left, right, f8);
    }
    auto f9 = op0.get_destination_cooperative_tensor<tensor<device float, dextents<int, 2>, tensor_inline>, tensor<device float, dextents<int, 2>, tensor_inline>, float>();
    for (ushort i = 0; i < f9.get_capacity(); ++i) {
        if (f9.is_valid_element(i)) f9[i] = f8[i] * s;
    }
    for (ushort i = 0; i < f9.get_capacity(); ++i) {
        if (!f9.is_valid_element(i)) continue;
        const auto at = f9.get_multidimensional_index(i);
        if (at[1] < int(max(min(m, long(16)), long(0))) && at[0] < int(max(min(n, long(8)), long(0)))) (y)[at[1] + at[0] * m] = f9[i];
    }
}
