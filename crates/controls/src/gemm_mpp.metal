// C = A·B in f32 by tensor operations, written by hand: a tile of 64 by 64 for each threadgroup
// of four simdgroups, all of K in one operation. The host defines LEFT and RIGHT: 1 where that
// matrix is stored transposed.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

[[kernel, max_total_threads_per_threadgroup(128)]]
void gemm_mpp(device float* a [[buffer(0)]],
              device float* b [[buffer(1)]],
              device float* c [[buffer(2)]],
              constant uint& m [[buffer(3)]],
              constant uint& n [[buffer(4)]],
              constant uint& k [[buffer(5)]],
              uint2 group [[threadgroup_position_in_grid]])
{
    using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;
    constexpr auto what = matmul2d_descriptor(64, 64, static_cast<int>(dynamic_extent), LEFT == 1,
                                              RIGHT == 1, false,
                                              matmul2d_descriptor::mode::multiply);
    matmul2d<what, execution_simdgroups<4>> product;
    const int row = int(group.y) * 64;
    const int column = int(group.x) * 64;
    const int rows = min(64, int(m) - row);
    const int columns = min(64, int(n) - column);
    const int depth = int(k);
#if LEFT
    Matrix left(a + ulong(row), dextents<int, 2>(rows, depth), array<int, 2>{1, int(m)});
#else
    Matrix left(a + ulong(row) * ulong(k), dextents<int, 2>(depth, rows),
                array<int, 2>{1, depth});
#endif
#if RIGHT
    Matrix right(b + ulong(column) * ulong(k), dextents<int, 2>(depth, columns),
                 array<int, 2>{1, depth});
#else
    Matrix right(b + ulong(column), dextents<int, 2>(columns, depth), array<int, 2>{1, int(n)});
#endif
    Matrix result(c + ulong(row) * ulong(n) + ulong(column), dextents<int, 2>(columns, rows),
                  array<int, 2>{1, int(n)});
    auto sums = product.get_destination_cooperative_tensor<Matrix, Matrix, float>();
    product.run(left, right, sums);
    sums.store(result);
}
