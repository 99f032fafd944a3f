//! `tilewright calibrate` as a user runs it.

mod common;

use common::Directory;

fn data(name: &str) -> String {
    format!("{}/../plan/tests/data/m1max/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn sample(name: &str) -> String {
    format!("{}/../study/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_reference_procedure_prints_its_table() {
    let d = Directory::new("calibrate-reference");
    let rows = data("reduction_search.json");
    let text = d.run(&format!("calibrate {rows} --procedure reference --all")).ok();
    let chosen = text.lines().find(|l| l.contains("512*")).unwrap();
    for figure in ["4.81 %", "22.60 %", "17.58 %"] {
        assert!(chosen.contains(figure), "{chosen}");
    }
    for capacity in [64, 128, 256, 1024, 2048] {
        assert!(text.contains(&format!("capacity {capacity}: folds")), "{capacity}");
    }
    assert_eq!(
        text.lines().filter(|l| l.contains("measured") && l.contains("us  best")).count(),
        84
    );
    assert!(text.contains("aren't held out in the strict sense"));
}

#[test]
fn the_matrix_record_prints_the_regrets_of_the_scores() {
    let d = Directory::new("calibrate-matrix");
    let text = d.run(&format!("calibrate {}", data("gemm_search.json"))).ok();
    let line = |name: &str| text.lines().find(|l| l.contains(name) && l.contains("mean")).unwrap();
    for figure in ["8.82 %", "2.59 %", "34.37 %"] {
        assert!(line("matrix-mpp-v2").contains(figure), "{}", line("matrix-mpp-v2"));
    }
    assert!(line("matrix-mpp-v1").contains("85.36 %"));
}

#[test]
fn the_guard_is_replayed() {
    let d = Directory::new("calibrate-replay");
    let (rows, replay) = (data("reduction_search.json"), data("heldout_replay.json"));
    let run = format!("calibrate {rows} --procedure reference --replay {replay}");
    let text = d.run(&run).ok();
    assert!(text.contains("margin 1.2223"), "{text}");
    assert!(text.contains("accepts 6, of them 0 losers; keeps 6 of 9 wins"), "{text}");
}

#[test]
fn a_profile_that_was_written_plans() {
    let d = Directory::new("calibrate-profile");
    for (record, op) in
        [("reduction_search.json", "softmax 37x1537"), ("gemm_search.json", "gemm 512x512x512")]
    {
        d.run(&format!("calibrate {} -o p.json", data(record))).ok();
        let plan = format!("plan {op} --target apple-m1-max --policy whole-launch");
        let text = d.run(&format!("{plan} --profile p.json")).ok();
        assert!(text.contains("predicted") && text.contains("unit us"), "{text}");
        // Another machine's profile is refused.
        let other = format!("plan {op} --policy whole-launch --profile p.json");
        let run = d.run(&other);
        assert_eq!(run.code(), 2);
        assert!(run.err().contains("apple-m1-max"), "{}", run.err());
        assert_eq!(d.run(&plan).code(), 2);
    }
    let reference =
        format!("calibrate {} --procedure reference -o s.json", data("reduction_search.json"));
    d.run(&reference).ok();
    let plan = "plan softmax 37x1537 --target apple-m1-max --policy reduction-service";
    let by_file = d.run(&format!("{plan} --profile s.json --json")).json();
    let built_in = d.run(&format!("{plan} --json")).json();
    assert_eq!(by_file["candidates"][0]["threads"], built_in["candidates"][0]["threads"]);
}

#[test]
fn what_is_exported_is_read_again() {
    let d = Directory::new("calibrate-export");
    d.run(&format!("calibrate {} --export rows.csv", data("reduction_search.json"))).ok();
    let own = d.run("calibrate rows.csv --json").json();
    let record = d.run(&format!("calibrate {} --json", data("reduction_search.json"))).json();
    assert_eq!(own["model"], record["model"]);
    assert_eq!(own["comparisons"][0], record["comparisons"][0]);
    let space = sample("space.t4.json");
    d.run(&format!("calibrate {space} --export again.json")).ok();
    assert_eq!(
        d.run("calibrate again.json --json").json(),
        d.run(&format!("calibrate {space} --json")).json()
    );
    assert!(d.run(&format!("calibrate {space} --transfer again.json")).ok().contains("0.00 %"));
}

#[test]
fn bad_input_gives_one_clear_error() {
    let d = Directory::new("calibrate-bad");
    let rows = data("reduction_search.json");
    let replay = data("heldout_replay.json");
    d.write("empty.json", "{}");
    d.write("cut.json", "{\"trials\": [");
    d.write("deep.json", "[".repeat(100));
    d.write("none.csv", "#tilewright-training-v1,gpu-rows,t\ncase\n");
    for (arguments, code, says) in [
        ("missing.json".to_string(), 4, "missing.json"),
        ("empty.json".to_string(), 2, "no known format"),
        ("cut.json".to_string(), 2, "not JSON"),
        ("deep.json".to_string(), 2, "nested deeper"),
        ("none.csv".to_string(), 2, "line 2"),
        (replay.clone(), 2, "--replay"),
        (format!("{rows} --replay {rows}"), 2, "no replay record"),
        (format!("{rows} --transfer {rows}"), 2, "--transfer"),
        (format!("{rows} -o no/such/folder/p.json"), 4, "p.json"),
        (format!("{rows} --hold-out 1x1"), 2, "1x1"),
        (format!("{} -o p.json", sample("space.t4.json")), 2, "no inputs"),
        (format!("{} --procedure reference", sample("training.csv")), 2, "row record"),
    ] {
        let run = d.run(&format!("calibrate {arguments}"));
        assert_eq!(run.code(), code, "{arguments}: {}", run.err());
        assert!(run.err().contains(says), "{arguments}: {}", run.err());
        assert_eq!(run.err().lines().count(), 1, "{}", run.err());
        assert_eq!(run.out(), "");
    }
    assert_eq!(d.files(), ["cut.json", "deep.json", "empty.json", "none.csv"]);
}
