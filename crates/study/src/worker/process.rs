//! A worker process as its study sees it: requests with a deadline, and a new process after a
//! crash or a hang.
//!
//! A worker only runs while it owes an answer. Between answers its whole process group is stopped:
//! the thread pools of many libraries spin for a while after a call, and would otherwise take the
//! cores from whatever is measured next.

use super::message::{Reply, Request};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How to start a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launch {
    /// Program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables set for it beyond those of this process.
    pub env: Vec<(String, String)>,
    /// Variables of this process that it doesn't get.
    pub unset: Vec<String>,
}

/// Why a request has no reply. The process is gone.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// It died.
    #[error("the worker process ended with {0}")]
    Crashed(String),
    /// It didn't answer in time and was killed.
    #[error("no answer within {0} ms")]
    Hung(u128),
    /// It couldn't be started.
    #[error("the worker process can't be started: {0}")]
    Start(String),
    /// It says something that isn't understood.
    #[error("unexpected answer: {0}")]
    Protocol(String),
}

/// A running worker.
///
/// It leads a process group of its own, so that helpers that it starts are stopped and killed with
/// it. When this program dies, the system sends hang-up to the stopped members of the group, which
/// ends them.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    replies: Receiver<String>,
}

/// Longest line of a reply.
const MAX_LINE: u64 = 64 << 20;

impl Process {
    /// Starts a worker. What it says first is its first reply.
    ///
    /// # Errors
    /// [`Failure::Start`].
    pub fn start(launch: &Launch) -> Result<Self, Failure> {
        let start = |e: std::io::Error| Failure::Start(e.to_string());
        let mut command = Command::new(&launch.program);
        launch.unset.iter().for_each(|name| {
            command.env_remove(name);
        });
        command
            .args(&launch.args)
            .envs(launch.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(start)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            let _ = child.kill();
            return Err(Failure::Start("no pipes".to_string()));
        };
        let (send, replies) = channel();
        std::thread::Builder::new()
            .name("replies".to_string())
            .spawn(move || {
                let mut reader = BufReader::new(stdout);
                loop {
                    let mut line = String::new();
                    match std::io::Read::take(&mut reader, MAX_LINE).read_line(&mut line) {
                        Ok(n) if n > 0 && line.ends_with('\n') => {
                            if send.send(line).is_err() {
                                break;
                            }
                        }
                        _ => break,
                    }
                }
            })
            .map_err(start)?;
        Ok(Process { child, stdin, replies })
    }

    /// Sends a request and waits for its first reply.
    ///
    /// # Errors
    /// As [`Process::next`].
    pub fn request(&mut self, request: &Request, deadline: Duration) -> Result<Reply, Failure> {
        self.send(request)?;
        self.next(deadline)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The process died.
    pub fn send(&mut self, request: &Request) -> Result<(), Failure> {
        self.signal(Signal::Continue);
        let line = serde_json::to_string(request).map_err(|e| Failure::Protocol(e.to_string()))?;
        let sent = writeln!(self.stdin, "{line}").and_then(|()| self.stdin.flush());
        sent.map_err(|_| self.crashed())
    }

    /// Waits for the next reply. A process that says nothing in time is killed; one that has said
    /// all that it owes is stopped until the next request.
    ///
    /// # Errors
    /// It died, hangs, or says something else.
    pub fn next(&mut self, deadline: Duration) -> Result<Reply, Failure> {
        let until = Instant::now() + deadline;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left) {
                // Lines of other programs, such as a runtime's greeting, aren't replies.
                Ok(line) if !line.trim_start().starts_with('{') => {}
                Ok(line) => {
                    let reply: Reply = serde_json::from_str(&line)
                        .map_err(|e| Failure::Protocol(e.to_string()))?;
                    if reply.is_last() {
                        self.signal(Signal::Stop);
                    }
                    return Ok(reply);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    return Err(Failure::Hung(deadline.as_millis()));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.crashed()),
            }
        }
    }

    fn crashed(&mut self) -> Failure {
        // It may only have closed its pipes.
        self.signal(Signal::Kill);
        let _ = self.child.kill();
        Failure::Crashed(match self.child.wait() {
            Ok(status) => describe(status),
            Err(_) => "an unknown status".to_string(),
        })
    }

    fn kill(&mut self) {
        self.signal(Signal::Kill);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal to the whole group. It may have ended already, which is no error.
    #[cfg(unix)]
    fn signal(&self, signal: Signal) {
        let number = match signal {
            Signal::Stop => libc::SIGSTOP,
            Signal::Continue => libc::SIGCONT,
            Signal::Kill => libc::SIGKILL,
        };
        if let Ok(group) = libc::pid_t::try_from(self.child.id())
            && group > 1
        {
            // SAFETY: a system call without pointers. The child hasn't been waited for while this
            // value is in use, so its number can't have passed to another group.
            unsafe { libc::kill(-group, number) };
        }
    }

    #[cfg(not(unix))]
    fn signal(&self, _signal: Signal) {}
}

