//! Row programs of the op library as PTX, assembled.

mod common;

#[path = "resources/assembled.rs"]
#[allow(dead_code)]
mod assembled;

use tilewright_cuda::{PtxTarget, emit, emit_for};
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::lower::{Join, Options, lower};
use tilewright_plan::Target;
use tilewright_plan::mapping::{Mapping, Residency, RowMapping};

/// The first arrival at the cluster's barrier publishes nothing. The others publish what every
/// subgroup wrote to the other groups, or, behind a leader's fence, nothing either.
#[test]
fn arrivals_publish_what_was_written() {
    let base = RowMapping {
        subgroups: 8,
        cluster: 4,
        vector: 4,
        cache: true,
        fuse: true,
        stage: true,
        resident: 2,
        ..RowMapping::ONE
    };
    for (op, leader, relaxed, released) in
        [("softmax", false, 1, 2), ("softmax", true, 3, 0), ("layernorm", true, 2, 0)]
    {
        let mut program = build(op, &OpRequest::shaped(DType::F32, &[4, 32_768])).unwrap();
        program.tensors.iter_mut().for_each(|(_, tensor)| tensor.align = 16);
        let mapping = Mapping::Rows(RowMapping { leader, ..base });
        let facts = analysis::facts(&program);
        let lowered = lower(&program, &facts, &mapping, &Options::default()).unwrap();
        let earlier = emit(&lowered.launches[0], PtxTarget::BASE).unwrap();
        assert!(!earlier.text.contains(".relaxed"), "PTX 8.0 has them");
        let ptx = emit_for(&lowered.launches[0], PtxTarget::DEPENDENT_LAUNCHES).unwrap();
        let count = |words: &str| ptx.text.matches(words).count();
        assert_eq!(count("barrier.cluster.arrive.relaxed.aligned"), relaxed, "{op} {leader}");
        assert_eq!(count("barrier.cluster.arrive.aligned"), released, "{op} {leader}");
        // A fence behind each branch that writes to the other groups, and before its end.
        let fences = if leader { relaxed - 1 } else { 0 };
        assert_eq!(count("fence.acq_rel.cluster"), fences, "{op} {leader}");
        for (at, _) in ptx.text.match_indices("fence.acq_rel.cluster") {
            let (before, after) = ptx.text.split_at(at);
            let written = before.rfind("st.shared::cluster").unwrap();
            assert!(!before[written..].contains("bra"), "{op}: the fence is in the branch");
            let arrival = after.find("barrier.cluster.arrive").unwrap();
            assert!(after[..arrival].contains("bra"), "{op}: so that others don't pay");
        }
        if let Some((_, spills)) = common::assemble(&ptx.text, "sm_90") {
            assert_eq!(spills, 0, "{op} {leader}");
        }
    }
}

#[test]
fn softmax_and_norms_assemble_without_local_memory() {
    for (op, columns) in [("softmax", 769), ("rmsnorm", 2048), ("layernorm", 1537)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let request = OpRequest::shaped(dtype, &[64, columns]);
            let program = build(op, &request).unwrap();
            let mut program = program;
            program.bind("rows", 64).ok();
            program.bind("cols", columns).ok();
            let facts = analysis::facts(&program);
            let mapping = Mapping::Rows(RowMapping {
                subgroups: 4,
                vector: 4,
                cache: true,
                fuse: true,
                ..RowMapping::ONE
            });
            let lowered = lower(&program, &facts, &mapping, &Options::default()).unwrap();
            for kernel in &lowered.launches {
                let ptx = emit(kernel, PtxTarget::BASE).unwrap();
                if std::env::var_os("SHOW").is_some() {
                    println!("{}", ptx.text);
                }
                for sm in ["sm_80", "sm_90"] {
                    if let Some((registers, spills)) = common::assemble(&ptx.text, sm) {
                        assert_eq!(spills, 0);
                        assert!(registers <= 128, "{op} {dtype} {sm}: {registers} registers");
                        println!("{op} {dtype} {sm}: {registers} registers");
                    }
                }
            }
        }
    }
}

