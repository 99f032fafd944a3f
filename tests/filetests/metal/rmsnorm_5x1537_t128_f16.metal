#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

[[kernel, max_total_threads_per_threadgroup(128)]]
void rmsnorm(
    device const half* x [[buffer(0)]],
    device const half* gamma [[buffer(1)]],
    device half* y [[buffer(2)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float add[4];
    const int v17 = subgroup * 128;
    const int v19 = v17 + (group0 * 1537);
    float v21 = 0.0f;
    for (int v20 = 0; v20 < 3; ++v20) {
        const int v23 = v19 + (v20 * 512);
        const half v24 = x[v23 + (lane * 4)];
        const half v26 = x[(v23 + 1) + (lane * 4)];
        const half v28 = x[(v23 + 2) + (lane * 4)];
        const half v30 = x[(v23 + 3) + (lane * 4)];
        const float v31 = float(v24);
        const float v32 = float(v26);
        const float v33 = float(v28);
        const float v34 = float(v30);
        const float v38 = fma(v34, v34, fma(v33, v33, fma(v32, v32, fma(v31, v31, v21))));
        v21 = v38;
    }
    const int v41 = 1 - v17;
    const int v42 = v19 + 1536;
    const int v44 = (v41 + 3) / 4;
    const half v45 = (lane < v44) ? x[v42 + (lane * 4)] : half(0.0f);
    const int v46 = v19 + 1537;
    const int v48 = (v41 + 2) / 4;
    const half v49 = (lane < v48) ? x[v46 + (lane * 4)] : half(0.0f);
    const int v50 = v19 + 1538;
    const int v52 = (v41 + 1) / 4;
    const half v53 = (lane < v52) ? x[v50 + (lane * 4)] : half(0.0f);
    const int v54 = v19 + 1539;
    const int v55 = v41 / 4;
    const half v56 = (lane < v55) ? x[v54 + (lane * 4)] : half(0.0f);
    const float v57 = float(v45);
    const float v58 = float(v49);
    const float v59 = float(v53);
    const float v60 = float(v56);
    const int v62 = lane * 4;
    const float v64 = (v62 < v41) ? fma(v57, v57, v21) : v21;
    const float v68 = ((v62 + 1) < v41) ? fma(v58, v58, v64) : v64;
    const float v72 = ((v62 + 2) < v41) ? fma(v59, v59, v68) : v68;
    const float v77 = simd_sum(((v62 + 3) < v41) ? fma(v60, v60, v72) : v72);
    if (lane < 1) add[subgroup] = v77;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v78 = (lane < 4) ? add[lane] : 0.0f;
    const float v79 = simd_sum(v78);
    const float v82 = precise::sqrt((v79 / 1537.0f) + 1e-5f);
    for (int v83 = 0; v83 < 3; ++v83) {
        const int v84 = v83 * 512;
        const int v85 = v17 + v84;
        const int v86 = v19 + v84;
        const half v87 = x[v86 + (lane * 4)];
        const int v88 = v86 + 1;
        const half v89 = x[v88 + (lane * 4)];
        const int v90 = v86 + 2;
        const half v91 = x[v90 + (lane * 4)];
        const int v92 = v86 + 3;
        const half v93 = x[v92 + (lane * 4)];
        const half v102 = gamma[v85 + (lane * 4)];
        const half v104 = gamma[(v85 + 1) + (lane * 4)];
        const half v106 = gamma[(v85 + 2) + (lane * 4)];
        const half v108 = gamma[(v85 + 3) + (lane * 4)];
        y[v86 + (lane * 4)] = half((float(v87) / v82) * float(v102));
        y[v88 + (lane * 4)] = half((float(v89) / v82) * float(v104));
        y[v90 + (lane * 4)] = half((float(v91) / v82) * float(v106));
        y[v92 + (lane * 4)] = half((float(v93) / v82) * float(v108));
    }
    const half v121 = (lane < v44) ? x[v42 + (lane * 4)] : half(0.0f);
    const half v122 = (lane < v48) ? x[v46 + (lane * 4)] : half(0.0f);
    const half v123 = (lane < v52) ? x[v50 + (lane * 4)] : half(0.0f);
    const half v124 = (lane < v55) ? x[v54 + (lane * 4)] : half(0.0f);
    const half v133 = (lane < v44) ? gamma[(v17 + 1536) + (lane * 4)] : half(0.0f);
    const half v135 = (lane < v48) ? gamma[(v17 + 1537) + (lane * 4)] : half(0.0f);
    const half v137 = (lane < v52) ? gamma[(v17 + 1538) + (lane * 4)] : half(0.0f);
    const half v139 = (lane < v55) ? gamma[(v17 + 1539) + (lane * 4)] : half(0.0f);
    if (lane < v44) y[v42 + (lane * 4)] = half((float(v121) / v82) * float(v133));
    if (lane < v48) y[v46 + (lane * 4)] = half((float(v122) / v82) * float(v135));
    if (lane < v52) y[v50 + (lane * 4)] = half((float(v123) / v82) * float(v137));
    if (lane < v55) y[v54 + (lane * 4)] = half((float(v124) / v82) * float(v139));
}
