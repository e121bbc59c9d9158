//! The receiving process that `qp copy SRC DST` starts.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::console::Console;
use crate::failure::{Failure, told};

/// What a waiting receiver says before its address.
pub const LISTENING: &str = "listening on ";

/// How long it may take to end by itself after the copy.
const PATIENCE: Duration = Duration::from_secs(3);

/// A secret for one copy. The port of the receiver is open to every user of this machine: the secret, which goes to it
/// through a pipe, keeps others from writing to the destination.
///
/// # Errors
/// The system has no random bytes.
pub fn new_secret() -> Result<String, Failure> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::told(format!("no random secret: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// The secret that the process which started this one gave to it.
///
/// # Errors
/// It gave none.
pub fn given_secret() -> Result<String, Failure> {
    let mut secret = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut secret)
        .map_err(told)?;
    match secret.trim_end() {
        "" => Err(Failure::told(
            "a receiver is started as a child by `qp copy SRC DST` only",
        )),
        secret => Ok(secret.to_owned()),
    }
}

/// The running receiver. It ends at the latest when this is dropped.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    /// Where it waits.
    pub address: String,
    complaints: Option<JoinHandle<String>>,
}

impl Child {
    /// Starts it with `options`, to receive into `destination` from whoever knows `secret`; its steps appear on
    /// `console`.
    ///
    /// # Errors
    /// It cannot be started, or ends before it waits for the sender.
    pub fn start(
        options: &[OsString],
        destination: &Path,
        secret: &str,
        console: &Arc<Console>,
    ) -> Result<Child, Failure> {
        let program = std::env::current_exe().map_err(told)?;
        let mut command = Command::new(program);
        command.args(options).arg("--").arg(destination);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| {
            Failure::told(format!("cannot start the receiving process: {error}"))
        })?;
        if let Some(mut input) = process.stdin.take() {
            // A process that ends before it reads this says why by itself.
            let _ = writeln!(input, "{secret}");
        }
        let (output, errors) = (process.stdout.take(), process.stderr.take());
        let complaints = errors.map(|mut errors| {
            thread::spawn(move || {
                let mut text = String::new();
                let _ = errors.read_to_string(&mut text);
                text.trim_start_matches("qp: ").trim_end().to_owned()
            })
        });
        let mut child = Child {
            process,
            address: String::new(),
            complaints,
        };
        let mut lines = output
            .map(BufReader::new)
            .into_iter()
            .flat_map(BufReader::lines)
            .map_while(Result::ok);
        match lines
            .next()
            .as_deref()
            .and_then(|line| line.strip_prefix(LISTENING))
        {
            Some(address) => child.address = address.to_owned(),
            None => {
                let why = child.complaint();
                return Err(Failure::told(format!(
                    "the receiving process did not start: {why}"
                )));
            }
        }
        let console = console.clone();
        thread::spawn(move || lines.for_each(|line| console.step_of("receiver", &line)));
        Ok(child)
    }

    /// What it said on its standard error, once it has ended.
    fn complaint(&mut self) -> String {
        let ended = self.wait();
        let said = self
            .complaints
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default();
        match (said.is_empty(), ended) {
            (false, _) => said,
            (true, Some(status)) => status.to_string(),
            (true, None) => "it does not end".to_owned(),
        }
    }

    /// Adds what only it knows to the reason of a failure.
    pub fn explain(mut self, failure: Failure) -> Failure {
        let Failure::Told(why) = &failure else {
            return failure;
        };
        let said = self.complaint();
        if why.contains(&said) {
            failure
        } else {
            Failure::Told(format!("{why} (the receiving process: {said})"))
        }
    }

    /// Waits until it has ended by itself, or ends it.
    fn wait(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.process.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Ok(status) => return status,
                Err(_) => break,
            }
        }
        let _ = self.process.kill();
        self.process.wait().ok()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.wait();
    }
}
