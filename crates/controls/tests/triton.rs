//! The Triton kernels in Triton's own interpreter, where it is installed: they need no GPU then.

use std::path::Path;
use std::process::Command;

#[test]
fn row_kernels_agree_with_pytorch() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .arg(root.join("tests/triton_rows.py"))
        .arg(root.join("src/triton_rows.py"))
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