#[test]
fn clusters_assemble_for_the_targets_that_have_them() {
    for (op, dtype, cluster, subgroups) in [
        ("softmax", DType::F32, 8, 16),
        ("layernorm", DType::BF16, 16, 12),
        ("rmsnorm", DType::F32, 2, 1),
    ] {
        let columns = 131_072 / 16 * u64::from(cluster.min(8));
        let mut program = build(op, &OpRequest::shaped(dtype, &[64, columns])).unwrap();
        for (_, tensor) in program.tensors.iter_mut() {
            tensor.align = 16;
        }
        let facts = analysis::facts(&program);
        let vector = 16 / dtype.bytes() as u32;
        let mapping = Mapping::Rows(RowMapping {
            subgroups,
            cluster,
            vector,
            cache: columns <= 65536,
            fuse: true,
            ..RowMapping::ONE
        });
        let lowered = lower(&program, &facts, &mapping, &Options::default()).unwrap();
        let ptx = emit(&lowered.launches[0], PtxTarget::BASE).unwrap();
        assert_eq!(ptx.cluster, cluster);
        assert!(ptx.text.starts_with(".version 7.8\n.target sm_90\n"), "{}", ptx.text);
        assert!(ptx.text.contains(&format!(".reqnctapercluster {cluster}, 1, 1")));
        for sm in ["sm_90", "sm_90a"] {
            if let Some((registers, spills)) = common::assemble(&ptx.text, sm) {
                println!("{op} {dtype} C{cluster} {sm}: {registers} registers, {spills} spilled");
            }
        }
    }
}

/// A row in shared memory comes there by 16-byte copies, nothing is kept in local memory, and the
/// share of registers that the mapping asks for is enough.
#[test]
fn staged_rows_assemble_for_as_many_groups_as_asked() {
    for (op, dtype, columns, cluster, subgroups, batch, resident) in [
        ("softmax", DType::BF16, 32_768, 1, 16, 1, 3),
        ("layernorm", DType::BF16, 131_072, 8, 8, 1, 4),
        ("layernorm", DType::BF16, 131_072, 8, 8, 2, 3),
        ("rmsnorm", DType::F32, 131_072, 8, 8, 1, 3),
        ("layernorm", DType::F32, 131_072, 16, 8, 2, 3),
    ] {
        let mut program = build(op, &OpRequest::shaped(dtype, &[64, columns])).unwrap();
        for (_, tensor) in program.tensors.iter_mut() {
            tensor.align = 16;
        }
        let facts = analysis::facts(&program);
        let mapping = RowMapping {
            subgroups,
            cluster,
            batch,
            resident,
            vector: 16 / dtype.bytes() as u32,
            cache: true,
            fuse: true,
            stage: true,
            residency: Residency::Keep,
            ..RowMapping::ONE
        };
        let options = Options { join: Join::Lane, ..Options::default() };
        let lowered = lower(&program, &facts, &Mapping::Rows(mapping), &options).unwrap();
        let ptx = emit(&lowered.launches[0], PtxTarget::BASE).unwrap();
        let copies = columns / u64::from(cluster * subgroups * 32 * mapping.vector);
        let count = |what: &str| ptx.text.matches(what).count() as u64;
        assert_eq!(count("cp.async.cg.shared.global"), copies * u64::from(batch));
        assert_eq!(count("cp.async.wait_group 0"), 1);
        assert!(ptx.text.contains(&format!(".minnctapersm {resident}\n")));
        // Both priorities are made once; only stores carry one, for the copies have no hint.
        assert_eq!(count("createpolicy"), 2);
        assert_eq!(count("st.global.L2::cache_hint.v4"), copies * u64::from(batch));
        if let Some((registers, spills)) = common::assemble(&ptx.text, "sm_90") {
            println!("{op} {dtype} C{cluster} S{subgroups} B{batch}: {registers} registers");
            assert_eq!(spills, 0, "{op} {dtype} {mapping:?}");
            let threads = subgroups * 32;
            assert!(registers * resident * threads <= 65_536, "{registers}");
        }
    }
}

