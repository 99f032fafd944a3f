#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

inline int tw_rem32(int a, int b) {
    return b == 0 ? 0 : b == -1 ? 0 : a % b;
}

inline int tw_div32(int a, int b) {
    return b == 0 ? 0 : b == -1 ? int(uint(0) - uint(a)) : a / b;
}

inline int tw_int(float x) {
    return isnan(x) ? 0 : x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : int(x);
}

inline int tw_abs(int a) {
    return a < 0 ? int(0u - uint(a)) : a;
}

[[kernel, max_total_threads_per_threadgroup(32)]]
void construct_integers(
    device const int* x [[buffer(0)]],
    device const float* f [[buffer(1)]],
    device int* y [[buffer(2)]],
    device bfloat* g [[buffer(3)]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int lane = int(lane_id);
    const int v3 = x[lane];
    const int v6 = int(uint(int(uint(int(uint(v3) + uint(7))) - uint((-2147483647 - 1)))) * uint(v3));
    const int v10 = tw_abs(int(0u - uint(max(tw_div32(v6, v3), (-2147483647 - 1)))));
    const float v12 = f[lane];
    const int v15 = simd_sum(int(uint(tw_rem32(v10, 7)) + uint(tw_int(v12))));
    y[lane] = v15;
    g[lane] = bfloat(float(v15));
}
