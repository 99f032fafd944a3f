#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

struct Sizes {
    uint m, n, k;
};

// c = max(a·b, 0) with tiles of 32 by 32 for a group of two simdgroups, K in steps of 32. Tensors
// are made per tile from moved pointers, with the extents that are left.
kernel void gemm_mpp(
    device half* a [[buffer(0)]],
    device half* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    constant Sizes& sizes [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]])
{
    constexpr auto what = matmul2d_descriptor(32, 32, static_cast<int>(dynamic_extent), false,
                                              false, false,
                                              matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<what, execution_simdgroups<2>> product;
    const int first_row = int(group.y) * 32;
    const int first_column = int(group.x) * 32;
    const int rows = min(32, int(sizes.m) - first_row);
    const int columns = min(32, int(sizes.n) - first_column);
    using Tile = tensor<device half, dextents<int, 2>, tensor_inline>;
    auto sums = product.get_destination_cooperative_tensor<Tile, Tile, float>();
    for (uint16_t i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            sums[i] = 0.0f;
        }
    }
    for (int k = 0; k < int(sizes.k); k += 32) {
        const int depth = min(32, int(sizes.k) - k);
        Tile left(a + ulong(first_row) * ulong(sizes.k) + ulong(k),
                  dextents<int, 2>(depth, rows), array<int, 2>{1, int(sizes.k)});
        Tile right(b + ulong(k) * ulong(sizes.n) + ulong(first_column),
                   dextents<int, 2>(columns, depth), array<int, 2>{1, int(sizes.n)});
        product.run(left, right, sums);
    }
    for (uint16_t i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            sums[i] = max(sums[i], 0.0f);
        }
    }
    auto tile = tensor(c + ulong(first_row) * ulong(sizes.n) + ulong(first_column),
                       dextents<int, 2>(columns, rows), array<int, 2>{1, int(sizes.n)});
    sums.store(tile);
}
