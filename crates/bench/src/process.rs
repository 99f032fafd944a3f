//! Workers: each library runs in a process of its own, so that thread pools, heaps and
//! instruction-set choices don't meet. A worker reads commands line by line and answers each with
//! one line.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Variables that make OpenBLAS something else than what it is on this machine.
const OPENBLAS_OVERRIDES: [&str; 2] = ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"];

/// The first argument of a worker process.
pub const WORKER: &str = "--worker";

/// A worker process. It ends when its input is closed.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this program again as the worker of a library with a number of threads.
    ///
    /// # Errors
    /// The operating system can't start it.
    pub fn start(library: &str, threads: usize) -> io::Result<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        let count = threads.to_string();
        command.args([WORKER, library, &count]);
        for name in OPENBLAS_OVERRIDES {
            command.env_remove(name);
        }
        for name in ["OPENBLAS_NUM_THREADS", "MATMUL_NUM_THREADS", "RAYON_NUM_THREADS"] {
            command.env(name, &count);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let gone = || io::Error::other("the worker has no pipe");
        let commands = Some(child.stdin.take().ok_or_else(gone)?);
        let answers = BufReader::new(child.stdout.take().ok_or_else(gone)?);
        Ok(Worker { child, commands, answers })
    }

    /// Sends a command and waits for the answer.
    ///
    /// # Errors
    /// The worker has ended, or it answered `error …`; the text is the error.
    pub fn ask(&mut self, command: &str) -> io::Result<String> {
        let ended = || io::Error::other("the worker has ended");
        let pipe = self.commands.as_mut().ok_or_else(ended)?;
        writeln!(pipe, "{command}")?;
        pipe.flush()?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(ended());
        }
        let answer = answer.trim_end();
        match answer.strip_prefix("error ") {
            Some(text) => Err(io::Error::other(text.to_string())),
            None => Ok(answer.to_string()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A closed input ends the worker's loop.
        self.commands = None;
        let _ = self.child.wait();
    }
}
