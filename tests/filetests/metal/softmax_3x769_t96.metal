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
    float exp[9];
    const int v17 = subgroup * 128;
    const int v19 = v17 + (group0 * 769);
    float v21 = (-INFINITY);
    for (int v20 = 0; v20 < 2; ++v20) {
        const int v23 = v19 + (v20 * 384);
        const float v24 = x[v23 + (lane * 4)];
        const float v26 = x[(v23 + 1) + (lane * 4)];
        const float v28 = x[(v23 + 2) + (lane * 4)];
        const float v30 = x[(v23 + 3) + (lane * 4)];
        const float v34 = tw_max(v21, tw_max(tw_max(v24, v26), tw_max(v28, v30)));
        v21 = v34;
    }
    const int v36 = 1 - v17;
    const int v37 = v19 + 768;
    const int v39 = (v36 + 3) / 4;
    const float v40 = (lane < v39) ? x[v37 + (lane * 4)] : 0.0f;
    const int v41 = v19 + 769;
    const int v43 = (v36 + 2) / 4;
    const float v44 = (lane < v43) ? x[v41 + (lane * 4)] : 0.0f;
    const int v45 = v19 + 770;
    const int v47 = (v36 + 1) / 4;
    const float v48 = (lane < v47) ? x[v45 + (lane * 4)] : 0.0f;
    const int v49 = v19 + 771;
    const int v50 = v36 / 4;
    const float v51 = (lane < v50) ? x[v49 + (lane * 4)] : 0.0f;
    const int v53 = lane * 4;
    const bool v54 = v53 < v36;
    const float v55 = v54 ? tw_max(v21, v40) : v21;
    const bool v58 = (v53 + 1) < v36;
    const float v59 = v58 ? tw_max(v55, v44) : v55;
    const bool v62 = (v53 + 2) < v36;
    const float v63 = v62 ? tw_max(v59, v48) : v59;
    const bool v66 = (v53 + 3) < v36;
    const float v68 = tw_simd_max(v66 ? tw_max(v63, v51) : v63);
    if (lane < 1) max_[subgroup] = v68;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v69 = (lane < 3) ? max_[lane] : (-INFINITY);
    const float v70 = tw_simd_max(v69);
    #pragma clang loop unroll(full)
    for (int v71 = 0; v71 < 2; ++v71) {
        const int v74 = v19 + (v71 * 384);
        const float v75 = x[v74 + (lane * 4)];
        const float v77 = x[(v74 + 1) + (lane * 4)];
        const float v79 = x[(v74 + 2) + (lane * 4)];
        const float v81 = x[(v74 + 3) + (lane * 4)];
        exp[v71 * 4] = precise::exp(v75 - v70);
        exp[(v71 * 4) + 1] = precise::exp(v77 - v70);
        exp[(v71 * 4) + 2] = precise::exp(v79 - v70);
        exp[(v71 * 4) + 3] = precise::exp(v81 - v70);
    }
    const float v90 = (lane < v39) ? x[v37 + (lane * 4)] : 0.0f;
    const float v91 = (lane < v43) ? x[v41 + (lane * 4)] : 0.0f;
    const float v92 = (lane < v47) ? x[v45 + (lane * 4)] : 0.0f;
    const float v93 = (lane < v50) ? x[v49 + (lane * 4)] : 0.0f;
    if (((lane * 4) + 3) < v36) {
        exp[8] = precise::exp(v90 - v70);
        exp[9] = precise::exp(v91 - v70);
        exp[10] = precise::exp(v92 - v70);
        exp[11] = precise::exp(v93 - v70);
    } else if ((lane * 4) < v36) {
        exp[8] = precise::exp(v90 - v70);
        if (((lane * 4) + 1) < v36) exp[9] = precise::exp(v91 - v70);
        if (((lane * 4) + 2) < v36) exp[10] = precise::exp(v92 - v70);
    }
    float v103 = 0.0f;
    #pragma clang loop unroll(full)
    for (int v102 = 0; v102 < 2; ++v102) {
        const float v105 = exp[v102 * 4];
        const float v106 = exp[(v102 * 4) + 1];
        const float v107 = exp[(v102 * 4) + 2];
        const float v108 = exp[(v102 * 4) + 3];
        const float v112 = v103 + ((v105 + v106) + (v107 + v108));
        v103 = v112;
    }
    const float v114 = ((lane * 4) < v36) ? exp[8] : 0.0f;
    const float v115 = (((lane * 4) + 1) < v36) ? exp[9] : 0.0f;
    const float v116 = (((lane * 4) + 2) < v36) ? exp[10] : 0.0f;
    const float v117 = (((lane * 4) + 3) < v36) ? exp[11] : 0.0f;
    const float v119 = v54 ? (v103 + v114) : v103;
    const float v121 = v58 ? (v119 + v115) : v119;
    const float v123 = v62 ? (v121 + v116) : v121;
    const float v126 = simd_sum(v66 ? (v123 + v117) : v123);
    if (lane < 1) add[subgroup] = v126;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float v127 = (lane < 3) ? add[lane] : 0.0f;
    const float v128 = simd_sum(v127);
    #pragma clang loop unroll(full)
    for (int v129 = 0; v129 < 2; ++v129) {
        const float v132 = exp[v129 * 4];
        const float v133 = exp[(v129 * 4) + 1];
        const float v134 = exp[(v129 * 4) + 2];
        const float v135 = exp[(v129 * 4) + 3];
        const int v140 = v19 + (v129 * 384);
        y[v140 + (lane * 4)] = v132 / v128;
        y[(v140 + 1) + (lane * 4)] = v133 / v128;
        y[(v140 + 2) + (lane * 4)] = v134 / v128;
        y[(v140 + 3) + (lane * 4)] = v135 / v128;
    }
    const float v144 = ((lane * 4) < v36) ? exp[8] : 0.0f;
    const float v145 = (((lane * 4) + 1) < v36) ? exp[9] : 0.0f;
    const float v146 = (((lane * 4) + 2) < v36) ? exp[10] : 0.0f;
    const float v147 = (((lane * 4) + 3) < v36) ? exp[11] : 0.0f;
    if (lane < v39) y[v37 + (lane * 4)] = v144 / v128;
    if (lane < v43) y[v41 + (lane * 4)] = v145 / v128;
    if (lane < v47) y[v45 + (lane * 4)] = v146 / v128;
    if (lane < v50) y[v49 + (lane * 4)] = v147 / v128;
}
