#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(64)]]
void layernorm(
    device const bfloat* x [[buffer(0)]],
    device const bfloat* gamma [[buffer(1)]],
    device const bfloat* beta [[buffer(2)]],
    device bfloat* y [[buffer(3)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float add[2];
    threadgroup float add2[2];
    float sub[4];
    const bool v15 = (lane + (subgroup * 32)) < 25;
    const int v16 = subgroup * 128;
    const int v18 = v16 + (group0 * 100);
    float v31;
    if (v15) {
        const bfloat4 p19 = *(device const bfloat4*)(x + (v18 + (lane * 4)));
        const float v29 = (float(p19.x) + float(p19.y)) + (float(p19.z) + float(p19.w));
        const float v30 = 0.0f + v29;
        v31 = v30;
    } else {
        v31 = 0.0f;
    }
    const float v32 = simd_sum(v31);
    if (lane < 1) add[subgroup] = v32;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v33 = (lane < 2) ? add[lane] : 0.0f;
    const float v34 = simd_sum(v33);
    const float v35 = v34 / 100.0f;
    if (v15) {
        const bfloat4 p36 = *(device const bfloat4*)(x + (v18 + (lane * 4)));
        sub[0] = float(p36.x) - v35;
        sub[1] = float(p36.y) - v35;
        sub[2] = float(p36.z) - v35;
        sub[3] = float(p36.w) - v35;
    }
    float v56;
    if (v15) {
        const float v48 = sub[0];
        const float v49 = sub[1];
        const float v50 = sub[2];
        const float v51 = sub[3];
        const float v55 = fma(v51, v51, fma(v50, v50, fma(v49, v49, fma(v48, v48, 0.0f))));
        v56 = v55;
    } else {
        v56 = 0.0f;
    }
    const float v57 = simd_sum(v56);
    if (lane < 1) add2[subgroup] = v57;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v58 = (lane < 2) ? add2[lane] : 0.0f;
    const float v59 = simd_sum(v58);
    const float v62 = precise::sqrt((v59 / 100.0f) + 1e-5f);
    if (v15) {
        const float v63 = sub[0];
        const float v64 = sub[1];
        const float v65 = sub[2];
        const float v66 = sub[3];
        const bfloat4 p71 = *(device const bfloat4*)(gamma + (v16 + (lane * 4)));
        const bfloat4 p83 = *(device const bfloat4*)(beta + (v16 + (lane * 4)));
        *(device bfloat4*)(y + (v18 + (lane * 4))) = bfloat4{bfloat(((v63 / v62) * float(p71.x)) + float(p83.x)), bfloat(((v64 / v62) * float(p71.y)) + float(p83.y)), bfloat(((v65 / v62) * float(p71.z)) + float(p83.z)), bfloat(((v66 / v62) * float(p71.w)) + float(p83.w))};
    }
}
