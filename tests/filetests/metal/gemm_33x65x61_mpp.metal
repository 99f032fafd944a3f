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
    device const float* a [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.y);
    const int group1 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    constexpr auto t0 = matmul2d_descriptor(16, 32, static_cast<int>(dynamic_extent), false, false, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<t0, execution_simdgroup> op0;
    threadgroup float a_2[1024];
    threadgroup float b_2[1024];
    threadgroup float d[1024];
    const int v12 = group0 * 32;
    const int v13 = group1 * 32;
    const int v15 = subgroup * 32;
    const int v16 = subgroup * 512;
    auto f18 = op0.get_destination_cooperative_tensor<tensor<threadgroup float, dextents<int, 2>, tensor_inline>, tensor<threadgroup float, dextents<int, 2>, tensor_inline>, float>();
    for (ushort i = 0; i < f18.get_capacity(); ++i) {
        if (f18.is_valid_element(i)) f18[i] = 0.0f;
    }
    for (int v17 = 0; v17 < 61; v17 += 32) {
        for (int v19 = 0; v19 < 1024; v19 += 64) {
            const int v20 = v15 + v19;
            const int v21 = v20 / 32;
            const int v22 = v20 % 32;
            const int v23 = v12 + v21;
            const int v24 = v17 + v22;
            const float v31 = ((lane < (61 - v24)) && (v23 < 33)) ? a[(v24 + (v23 * 61)) + lane] : 0.0f;
            a_2[(v22 + (v21 * 32)) + lane] = v31;
        }
        for (int v34 = 0; v34 < 1024; v34 += 64) {
            const int v35 = v15 + v34;
            const int v36 = v35 / 32;
            const int v37 = v35 % 32;
            const int v38 = v17 + v36;
            const int v39 = v13 + v37;
            const float v46 = ((lane < (65 - v39)) && (v38 < 61)) ? b[(v39 + (v38 * 65)) + lane] : 0.0f;
            b_2[(v37 + (v36 * 32)) + lane] = v46;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        {
            tensor<threadgroup float, dextents<int, 2>, tensor_inline> left(a_2 + v16, dextents<int, 2>(32, 16), array<int, 2>{1, 32});
            tensor<threadgroup float, dextents<int, 2>, tensor_inline> right(b_2, dextents<int, 2>(32, 32), array<int, 2>{1, 32});
            op0.run(left, right, f18);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    {
        tensor<threadgroup float, dextents<int, 2>, tensor_inline> place(d + v16, dextents<int, 2>(32, 16), array<int, 2>{1, 32});
        f18.store(place);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int v51 = 0; v51 < 1024; v51 += 64) {
        const int v52 = v15 + v51;
        const int v53 = v52 / 32;
        const int v54 = v52 % 32;
        const float v57 = d[(v54 + (v53 * 32)) + lane];
        const int v58 = v12 + v53;
        const int v59 = v13 + v54;
        if ((lane < (65 - v59)) && (v58 < 33)) c[(v59 + (v58 * 65)) + lane] = v57;
    }
}
