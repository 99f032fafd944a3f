//! The script that checks and measures everything on a GPU, with stand-ins for what it runs.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const STEPS: [&str; 10] = [
    "check",
    "self-test",
    "products",
    "paths",
    "host",
    "rows",
    "gemm",
    "memcheck",
    "racecheck",
    "initcheck",
];

/// A folder of this test.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Room {
        let name = format!("tilewright-pass-{}-{name}", std::process::id());
        let room = Room(std::env::temp_dir().join(name));
        std::fs::create_dir_all(room.0.join("bin")).unwrap();
        for (name, text) in [
            ("bin/tilewright", "echo 542 of 542 right"),
            ("bin/device_check", "echo \"$1 is right\""),
            ("bin/worker", ""),
            ("bin/gemm_worker", ""),
            ("python", "echo \"$@\"; [ \"$2\" = --warm ] || echo {} >\"$3\""),
            // Runs what it checks: the last two words.
            ("sanitizer", "shift 4; \"$@\""),
        ] {
            room.stand_in(name, text);
        }
        room
    }

    fn stand_in(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The exit status, and the lines of the summary.
    fn pass(&self, seconds: &str, sanitizer: &str) -> (Option<i32>, Vec<String>) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/cuda/device-pass.sh");
        let out = self.0.join("out");
        let status = Command::new("bash")
            .args([Path::new(script), &self.0.join("bin"), &out, Path::new(seconds)])
            .env("PYTHON", self.0.join("python"))
            .env("SANITIZER", self.0.join(sanitizer))
            .output()
            .unwrap()
            .status;
        let summary = std::fs::read_to_string(out.join("summary.txt")).unwrap();
        (status.code(), summary.lines().map(str::to_string).collect())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The step of a line of the summary and what became of it.
fn outcome(line: &str) -> (&str, &str) {
    let mut words = line.split_whitespace();
    (words.next().unwrap_or(""), words.next().unwrap_or(""))
}

#[test]
fn every_step_has_a_line_and_all_right_is_status_0() {
    let room = Room::new("right");
    let (status, lines) = room.pass("60", "sanitizer");
    let found: Vec<(&str, &str)> = lines.iter().map(|line| outcome(line)).collect();
    let wanted: Vec<(&str, &str)> = STEPS.iter().map(|step| (*step, "ok")).collect();
    assert_eq!(found[..STEPS.len()], wanted, "{lines:#?}");
    assert!(lines[1].ends_with("542 of 542 right") && lines[7].ends_with("brief is right"));
    assert!(lines[STEPS.len()].starts_with("all right"), "{lines:#?}");
    assert_eq!(status, Some(0));
    for file in ["rows.json", "products.json"] {
        assert!(room.0.join("out").join(file).exists(), "{file}");
    }
    let log = std::fs::read_to_string(room.0.join("out/log.txt")).unwrap();
    assert!(log.contains("rows.py --warm\n") && log.contains("--warmed\n"), "{log}");
}

#[test]
fn a_failure_is_said_and_the_next_step_begins() {
    let room = Room::new("failure");
    room.stand_in("bin/tilewright", "echo 541 of 542 right; exit 1");
    let (status, lines) = room.pass("60", "nowhere");
    for (line, step) in lines.iter().zip(STEPS) {
        let wanted = match step {
            "self-test" => "FAILED",
            "memcheck" | "racecheck" | "initcheck" => "skipped",
            _ => "ok",
        };
        assert_eq!(outcome(line), (step, wanted), "{lines:#?}");
    }
    assert!(lines[1].ends_with("541 of 542 right"), "{lines:#?}");
    assert!(lines[7].ends_with("nowhere isn't here"), "{lines:#?}");
    assert!(lines[STEPS.len()].starts_with("4 steps"), "{lines:#?}");
    assert_eq!(status, Some(1));
}

#[test]
fn a_step_that_overruns_is_ended_and_the_others_are_skipped() {
    let room = Room::new("overrun");
    room.stand_in("bin/device_check", "echo begun; exec sleep 600");
    let (status, lines) = room.pass("1", "sanitizer");
    assert_eq!(outcome(&lines[0]), ("check", "overran"), "{lines:#?}");
    assert!(lines[0].ends_with("begun"), "{lines:#?}");
    for line in &lines[1..STEPS.len()] {
        assert_eq!(outcome(line).1, "skipped", "{lines:#?}");
    }
    assert_eq!(status, Some(1));
}
