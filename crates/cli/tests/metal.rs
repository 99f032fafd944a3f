//! The command plans and shows what the reference system chose on an M1 Max.

mod common;

use common::Directory;
use serde_json::Value;

fn record(name: &str) -> Value {
    let path = format!("{}/../plan/tests/data/m1max/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// With the published profile string, `plan` and the text of `show --emit msl` agree on width,
/// reuse, shared bytes, barriers and collectives for the twelve held-out cases.
#[test]
fn the_held_out_rows_by_the_published_profile() {
    let d = Directory::new("held-out");
    let calibration = record("calibration_record.json");
    let profile = calibration["native_argument"].as_str().unwrap();
    let replay = record("heldout_replay.json");
    for entry in replay["cases"].as_array().unwrap() {
        let op = entry["operation"].as_str().unwrap();
        let options = format!(
            "{op} {}x{} --target apple-m1-max --profile {profile}",
            entry["rows"], entry["columns"]
        );
        let plan = d.run(&format!("plan {options} --all --json")).json();
        let chosen = &plan["candidates"][plan["chosen"].as_u64().unwrap() as usize];
        assert_eq!(chosen["threads"], entry["candidate"]["threads"], "{options}");
        assert_eq!(chosen["cache"], entry["candidate"]["cache"], "{options}");

        let text = d.run(&format!("show {options} --emit msl")).ok();
        let width = format!("max_total_threads_per_threadgroup({})", chosen["threads"]);
        assert!(text.contains(&width), "{options}: {text}");
        let body = text.split("[[kernel").nth(1).unwrap();
        let count = |part: &str| body.matches(part).count() as u64;
        let number = |key: &str| chosen[key].as_u64().unwrap();
        let joined = u64::from(number("subgroups") > 1);
        let collectives = count(" = simd_sum(") + count(" = tw_simd_max(");
        assert_eq!(collectives, number("reductions") * (1 + joined), "{options}: {text}");
        assert_eq!(count("threadgroup_barrier("), number("barriers"), "{options}: {text}");
        // Arrays: `threadgroup float NAME[COUNT];` for the group, `float NAME[COUNT];` for a lane.
        let arrays = |start: &str| -> u64 {
            let lengths = body.lines().filter_map(|l| {
                let declared = l.trim().strip_prefix(start)?.strip_suffix("];")?;
                declared.split_once('[')?.1.parse::<u64>().ok()
            });
            lengths.sum()
        };
        assert_eq!(4 * arrays("threadgroup float "), number("shared_bytes"), "{options}: {text}");
        assert_eq!(arrays("float "), number("private_scalars"), "{options}: {text}");
    }
}