/// Hints go with every access of the rows and with none of what all rows share.
#[test]
fn hints_to_the_second_level_cache() {
    let mut program = build("rmsnorm", &OpRequest::shaped(DType::F32, &[64, 4096])).unwrap();
    for (_, tensor) in program.tensors.iter_mut() {
        tensor.align = 16;
    }
    let facts = analysis::facts(&program);
    for (residency, first, last) in [
        (Residency::Normal, 0, 0),
        (Residency::Keep, 1, 1),
        (Residency::Stream, 1, 0),
        (Residency::Part, 1, 1),
    ] {
        let mapping = RowMapping {
            subgroups: 8,
            vector: 4,
            cache: true,
            fuse: true,
            residency,
            ..RowMapping::ONE
        };
        let lowered =
            lower(&program, &facts, &Mapping::Rows(mapping), &Options::default()).unwrap();
        let ptx = emit(&lowered.launches[0], PtxTarget::BASE).unwrap();
        let count = |what: &str| ptx.text.matches(what).count();
        assert_eq!(count("L2::evict_first"), first);
        assert_eq!(count("L2::evict_last"), last);
        let hinted = if residency.is_normal() { 0 } else { 4 };
        assert_eq!(count("ld.global.nc.L2::cache_hint.v4"), hinted);
        assert_eq!(count("st.global.L2::cache_hint.v4"), hinted);
        // One priority for all loads of a thread, which reach over less than a row.
        assert_eq!(count("selp.b64"), usize::from(residency == Residency::Part));
        // The four loads of the weight.
        assert_eq!(count("ld.global.nc.v4"), 8 - hinted);
        let version = if residency.is_normal() { "7.0" } else { "7.4" };
        assert!(ptx.text.starts_with(&format!(".version {version}\n.target sm_80\n")));
        for sm in ["sm_80", "sm_90"] {
            if let Some((_, spills)) = common::assemble(&ptx.text, sm) {
                assert_eq!(spills, 0);
            }
        }
    }
}

/// The kernels of a program with a mapping, as text, after the assembler took them.
fn texts(op: &str, request: &OpRequest, mapping: RowMapping) -> Vec<String> {
    aligned_texts(op, request, mapping, 1)
}

/// As [`texts`], of tensors that start at multiples of so many bytes.
fn aligned_texts(op: &str, request: &OpRequest, mapping: RowMapping, align: u64) -> Vec<String> {
    let mut program = build(op, request).unwrap();
    for (_, tensor) in program.tensors.iter_mut() {
        tensor.align = tensor.align.max(align);
    }
    let facts = analysis::facts(&program);
    let lowered = lower(&program, &facts, &Mapping::Rows(mapping), &Options::default()).unwrap();
    let text = |kernel: &_| {
        let ptx = emit(kernel, PtxTarget::BASE).unwrap();
        if let Some((_, spills)) = common::assemble(&ptx.text, "sm_90") {
            assert_eq!(spills, 0, "{op}");
        }
        ptx.text
    };
    lowered.launches.iter().map(text).collect()
}

#[test]
fn rows_of_clusters_beyond_the_y_dimension_lie_along_x() {
    let mapping = RowMapping { subgroups: 4, cluster: 2, fuse: true, ..RowMapping::ONE };
    // The last number of rows that y takes, and the next.
    let text = texts("rmsnorm", &OpRequest::shaped(DType::F32, &[65_535, 4096]), mapping);
    assert!(text[0].contains("%ctaid.y") && !text[0].contains("%ctaid.x"), "{}", text[0]);
    let text = texts("rmsnorm", &OpRequest::shaped(DType::F32, &[65_536, 4096]), mapping);
    assert!(!text[0].contains("%ctaid.y") && text[0].contains("%ctaid.x"), "{}", text[0]);
    // A number of rows that only the launch knows.
    let mut open = OpRequest::generic(DType::F32);
    open.strided = false;
    let mut program = build("rmsnorm", &open).unwrap();
    program.bind("cols", 4096).unwrap();
    let facts = analysis::facts(&program);
    let lowered = lower(&program, &facts, &Mapping::Rows(mapping), &Options::default()).unwrap();
    let ptx = emit(&lowered.launches[0], PtxTarget::BASE).unwrap();
    assert!(!ptx.text.contains("%ctaid.y"), "{}", ptx.text);
    common::assemble(&ptx.text, "sm_90");
}