#[derive(Clone, Copy)]
enum Signal {
    Stop,
    Continue,
    Kill,
}

fn describe(status: std::process::ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("signal {signal}");
    }
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => "an unknown status".to_string(),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A worker ends by itself when its input closes; one that is busy or hangs must not
        // outlive the study.
        self.kill();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let launch = Launch {
            program: "/bin/sh".into(),
            args: vec!["-c".to_string(), script.to_string()],
            env: vec![("GREETING".to_string(), "ready".to_string())],
            unset: vec!["HOME".to_string()],
        };
        Process::start(&launch).unwrap()
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn replies_are_read_past_other_output() {
        let ready = "echo \"{\\\"reply\\\":\\\"$GREETING\\\",\\\"version\\\":null}\"";
        // It is stopped once it has said all that it owes, and ends when it goes on.
        let mut process = shell(&format!("echo hello; {ready}; read x"));
        assert_eq!(process.next(LONG), Ok(Reply::Ready { version: None }));
        let ended = process.request(&Request::Exit, LONG);
        assert_eq!(ended, Err(Failure::Crashed("exit code 0".to_string())));
        let mut process =
            shell("echo \"{\\\"reply\\\":\\\"ready\\\",\\\"version\\\":\\\"home$HOME\\\"}\"");
        assert_eq!(process.next(LONG), Ok(Reply::Ready { version: Some("home".to_string()) }));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_worker_runs_only_while_it_owes_an_answer() {
        let state = |process: &Process| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id()));
            stat.unwrap().rsplit(") ").next().and_then(|s| s.chars().next()).unwrap()
        };
        let wait_for = |process: &Process, stopped: bool| {
            let until = Instant::now() + LONG;
            while (state(process) == 'T') != stopped {
                assert!(Instant::now() < until, "state {}", state(process));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let ready = r#"echo '{"reply":"ready","version":null}'"#;
        let mut process = shell(&format!("{ready}; read x; {ready}; while :; do :; done"));
        assert_eq!(process.next(LONG), Ok(Reply::Ready { version: None }));
        wait_for(&process, true);
        process.send(&Request::Exit).unwrap();
        assert_eq!(process.next(LONG), Ok(Reply::Ready { version: None }));
        wait_for(&process, true);
        process.signal(Signal::Continue);
        wait_for(&process, false);
    }

    #[test]
    fn crashes_hangs_and_nonsense_have_their_errors() {
        let mut process = shell("kill -SEGV $$");
        assert_eq!(process.next(LONG), Err(Failure::Crashed("signal 11".to_string())));
        let mut process = shell("exec sleep 1000");
        let hung = process.request(&Request::Exit, Duration::from_millis(50));
        assert_eq!(hung, Err(Failure::Hung(50)));
        let mut process = shell("echo '{\"reply\":\"what\"}'; read x");
        assert!(matches!(process.next(LONG), Err(Failure::Protocol(_))));
        let missing = Launch { program: "/nowhere/worker".into(), ..Launch::default() };
        assert!(matches!(Process::start(&missing), Err(Failure::Start(_))));
    }
}
