//! PyTorch, eager and compiled, in a Python process that follows the same phases.

/// The Python program: run as `python3 -c SCRIPT MODE THREADS` with mode `eager` or `compile`.
/// It reads requests and writes replies as the study's workers do. Where torch isn't installed
/// it says so and ends.
pub const SCRIPT: &str = include_str!("torch_worker.py");

/// The mode of a control's name.
pub fn mode(name: &str) -> Option<&'static str> {
    match name {
        "torch-eager" => Some("eager"),
        "torch-compile" => Some("compile"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn the_script_greets_and_ends() {
        let child = Command::new("python3")
            .args(["-c", SCRIPT, "eager", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            println!("python3 isn't installed");
            return;
        };
        if let Some(stdin) = child.stdin.as_mut() {
            // It may have ended already, having found no torch.
            let _ = stdin.write_all(b"{\"do\":\"exit\"}\n");
        }
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let known = line.contains("\"reply\": \"ready\"") || line.contains("\"unavailable\"");
        assert!(known, "{line}");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn modes_follow_from_names() {
        assert_eq!(mode("torch-eager"), Some("eager"));
        assert_eq!(mode("torch-compile"), Some("compile"));
        assert_eq!(mode("torch"), None);
    }
}
