#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(64)]]
void gemm(
    device float* a [[buffer(0)]],
    device float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]])
{
    const int group0 = int(group_id.y);
    const int group1 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    constexpr auto t0 = matmul2d_descriptor(16, 32, static_cast<int>(dynamic_extent), true, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<t0, execution_simdgroup> op0;
    const int v13 = (subgroup * 16) + (group0 * 32);
    const int v14 = group1 * 2048;
    auto f16 = op0.get_destination_cooperative_tensor<tensor<device float, dextents<int, 2>, tensor_inline>, tensor<device float, dextents<int, 2>, tensor_inline>, float>();
    for (ushort i = 0; i < f16.get_capacity(); ++i) {
        if (f16.is_valid_element(i)) f16[i] = 0.0f;
    }
    for (int v15 = 0; v15 < 64; v15 += 32) {
        {
            tensor<device float, dextents<int, 2>, tensor_inline> left(a + (v13 + (v15 * 64)), dextents<int, 2>(16, 32), array<int, 2>{1, 64});
            tensor<device float, dextents<int, 2>, tensor_inline> right(b + (v14 + v15), dextents<int, 2>(32, 32), array<int, 2>{1, 64});
            op0.run(left, right, f16);
        }
    }
    {
        tensor<device float, dextents<int, 2>, tensor_inline> place(c + ((group1 * 32) + (v13 * 64)), dextents<int, 2>(32, 16), array<int, 2>{1, 64});
        f16.store(place);
    }
}
