#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

// The series below 1, else 1 - t exp(-x^2 + P(t)) with t = 1 / (1 + |x| / 2).
inline float tw_erf(float x) {
    const float square = x * x;
    float series = 1.4807193e-8f;
    series = fma(series, square, (-1.6365844e-7f));
    series = fma(series, square, 1.6462114e-6f);
    series = fma(series, square, (-1.492565e-5f));
    series = fma(series, square, 0.000120553326f);
    series = fma(series, square, (-0.0008548327f));
    series = fma(series, square, 0.005223978f);
    series = fma(series, square, (-0.026866172f));
    series = fma(series, square, 0.11283792f);
    series = fma(series, square, (-0.37612638f));
    series = fma(series, square, 1.1283792f);
    const float t = 1.0f / fma(fabs(x), 0.5f, 1.0f);
    float power = 0.17087276f;
    power = fma(power, t, (-0.82215226f));
    power = fma(power, t, 1.4885159f);
    power = fma(power, t, (-1.135204f));
    power = fma(power, t, 0.27886808f);
    power = fma(power, t, (-0.18628806f));
    power = fma(power, t, 0.09678418f);
    power = fma(power, t, 0.37409195f);
    power = fma(power, t, 1.0000237f);
    power = fma(power, t, (-1.2655122f));
    const float large = 1.0f - t * precise::exp(power - square);
    return fabs(x) < 1.0f ? series * x : copysign(large, x);
}

[[kernel, max_total_threads_per_threadgroup(64)]]
void gemm(
    device const half* a [[buffer(0)]],
    device const half* b [[buffer(1)]],
    device const half* bias [[buffer(2)]],
    device const half* residual [[buffer(3)]],
    device half* c [[buffer(4)]],
    constant float& alpha [[buffer(5)]],
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
    threadgroup half a_2[1024];
    threadgroup half b_2[1024];
    threadgroup float d[1024];
    const int v16 = group0 * 32;
    const int v17 = group1 * 32;
    const int v19 = subgroup * 32;
    const int v20 = subgroup * 512;
    auto f22 = op0.get_destination_cooperative_tensor<tensor<threadgroup half, dextents<int, 2>, tensor_inline>, tensor<threadgroup half, dextents<int, 2>, tensor_inline>, float>();
    for (ushort i = 0; i < f22.get_capacity(); ++i) {
        if (f22.is_valid_element(i)) f22[i] = 0.0f;
    }
    for (int v21 = 0; v21 < 64; v21 += 32) {
        for (int v23 = 0; v23 < 1024; v23 += 64) {
            const int v24 = v19 + v23;
            const int v25 = v24 / 32;
            const int v26 = v24 % 32;
            const int v27 = v16 + v25;
            const half v32 = (v27 < 40) ? a[((v21 + v26) + (v27 * 64)) + lane] : half(0.0f);
            a_2[(v26 + (v25 * 32)) + lane] = v32;
        }
        for (int v35 = 0; v35 < 1024; v35 += 64) {
            const int v36 = v19 + v35;
            const int v37 = v36 / 32;
            const int v38 = v36 % 32;
            const int v40 = v17 + v38;
            const half v44 = (lane < (48 - v40)) ? b[(v40 + ((v21 + v37) * 48)) + lane] : half(0.0f);
            b_2[(v38 + (v37 * 32)) + lane] = v44;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        {
            tensor<threadgroup half, dextents<int, 2>, tensor_inline> left(a_2 + v20, dextents<int, 2>(32, 16), array<int, 2>{1, 32});
            tensor<threadgroup half, dextents<int, 2>, tensor_inline> right(b_2, dextents<int, 2>(32, 32), array<int, 2>{1, 32});
            op0.run(left, right, f22);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    {
        tensor<threadgroup float, dextents<int, 2>, tensor_inline> place(d + v20, dextents<int, 2>(32, 16), array<int, 2>{1, 32});
        f22.store(place);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int v49 = 0; v49 < 1024; v49 += 64) {
        const int v50 = v19 + v49;
        const int v51 = v50 / 32;
        const int v52 = v50 % 32;
        const float v55 = d[(v52 + (v51 * 32)) + lane];
        const int v57 = v17 + v52;
        const int v58 = 48 - v57;
        const half v59 = (lane < v58) ? bias[v57 + lane] : half(0.0f);
        const float v61 = (alpha * v55) + float(v59);
        const int v67 = v16 + v51;
        const int v69 = v57 + (v67 * 48);
        const bool v72 = (lane < v58) && (v67 < 40);
        const half v73 = v72 ? residual[v69 + lane] : half(0.0f);
        const float v75 = ((0.5f * v61) * (1.0f + tw_erf(v61 * 0.70710677f))) + float(v73);
        if (v72) c[v69 + lane] = half(v75);
    }
}