#[test]
fn rows_over_several_launches_assemble() {
    let mapping = RowMapping { subgroups: 8, split: 264, vector: 4, fuse: true, ..RowMapping::ONE };
    let long = OpRequest::shaped(DType::F32, &[1, 1 << 24]);
    assert_eq!(texts("softmax", &long, mapping).len(), 3);
    assert_eq!(texts("relu", &long, RowMapping { unroll: 4, ..mapping }).len(), 1);
    assert_eq!(texts("row_sum", &long, mapping).len(), 2);
}

#[test]
fn vectors_of_a_last_chunk_are_whole_where_the_columns_are_a_multiple() {
    let mapping =
        RowMapping { subgroups: 4, vector: 2, cache: true, fuse: true, ..RowMapping::ONE };
    // 9 chunks of 256 and 96 columns: a lane's pair is there or isn't.
    let text = aligned_texts("softmax", &OpRequest::shaped(DType::F32, &[64, 2400]), mapping, 16);
    let count = |what: &str| text[0].matches(what).count();
    assert_eq!([count("ld.global"), count("ld.global.nc.v2.f32")], [10, 10]);
    assert_eq!([count("st.global"), count("st.global.v2.f32")], [10, 10]);
}

/// The loads of a row are on their way before the first of them is waited for, those of a guarded last
/// chunk too: one that waits takes 0.3 us of rows that take 2.
#[test]
fn loads_of_ragged_rows_are_issued_together() {
    let mut kernels = Vec::new();
    let mut names = Vec::new();
    for op in ["softmax", "rmsnorm", "layernorm"] {
        for (columns, subgroups) in
            [(2816, 4), (2816, 6), (2816, 8), (1916, 2), (1916, 6), (2400, 2), (2400, 8), (900, 2)]
        {
            let mut program = build(op, &OpRequest::shaped(DType::F32, &[64, columns])).unwrap();
            program.tensors.iter_mut().for_each(|(_, tensor)| tensor.align = 16);
            let facts = analysis::facts(&program);
            let mapping =
                RowMapping { subgroups, vector: 4, cache: true, fuse: true, ..RowMapping::ONE };
            let options = Options::for_target(&Target::nvidia_h200());
            let lowered = lower(&program, &facts, &Mapping::Rows(mapping), &options).unwrap();
            kernels.push(emit_for(&lowered.launches[0], PtxTarget::DEPENDENT_LAUNCHES).unwrap());
            names.push(format!("{op} of {columns} columns by {subgroups} subgroups"));
        }
    }
    let Some(all) = assembled::assemble(&kernels, "sm_90") else { return };
    assert_eq!(all.len(), names.len());
    for (number, (_, sass)) in all {
        assert!(sass.loads_128 > 1, "{}", names[number]);
        assert_eq!(sass.late, 0, "{}", names[number]);
    }
}

/// Where a lane stands against a limit of at most 2^30 is known in 32 bits, and a chunk that holds
/// whole vectors has one test for all elements of a lane.
#[test]
fn guards_of_whole_vectors_are_one_narrow_test() {
    let mapping =
        RowMapping { subgroups: 4, vector: 4, cache: true, fuse: true, ..RowMapping::ONE };
    let tests = |columns: u64| {
        let request = OpRequest::shaped(DType::F32, &[64, columns]);
        let text = aligned_texts("softmax", &request, mapping, 16).remove(0);
        let count = |what: &str| text.matches(what).count();
        (count("setp.lt.s32"), count("setp.lt.s64"))
    };
    let (whole, wide) = tests(2816);
    // One of the load, and one each of the two folds.
    assert!((1..=4).contains(&whole) && wide == 0, "{whole} tests, {wide} of 64 bits");
    // 2814 = 5·512 + 254, and 254 isn't a multiple of 4: an element each.
    let (each, wide) = tests(2814);
    assert!(each >= 8 && wide == 0, "{each} tests, {wide} of 64 bits");
}
