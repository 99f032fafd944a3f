#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(32)]]
void construct_wide(
    device const float* x [[buffer(0)]],
    device const half* h [[buffer(1)]],
    device float* y [[buffer(2)]],
    device half* z [[buffer(3)]],
    constant long& n [[buffer(4)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int lane = int(lane_id);
    const int v6 = group0 * 256;
    const long v7 = n - v6;
    float4 p8 = float4{1.0f, 1.0f, 1.0f, 1.0f};
    float4 p12 = float4{1.0f, 1.0f, 1.0f, 1.0f};
    if (((lane * 8) + 7) < v7) {
        p8 = *(device const float4*)(x + (v6 + (lane * 8)));
        p12 = *(device const float4*)(x + ((v6 + (lane * 8)) + 4));
    } else if ((lane * 8) < v7) {
        p8.x = x[v6 + (lane * 8)];
        if (((lane * 8) + 1) < v7) p8.y = x[(v6 + (lane * 8)) + 1];
        if (((lane * 8) + 2) < v7) p8.z = x[(v6 + (lane * 8)) + 2];
        if (((lane * 8) + 3) < v7) p8.w = x[(v6 + (lane * 8)) + 3];
        if (((lane * 8) + 4) < v7) p12.x = x[(v6 + (lane * 8)) + 4];
        if (((lane * 8) + 5) < v7) p12.y = x[(v6 + (lane * 8)) + 5];
        if (((lane * 8) + 6) < v7) p12.z = x[(v6 + (lane * 8)) + 6];
    }
    if (((lane * 8) + 7) < v7) {
        *(device float4*)(y + (v6 + (lane * 8))) = float4{p8.x + p12.w, p8.y + p12.w, p8.z + p12.w, p8.w + p12.w};
        *(device float4*)(y + ((v6 + (lane * 8)) + 4)) = float4{p12.x + p12.w, p12.y + p12.w, p12.z + p12.w, p12.w + p12.w};
    } else if ((lane * 8) < v7) {
        y[v6 + (lane * 8)] = p8.x + p12.w;
        if (((lane * 8) + 1) < v7) y[(v6 + (lane * 8)) + 1] = p8.y + p12.w;
        if (((lane * 8) + 2) < v7) y[(v6 + (lane * 8)) + 2] = p8.z + p12.w;
        if (((lane * 8) + 3) < v7) y[(v6 + (lane * 8)) + 3] = p8.w + p12.w;
        if (((lane * 8) + 4) < v7) y[(v6 + (lane * 8)) + 4] = p12.x + p12.w;
        if (((lane * 8) + 5) < v7) y[(v6 + (lane * 8)) + 5] = p12.y + p12.w;
        if (((lane * 8) + 6) < v7) y[(v6 + (lane * 8)) + 6] = p12.z + p12.w;
    }
    const half4 p24 = *(device const half4*)(h + (v6 + (lane * 8)));
    *(device half4*)(z + (v6 + (lane * 8))) = half4{p24.x, p24.y, p24.z, p24.w};
    const bool v28 = lane < 7;
    const int v29 = v6 + 4;
    half2 p30 = half2{half(2.0f), half(2.0f)};
    if (v28) {
        p30 = *(device const half2*)(h + (v29 + (lane * 8)));
    }
    if (v28) {
        *(device half2*)(z + (v29 + (lane * 8))) = half2{p30.x, p30.y};
    }
}
