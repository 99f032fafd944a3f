//! The check of address spaces: clang reads the text with declarations only, in which every
//! space is a type qualifier of its own. It also finds variables that are read before they have a
//! value.

use std::process::Command;

use crate::build::{Tool, emulator};
use crate::source::{Array, Binding, replace_arrays, signature, without_comments};

/// Clang takes parameters without a space, or with one that a buffer can't be in; Metal doesn't.
fn check_parameters(text: &str) -> Result<(), String> {
    for param in signature(text)?.params {
        let words: Vec<&str> = param.ty.split_whitespace().collect();
        let spaces: &[&str] = match param.binding {
            Binding::Buffer(_) => &["device", "constant"],
            Binding::Threadgroup(_) => &["threadgroup"],
            Binding::Builtin(_) => continue,
        };
        let others = ["device", "constant", "threadgroup"].iter().filter(|s| !spaces.contains(s));
        if others.into_iter().any(|space| words.contains(space)) {
            return Err(format!("a parameter of type `{}`: the space is no buffer's", param.ty));
        }
        if !spaces.iter().any(|space| words.contains(space)) {
            return Err(format!("a parameter of type `{}` names no address space", param.ty));
        }
    }
    Ok(())
}

/// Clang takes a cast in C's form from any space to any; Metal doesn't.
fn check_casts(text: &str) -> Result<(), String> {
    for (line, code) in text.lines().map(without_comments).enumerate() {
        for (end, _) in code.match_indices("*)") {
            let open = code[..end].rfind('(').map_or(0, |at| at + 1);
            let words: Vec<&str> = code[open..end].split_whitespace().collect();
            let is_name = |w: &&str| w.chars().all(|c| c.is_alphanumeric() || c == '_');
            let spaces = ["device", "constant", "threadgroup", "thread"];
            if words.iter().all(is_name) && !words.iter().any(|w| spaces.contains(w)) {
                let to = words.join(" ");
                return Err(format!("line {}: a cast to `{to}*` names no space", line + 1));
            }
        }
    }
    Ok(())
}

/// Checks one kernel's text.
///
/// # Errors
/// What clang says.
pub fn check(clang: &Tool, text: &str) -> Result<(), String> {
    check_parameters(text)?;
    check_casts(text)?;
    let tensors = text.contains("MetalPerformancePrimitives");
    // Only variables that live elsewhere can have a space.
    let text = replace_arrays(text, |_, Array { ty, name, dims, .. }| {
        format!("extern threadgroup {ty} {name}{dims};")
    })?;
    let mut child = Command::new(&clang.command)
        .args(["-x", "c++", "-fsyntax-only", "-nostdinc", "-nostdinc++", "-Wno-unknown-attributes"])
        .args(["-Wno-main", "-Werror=return-type", "-Wno-ignored-attributes"])
        .args(["-Werror=uninitialized", "-Werror=conditional-uninitialized"])
        .arg("-Werror=sometimes-uninitialized")
        .arg(if tensors { "-std=c++20" } else { "-std=c++17" })
        .arg(format!("-D__METAL_VERSION__={}", if tensors { 400 } else { 310 }))
        .arg(format!("-I{}", emulator().join("address").display()))
        .arg("-")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .map_err(|e| format!("{} doesn't start: {e}", clang.command))?;
    if let Some(stdin) = child.stdin.as_mut() {
        use std::io::Write as _;
        stdin.write_all(text.as_bytes()).map_err(|e| format!("clang reads nothing: {e}"))?;
    }
    let output = child.wait_with_output().map_err(|e| format!("clang has no end: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
