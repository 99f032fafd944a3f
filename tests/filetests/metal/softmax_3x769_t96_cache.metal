#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif

// NaN if either is.
inline float tw_max(float a, float b) {
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

// simd_max passes over NaN; here a NaN of any lane is the result.
inline float tw_simd_max(float x) {
    const float extremum = simd_max(x);
    return simd_any(isnan(x)) ? NAN : extremum;
}

[[kernel, max_total_threads_per_threadgroup(96)]]
void softmax(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    uint3 group_id [[threadgroup_position_in_grid]],
    uint subgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane_id [[thread_index_in_simdgroup]])
{
    const int group0 = int(group_id.x);
    const int subgroup = int(subgroup_id);
    const int lane = int(lane_id);
    threadgroup float max_[3];
    threadgroup float add[3];
    float x_2[9];
    float exp[9];
    const int v17 = subgroup * 128;
    const int v19 = v17 + (group0 * 769);
    #pragma clang loop unroll(full)
    for (int v20 = 0; v20 < 2; ++v20) {
        const int v23 = v19 + (v20 * 384);
        const float v24 = x[v23 + (lane * 4)];
        const float v26 = x[(v23 + 1) + (lane * 4)];
        const float v28 = x[(v23 + 2) + (lane * 4)];
        const float v30 = x[(v23 + 3) + (lane * 4)];
        x_2[v20 * 4] = v24;
        x_2[(v20 * 4) + 1] = v26;
        x_2[(v20 * 4) + 2] = v28;
        x_2[(v20 * 4) + 3] = v30;
    }
    const int v31 = 1 - v17;
    const int v32 = v19 + 768;
    const int v34 = (v31 + 3) / 4;
    const float v35 = (lane < v34) ? x[v32 + (lane * 4)] : 0.0f;
    const int v36 = v19 + 769;
    const int v38 = (v31 + 2) / 4;
    const float v39 = (lane < v38) ? x[v36 + (lane * 4)] : 0.0f;
    const int v40 = v19 + 770;
    const int v42 = (v31 + 1) / 4;
    const float v43 = (lane < v42) ? x[v40 + (lane * 4)] : 0.0f;
    const int v44 = v19 + 771;
    const int v45 = v31 / 4;
    const float v46 = (lane < v45) ? x[v44 + (lane * 4)] : 0.0f;
    if (((lane * 4) + 3) < v31) {
        x_2[8] = v35;
        x_2[9] = v39;
        x_2[10] = v43;
        x_2[11] = v46;
    } else if ((lane * 4) < v31) {
        x_2[8] = v35;
        if (((lane * 4) + 1) < v31) x_2[9] = v39;
        if (((lane * 4) + 2) < v31) x_2[10] = v43;
    }
    float v48 = (-INFINITY);
    #pragma clang loop unroll(full)
    for (int v47 = 0; v47 < 2; ++v47) {
        const float v50 = x_2[v47 * 4];
        const float v51 = x_2[(v47 * 4) + 1];
        const float v52 = x_2[(v47 * 4) + 2];
        const float v53 = x_2[(v47 * 4) + 3];
        const float v57 = tw_max(v48, tw_max(tw_max(v50, v51), tw_max(v52, v53)));
        v48 = v57;
    }
    const float v59 = ((lane * 4) < v31) ? x_2[8] : 0.0f;
    const float v60 = (((lane * 4) + 1) < v31) ? x_2[9] : 0.0f;
    const float v61 = (((lane * 4) + 2) < v31) ? x_2[10] : 0.0f;
    const float v62 = (((lane * 4) + 3) < v31) ? x_2[11] : 0.0f;
    const int v64 = lane * 4;
    const bool v65 = v64 < v31;
    const float v66 = v65 ? tw_max(v48, v59) : v48;
    const bool v69 = (v64 + 1) < v31;
    const float v70 = v69 ? tw_max(v66, v60) : v66;
    const bool v73 = (v64 + 2) < v31;
    const float v74 = v73 ? tw_max(v70, v61) : v70;
    const bool v77 = (v64 + 3) < v31;
    const float v79 = tw_simd_max(v77 ? tw_max(v74, v62) : v74);
    if (lane < 1) max_[subgroup] = v79;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v80 = (lane < 3) ? max_[lane] : (-INFINITY);
    const float v81 = tw_simd_max(v80);
    #pragma clang loop unroll(full)
    for (int v82 = 0; v82 < 2; ++v82) {
        const int v83 = v82 * 4;
        const float v84 = x_2[v83];
        const float v85 = x_2[v83 + 1];
        const float v86 = x_2[v83 + 2];
        const float v87 = x_2[v83 + 3];
        exp[v83] = precise::exp(v84 - v81);
        exp[v83 + 1] = precise::exp(v85 - v81);
        exp[v83 + 2] = precise::exp(v86 - v81);
        exp[v83 + 3] = precise::exp(v87 - v81);
    }
    const float v96 = ((lane * 4) < v31) ? x_2[8] : 0.0f;
    const float v97 = (((lane * 4) + 1) < v31) ? x_2[9] : 0.0f;
    const float v98 = (((lane * 4) + 2) < v31) ? x_2[10] : 0.0f;
    const float v99 = (((lane * 4) + 3) < v31) ? x_2[11] : 0.0f;
    if (((lane * 4) + 3) < v31) {
        exp[8] = precise::exp(v96 - v81);
        exp[9] = precise::exp(v97 - v81);
        exp[10] = precise::exp(v98 - v81);
        exp[11] = precise::exp(v99 - v81);
    } else if ((lane * 4) < v31) {
        exp[8] = precise::exp(v96 - v81);
        if (((lane * 4) + 1) < v31) exp[9] = precise::exp(v97 - v81);
        if (((lane * 4) + 2) < v31) exp[10] = precise::exp(v98 - v81);
    }
    float v109 = 0.0f;
    #pragma clang loop unroll(full)
    for (int v108 = 0; v108 < 2; ++v108) {
        const float v111 = exp[v108 * 4];
        const float v112 = exp[(v108 * 4) + 1];
        const float v113 = exp[(v108 * 4) + 2];
        const float v114 = exp[(v108 * 4) + 3];
        const float v118 = v109 + ((v111 + v112) + (v113 + v114));
        v109 = v118;
    }
    const float v120 = ((lane * 4) < v31) ? exp[8] : 0.0f;
    const float v121 = (((lane * 4) + 1) < v31) ? exp[9] : 0.0f;
    const float v122 = (((lane * 4) + 2) < v31) ? exp[10] : 0.0f;
    const float v123 = (((lane * 4) + 3) < v31) ? exp[11] : 0.0f;
    const float v125 = v65 ? (v109 + v120) : v109;
    const float v127 = v69 ? (v125 + v121) : v125;
    const float v129 = v73 ? (v127 + v122) : v127;
    const float v132 = simd_sum(v77 ? (v129 + v123) : v129);
    if (lane < 1) add[subgroup] = v132;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v133 = (lane < 3) ? add[lane] : 0.0f;
    const float v134 = simd_sum(v133);
    #pragma clang loop unroll(full)
    for (int v135 = 0; v135 < 2; ++v135) {
        const float v138 = exp[v135 * 4];
        const float v139 = exp[(v135 * 4) + 1];
        const float v140 = exp[(v135 * 4) + 2];
        const float v141 = exp[(v135 * 4) + 3];
        const int v146 = v19 + (v135 * 384);
        y[v146 + (lane * 4)] = v138 / v134;
        y[(v146 + 1) + (lane * 4)] = v139 / v134;
        y[(v146 + 2) + (lane * 4)] = v140 / v134;
        y[(v146 + 3) + (lane * 4)] = v141 / v134;
    }
    const float v150 = ((lane * 4) < v31) ? exp[8] : 0.0f;
    const float v151 = (((lane * 4) + 1) < v31) ? exp[9] : 0.0f;
    const float v152 = (((lane * 4) + 2) < v31) ? exp[10] : 0.0f;
    const float v153 = (((lane * 4) + 3) < v31) ? exp[11] : 0.0f;
    if (lane < v34) y[v32 + (lane * 4)] = v150 / v134;
    if (lane < v38) y[v36 + (lane * 4)] = v151 / v134;
    if (lane < v42) y[v40 + (lane * 4)] = v152 / v134;
    if (lane < v45) y[v44 + (lane * 4)] = v153 / v134;
}
