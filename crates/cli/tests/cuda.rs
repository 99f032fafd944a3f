//! Plans for an NVIDIA GPU, which need none: what they use, resource tables, and rows and products
//! of unusual shapes.

mod common;

use common::Directory;
use common::schema::check;

const H200: &str = "--target nvidia-h200";

#[test]
fn plans_say_what_they_use() {
    let d = Directory::new("uses");
    for case in ["softmax 37x1537", "gemm 127x193x61"] {
        let text = d.run(&format!("plan {case} {H200}")).ok();
        let line = text.lines().find(|l| l.starts_with("resources: ")).unwrap_or_default();
        assert!(line.contains("registers a thread") && line.contains("groups a core"), "{text}");
        let plan = d.run(&format!("plan {case} {H200} --json")).json();
        check("plan", &plan);
        assert!(plan["resources"]["registers"].as_u64().unwrap() > 0, "{plan}");
        assert_eq!(plan["resources"]["table_sha256"].as_str().map(str::len), Some(64), "{plan}");
    }
    let plan = d.run("plan softmax 37x1537 --target apple-m1-max --json").json();
    assert!(plan["resources"].is_null());
}

#[test]
fn a_table_rejects_a_plan_and_is_part_of_the_key() {
    let d = Directory::new("table");
    let header = "# tilewright-resources-v1\n";
    d.write("empty.tsv", header);
    let plan = |table: &str| d.run(&format!("plan rmsnorm 64x769 {H200} {table} --json")).json();
    let (empty, shipped) = (plan("--resources empty.tsv"), plan(""));
    assert_eq!(empty["resources"]["source"], "closed form");
    assert_ne!(empty["key"], shipped["key"]);
    // A row for the kernel of the winner, which spills.
    let kernel = d.run(&format!("show rmsnorm 64x769 {H200} --resources empty.tsv --emit kernel"));
    let hash = tilewright_plan::Hash256::of(kernel.ok().as_bytes());
    d.write("spills.tsv", format!("{header}{hash}\tptxas 1.0 sm_90\t128\t40\t72\t0\tmade up\n"));
    let spills = plan("--resources spills.tsv");
    assert_ne!(spills["candidates"][0]["kernel_score"], serde_json::Value::Null);
    let all = d.run(&format!("plan rmsnorm 64x769 {H200} --resources spills.tsv --all")).ok();
    assert!(all.contains("resource-spills: as compiled, a thread spills 72 bytes"), "{all}");
    // Another plan can't be told from what is asked for; a good report is shown.
    d.write("good.tsv", format!("{header}{hash}\tptxas 1.0 sm_90\t128\t40\t0\t512\tmade up\n"));
    let good = plan("--resources good.tsv");
    assert_eq!(good["candidates"], empty["candidates"]);
    assert_eq!(good["resources"]["source"], "ptxas 1.0 sm_90");
    assert_eq!(good["resources"]["registers"], 40);
}

#[test]
fn what_is_no_table_is_an_error() {
    let d = Directory::new("no-table");
    let with = |table: &str| d.run(&format!("plan softmax 4x64 {H200} --resources {table}"));
    with("missing.tsv").fails(4, "can't read missing.tsv");
    d.write("other.tsv", "kernel\n");
    with("other.tsv").fails(2, "other.tsv: line 1 of a resource table");
    d.write("row.tsv", "# tilewright-resources-v1\nabc\n");
    with("row.tsv").fails(2, "line 2 of a resource table");
    with(".").fails(2, "is no resource table");
}

#[test]
fn long_rows_and_thin_products_have_plans() {
    let d = Directory::new("long");
    for (case, words) in [
        ("softmax 4x1048576", "a launch a loop"),
        ("relu 1x16777216", "a launch a loop"),
        ("layernorm 2x400001 --dtype bf16", "a launch a loop"),
        ("gemm 1x4096x4096 --trans nt", "operands in place"),
    ] {
        let text = d.run(&format!("plan {case} {H200} --all")).ok();
        assert!(text.contains(words), "{case}: {text}");
        let ptx = d.run(&format!("show {case} {H200} --emit ptx")).ok();
        assert!(ptx.contains(".visible .entry"), "{case}");
    }
}
