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
    constexpr auto t0 = matmul2d_descriptor(32, 32, static_cast<int>(dynamic_extent), false, false, false, matmul2d_descriptor::mode::multiply);
    matmul2d<t0, execution_simdgroup> op0;
    const int v12 = subgroup * 32;
    auto f13 = op0.get_destination_cooperative_tensor<tensor<device float, dextents<int, 2>, tensor_inline>, tensor<device float, dextents<int, 2>, tensor_inline>, float>();
    {
        tensor<device float, dextents<int, 2>, tensor_inline> left(a + (group0 * 1024), dextents<int, 2>(32, 32), array<int, 2>{1, 32});
        tensor<device float, dextents<int, 2>, tensor_inline> right(b + v12, dextents<int, 2>(32, 32), array<int, 2>{1, 64});
        op0.run(left, right, f13);
    }
    {
        tensor<device float, dextents<int, 2>, tensor_inline> place(c + (v12 + (group0 * 2048)), dextents<int, 2>(32, 32), array<int, 2>{1, 64});
        f13.store(place);
    }
}
