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
    const bool v16 = (lane + (subgroup * 32)) < 25;
    const int v17 = subgroup * 128;
    const int v19 = v17 + (group0 * 100);
    const int v20 = v19 + 1;
    const int v21 = v19 + 2;
    const int v22 = v19 + 3;
    float v35;
    if (v16) {
        const bfloat v23 = x[v19 + (lane * 4)];
        const bfloat v24 = x[v20 + (lane * 4)];
        const bfloat v25 = x[v21 + (lane * 4)];
        const bfloat v26 = x[v22 + (lane * 4)];
        const float v34 = 0.0f + ((float(v23) + float(v24)) + (float(v25) + float(v26)));
        v35 = v34;
    } else {
        v35 = 0.0f;
    }
    const float v36 = simd_sum(v35);
    if (lane < 1) add[subgroup] = v36;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v37 = (lane < 2) ? add[lane] : 0.0f;
    const float v38 = simd_sum(v37);
    const float v39 = v38 / 100.0f;
    if (v16) {
        const bfloat v40 = x[v19 + (lane * 4)];
        const bfloat v41 = x[v20 + (lane * 4)];
        const bfloat v42 = x[v21 + (lane * 4)];
        const bfloat v43 = x[v22 + (lane * 4)];
        sub[0] = float(v40) - v39;
        sub[1] = float(v41) - v39;
        sub[2] = float(v42) - v39;
        sub[3] = float(v43) - v39;
    }
    float v60;
    if (v16) {
        const float v52 = sub[0];
        const float v53 = sub[1];
        const float v54 = sub[2];
        const float v55 = sub[3];
        const float v59 = fma(v55, v55, fma(v54, v54, fma(v53, v53, fma(v52, v52, 0.0f))));
        v60 = v59;
    } else {
        v60 = 0.0f;
    }
    const float v61 = simd_sum(v60);
    if (lane < 1) add2[subgroup] = v61;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v62 = (lane < 2) ? add2[lane] : 0.0f;
    const float v63 = simd_sum(v62);
    const float v66 = precise::sqrt((v63 / 100.0f) + 1e-5f);
    const int v67 = v17 + 1;
    const int v68 = v17 + 2;
    const int v69 = v17 + 3;
    if (v16) {
        const float v70 = sub[0];
        const float v71 = sub[1];
        const float v72 = sub[2];
        const float v73 = sub[3];
        const bfloat v78 = gamma[v17 + (lane * 4)];
        const bfloat v79 = gamma[v67 + (lane * 4)];
        const bfloat v80 = gamma[v68 + (lane * 4)];
        const bfloat v81 = gamma[v69 + (lane * 4)];
        const bfloat v90 = beta[v17 + (lane * 4)];
        const bfloat v91 = beta[v67 + (lane * 4)];
        const bfloat v92 = beta[v68 + (lane * 4)];
        const bfloat v93 = beta[v69 + (lane * 4)];
        y[v19 + (lane * 4)] = bfloat(((v70 / v66) * float(v78)) + float(v90));
        y[v20 + (lane * 4)] = bfloat(((v71 / v66) * float(v79)) + float(v91));
        y[v21 + (lane * 4)] = bfloat(((v72 / v66) * float(v80)) + float(v92));
        y[v22 + (lane * 4)] = bfloat(((v73 / v66) * float(v81)) + float(v93));
    }
}
