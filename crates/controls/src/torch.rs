//! PyTorch, eager and compiled, with cuBLAS and Triton on CUDA devices, in a Python process that
//! follows the same phases.

/// The Python program: run as `python3 -c SCRIPT MODE DEVICE THREADS KERNELS`. It reads requests
/// and writes replies as the study's workers do. Where a library or the device isn't there it says
/// so and ends.
pub const SCRIPT: &str = include_str!("torch_worker.py");

/// The module of Triton kernels, for the last argument of [`SCRIPT`].
pub const KERNELS: &str = include_str!("triton_rows.py");

/// The mode of a control's name.
pub fn mode(name: &str) -> Option<&'static str> {
    match name {
        "torch-eager" => Some("eager"),
        "torch-compile" => Some("compile"),
        "cublas" => Some("cublas"),
        "triton" => Some("triton"),
        _ => None,
    }
}

/// Arguments of `python3` for a mode on a device: `cpu`, `cuda` or `cuda:N`.
pub fn arguments(mode: &str, device: &str, threads: u32) -> Vec<String> {
    let threads = threads.to_string();
    ["-c", SCRIPT, mode, device, &threads, KERNELS].map(str::to_string).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// The first line of a worker, which ends when told to; `None` without `python3`.
    fn greeting(mode: &str, device: &str) -> Option<String> {
        let child = Command::new("python3")
            .args(arguments(mode, device, 1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            println!("python3 isn't installed");
            return None;
        };
        if let Some(stdin) = child.stdin.as_mut() {
            // It may have ended already, having found no torch.
            let _ = stdin.write_all(b"{\"do\":\"exit\"}\n");
        }
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(child.wait().unwrap().success());
        Some(line)
    }

    #[test]
    fn the_script_greets_and_ends() {
        let Some(line) = greeting("eager", "cpu") else { return };
        let known = line.contains("\"reply\": \"ready\"") || line.contains("\"unavailable\"");
        assert!(known, "{line}");
    }

    #[test]
    fn a_missing_device_is_said_in_one_sentence() {
        for mode in ["eager", "cublas", "triton"] {
            let Some(line) = greeting(mode, "cuda:63") else { return };
            assert!(line.contains("\"unavailable\""), "{line}");
            let said = line.contains("isn't installed") || line.contains("no CUDA device 63");
            assert!(said, "{line}");
        }
    }

    #[test]
    fn modes_follow_from_names() {
        assert_eq!(mode("torch-eager"), Some("eager"));
        assert_eq!(mode("torch-compile"), Some("compile"));
        assert_eq!(mode("torch"), None);
    }
}
