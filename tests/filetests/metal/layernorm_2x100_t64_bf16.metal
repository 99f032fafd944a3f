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
    const int v13 = subgroup * 128;
    const int v14 = 100 - v13;
    const int v16 = v13 + (group0 * 100);
    const int v18 = (v14 + 3) / 4;
    const bfloat v19 = (lane < v18) ? x[v16 + (lane * 4)] : bfloat(0.0f);
    const int v20 = v16 + 1;
    const int v22 = (v14 + 2) / 4;
    const bfloat v23 = (lane < v22) ? x[v20 + (lane * 4)] : bfloat(0.0f);
    const int v24 = v16 + 2;
    const int v26 = (v14 + 1) / 4;
    const bfloat v27 = (lane < v26) ? x[v24 + (lane * 4)] : bfloat(0.0f);
    const int v28 = v16 + 3;
    const int v29 = v14 / 4;
    const bfloat v30 = (lane < v29) ? x[v28 + (lane * 4)] : bfloat(0.0f);
    const int v36 = lane * 4;
    const bool v37 = v36 < v14;
    const float v38 = v37 ? (0.0f + float(v19)) : 0.0f;
    const bool v41 = (v36 + 1) < v14;
    const float v42 = v41 ? (v38 + float(v23)) : v38;
    const bool v45 = (v36 + 2) < v14;
    const float v46 = v45 ? (v42 + float(v27)) : v42;
    const bool v49 = (v36 + 3) < v14;
    const float v51 = simd_sum(v49 ? (v46 + float(v30)) : v46);
    if (lane < 1) add[subgroup] = v51;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v52 = (lane < 2) ? add[lane] : 0.0f;
    const float v53 = simd_sum(v52);
    const float v54 = v53 / 100.0f;
    const bfloat v55 = (lane < v18) ? x[v16 + (lane * 4)] : bfloat(0.0f);
    const bfloat v56 = (lane < v22) ? x[v20 + (lane * 4)] : bfloat(0.0f);
    const bfloat v57 = (lane < v26) ? x[v24 + (lane * 4)] : bfloat(0.0f);
    const bfloat v58 = (lane < v29) ? x[v28 + (lane * 4)] : bfloat(0.0f);
    if (((lane * 4) + 3) < v14) {
        sub[0] = float(v55) - v54;
        sub[1] = float(v56) - v54;
        sub[2] = float(v57) - v54;
        sub[3] = float(v58) - v54;
    } else if ((lane * 4) < v14) {
        sub[0] = float(v55) - v54;
        if (((lane * 4) + 1) < v14) sub[1] = float(v56) - v54;
        if (((lane * 4) + 2) < v14) sub[2] = float(v57) - v54;
    }
    const float v67 = ((lane * 4) < v14) ? sub[0] : 0.0f;
    const float v68 = (((lane * 4) + 1) < v14) ? sub[1] : 0.0f;
    const float v69 = (((lane * 4) + 2) < v14) ? sub[2] : 0.0f;
    const float v70 = (((lane * 4) + 3) < v14) ? sub[3] : 0.0f;
    const float v72 = v37 ? fma(v67, v67, 0.0f) : 0.0f;
    const float v74 = v41 ? fma(v68, v68, v72) : v72;
    const float v76 = v45 ? fma(v69, v69, v74) : v74;
    const float v79 = simd_sum(v49 ? fma(v70, v70, v76) : v76);
    if (lane < 1) add2[subgroup] = v79;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v80 = (lane < 2) ? add2[lane] : 0.0f;
    const float v81 = simd_sum(v80);
    const float v84 = precise::sqrt((v81 / 100.0f) + 1e-5f);
    const float v85 = ((lane * 4) < v14) ? sub[0] : 0.0f;
    const float v86 = (((lane * 4) + 1) < v14) ? sub[1] : 0.0f;
    const float v87 = (((lane * 4) + 2) < v14) ? sub[2] : 0.0f;
    const float v88 = (((lane * 4) + 3) < v14) ? sub[3] : 0.0f;
    const bfloat v93 = (lane < v18) ? gamma[v13 + (lane * 4)] : bfloat(0.0f);
    const int v94 = v13 + 1;
    const bfloat v95 = (lane < v22) ? gamma[v94 + (lane * 4)] : bfloat(0.0f);
    const int v96 = v13 + 2;
    const bfloat v97 = (lane < v26) ? gamma[v96 + (lane * 4)] : bfloat(0.0f);
    const int v98 = v13 + 3;
    const bfloat v99 = (lane < v29) ? gamma[v98 + (lane * 4)] : bfloat(0.0f);
    const bfloat v108 = (lane < v18) ? beta[v13 + (lane * 4)] : bfloat(0.0f);
    const bfloat v109 = (lane < v22) ? beta[v94 + (lane * 4)] : bfloat(0.0f);
    const bfloat v110 = (lane < v26) ? beta[v96 + (lane * 4)] : bfloat(0.0f);
    const bfloat v111 = (lane < v29) ? beta[v98 + (lane * 4)] : bfloat(0.0f);
    if (lane < v18) y[v16 + (lane * 4)] = bfloat(((v85 / v84) * float(v93)) + float(v108));
    if (lane < v22) y[v20 + (lane * 4)] = bfloat(((v86 / v84) * float(v95)) + float(v109));
    if (lane < v26) y[v24 + (lane * 4)] = bfloat(((v87 / v84) * float(v97)) + float(v110));
    if (lane < v29) y[v28 + (lane * 4)] = bfloat(((v88 / v84) * float(v99)) + float(v111));
}
