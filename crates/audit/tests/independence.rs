//! The audit shares nothing with what it audits: `cargo metadata` shows no crate of the workspace
//! among everything that it is built from.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn it_depends_on_no_crate_of_the_workspace() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_string());
    let version = Command::new(rustc).arg("-vV").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Without the filter cargo would ask for crates of other systems, which nobody downloaded.
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", host])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let texts = |v: &Value| -> BTreeSet<String> {
        v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_string()).collect()
    };
    let members = texts(&metadata["workspace_members"]);
    let own = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|p| p["name"] == "tilewright-audit")
        .unwrap();
    let own = own["id"].as_str().unwrap().to_string();
    assert!(members.contains(&own) && members.len() > 1);

    // Everything that it needs, directly or not.
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let mut reached = BTreeSet::from([own.clone()]);
    let mut open = vec![own.clone()];
    while let Some(id) = open.pop() {
        let node = nodes.iter().find(|n| n["id"] == id.as_str()).unwrap();
        for dependency in texts(&node["dependencies"]) {
            if reached.insert(dependency.clone()) {
                open.push(dependency);
            }
        }
    }
    assert!(reached.len() > 4, "{reached:?}");
    let shared: Vec<&String> = reached.intersection(&members).filter(|id| **id != own).collect();
    assert!(shared.is_empty(), "{shared:?}");
}
