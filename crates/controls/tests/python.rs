//! The Python parts of the controls where PyTorch and Triton are installed: they need no GPU. The
//! row kernels run in Triton's own interpreter, the worker's cases on a stand-in for a device.

use std::path::Path;
use std::process::Command;

/// Runs a Python test on source files; it says `ok`, or why it was skipped.
fn run(test: &str, sources: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .arg(root.join("tests").join(test))
        .args(sources.iter().map(|source| root.join("src").join(source)))
        .output();
    let Ok(output) = output else {
        println!("skipped: python3 isn't installed");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("ok") || said.starts_with("skipped: "), "{said}");
}

#[test]
fn triton_row_kernels_agree_with_pytorch() {
    run("triton_rows.py", &["triton_rows.py"]);
}

#[test]
fn cases_on_a_device_are_checked_and_timed_by_its_clock() {
    run("torch_worker.py", &["torch_worker.py", "triton_rows.py"]);
}
