//! The process that runs cases, seen from outside.

use super::SelfTestArgs;
use super::report::Case;
use crate::error::CliError;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How a process ended while cases were left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lost {
    /// By itself, in these words.
    Ended(String),
    /// It was ended after this time without a line.
    Late(Duration),
}

/// Runs every case of the list: hands on each in order, in as many processes as it takes.
///
/// # Errors
/// A process can't be started.
pub fn collect(
    program: &Path,
    args: &SelfTestArgs,
    names: &[String],
    deadline: Duration,
    mut each: impl FnMut(Case),
) -> Result<(), CliError> {
    let mut done = 0;
    while done < names.len() {
        let mut process = Process::start(program, args, done)?;
        let lost = process.cases(deadline, |case| {
            done += 1;
            each(case);
        });
        // The process is gone: at the end of the list, or in the middle of a case.
        if let Some(name) = names.get(done) {
            done += 1;
            each(Case::lost(name, lost));
        }
    }
    Ok(())
}

/// A running process.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts the process at a position of the list.
    ///
    /// # Errors
    /// The operating system can't start it.
    fn start(program: &Path, args: &SelfTestArgs, from: usize) -> Result<Self, CliError> {
        let mut command = Command::new(program);
        command.args(["self-test", "--device", &args.device, "--worker", &from.to_string()]);
        if args.brief {
            command.arg("--brief");
        }
        if let Some(text) = &args.case {
            command.args(["--case", text]);
        }
        let failed = |e: std::io::Error| CliError::Io(format!("can't start a process: {e}"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let Some(out) = child.stdout.take() else {
            return Err(CliError::Io("a process has no output".to_string()));
        };
        Ok(Process { child, lines: lines(out) })
    }

    /// Hands on each case as it ends, until the process has.
    fn cases(&mut self, deadline: Duration, mut each: impl FnMut(Case)) -> Lost {
        loop {
            match self.lines.recv_timeout(deadline) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(case) => each(case),
                    Err(e) => {
                        self.end();
                        return Lost::Ended(format!("its process printed something else: {e}"));
                    }
                },
                Err(RecvTimeoutError::Timeout) => {
                    self.end();
                    return Lost::Late(deadline);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let how = match self.child.wait() {
                        Ok(status) => format!("its process ended: {status}"),
                        Err(e) => format!("its process is lost: {e}"),
                    };
                    return Lost::Ended(how);
                }
            }
        }
    }

    /// Ends the process. It may have ended by itself.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The lines of a process, read by a thread so that waiting for one has a limit.
fn lines(out: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::report::Verdict;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_case_that_ends_its_process_or_hangs_does_not_stop_the_list() {
        let folder = std::env::temp_dir().join(format!("self-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("worker");
        // Passes a case and dies in the next; hangs; then prints what is no case; then ends well.
        let passed =
            |id: &str| serde_json::to_string(&Case::ended(id, Verdict::Passed, None)).unwrap();
        let script = format!(
            "#!/bin/sh\nfor at; do :; done\ncase $at in\n0) echo '{}'; exit 7;;\n2) exec sleep \
             600;;\n3) echo hello;;\n4) echo '{}';;\nesac\n",
            passed("a"),
            passed("e")
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let args = SelfTestArgs {
            device: "cpu".to_string(),
            output: "r.json".into(),
            brief: false,
            case: None,
            deadline: 1,
            json: false,
            worker: None,
        };
        let names = ["a", "b", "c", "d", "e"].map(str::to_string);
        let mut cases = Vec::new();
        let deadline = Duration::from_secs(1);
        collect(&program, &args, &names, deadline, |case| cases.push(case)).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let ids: Vec<&str> = cases.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids, names);
        let verdicts: Vec<Verdict> = cases.iter().map(|c| c.verdict).collect();
        use Verdict::{Crashed, Passed, TimedOut};
        assert_eq!(verdicts, [Passed, Crashed, TimedOut, Crashed, Passed]);
        let detail = |at: usize| cases[at].detail.clone().unwrap_or_default();
        assert!(detail(1).contains("exit status: 7"), "{}", detail(1));
        assert!(detail(2).contains("no result within 1 s"), "{}", detail(2));
        assert!(detail(3).contains("printed something else"), "{}", detail(3));
        let nothing = collect(Path::new("/nothing/here"), &args, &names, deadline, |_| ());
        assert!(matches!(nothing, Err(CliError::Io(_))));
    }
}
