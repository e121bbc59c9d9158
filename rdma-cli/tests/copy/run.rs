//! Running the command, and looking at what it left.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{Pid, geteuid, kill_process};
use serde_json::Value;

/// Nothing here takes so long unless it hangs.
const HANGS: Duration = Duration::from_secs(120);

/// A directory of one test, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("copy-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with `content`.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        std::fs::write(self.at(name), content).unwrap();
        self.at(name)
    }

    pub fn directory(&self, name: &str) -> PathBuf {
        std::fs::create_dir(self.at(name)).unwrap();
        self.at(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        open_up(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lets anybody but root remove what is in directories that may not be written to.
fn open_up(directory: &Path) {
    let _ = std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700));
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

/// Names in a directory, hidden ones included, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// `len` bytes that do not repeat (xorshift; the same for the same seed).
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// `qp copy` with these words, not started yet.
pub fn command<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qp"));
    command
        .arg("copy")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A user who may do no more than others, where the tests run as root: permissions say nothing to root.
const NOBODY: u32 = 65534;

/// A directory for [`as_user`] to write to. `None`, which is said: such a user could not even run the command.
pub fn inbox_of_user(scratch: &Scratch) -> Option<PathBuf> {
    let inbox = scratch.directory("inbox");
    if !geteuid().is_root() {
        return Some(inbox);
    }
    std::os::unix::fs::chown(&inbox, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut looks = Command::new("sh");
    looks.args(["-c", r#"test -x "$1" -a -w "$2""#, "sh"]);
    looks.arg(env!("CARGO_BIN_EXE_qp")).arg(&inbox);
    if as_user(&mut looks).status().unwrap().success() {
        return Some(inbox);
    }
    println!(
        "SKIP copies of an ordinary user: user {NOBODY} cannot reach the directory of the tests"
    );
    None
}

/// The same command as a user who is not root.
pub fn as_user(command: &mut Command) -> &mut Command {
    match geteuid().is_root() {
        true => command.uid(NOBODY).gid(NOBODY),
        false => command,
    }
}

/// Runs `command` to its end.
pub fn run(mut command: Command) -> Output {
    finish(command.spawn().unwrap())
}

/// Waits for the end of `child`; one that hangs is killed, and fails the test.
pub fn finish(mut child: Child) -> Output {
    let until = Instant::now() + HANGS;
    // Two pipes are read at the same time, so that the child never waits for its reader.
    let mut errors = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        errors.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let mut output = child.stdout.take().unwrap();
    let other = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).unwrap();
        bytes
    });
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = Output {
        status: child.wait().unwrap(),
        stdout: other.join().unwrap(),
        stderr: reader.join().unwrap(),
    };
    assert!(!stderr(&ended).contains("panicked"), "{}", stderr(&ended));
    ended
}

fn listening(directory: &Path) -> Command {
    command([
        "--listen".as_ref(),
        "127.0.0.1:0".as_ref(),
        directory.as_os_str(),
    ])
}

/// Starts a receiver into `directory`; gives it and the address where it waits.
pub fn listen(directory: &Path) -> (Child, String) {
    wait_for_it(listening(directory), "")
}

/// Starts a receiver whose device has the address `device`.
pub fn listen_at(directory: &Path, device: &str) -> (Child, String) {
    let mut command = listening(directory);
    command.env("RDMA_SOFT_ADDR", device);
    wait_for_it(command, "")
}

/// Starts a receiver, which may read `input`; gives it and the address where it waits.
pub fn wait_for_it(mut command: Command, input: &str) -> (Child, String) {
    let mut child = command.spawn().unwrap();
    if let Some(mut pipe) = child.stdin.take() {
        writeln!(pipe, "{input}").unwrap();
    }
    let address = address_in(child.stdout.as_mut().unwrap());
    (child, address)
}

/// The address in the line with which a receiver says where it waits.
pub fn address_in(output: impl Read) -> String {
    let mut line = String::new();
    // One byte at a time: what comes later is for somebody else to read.
    BufReader::with_capacity(1, output)
        .read_line(&mut line)
        .unwrap();
    let address = line
        .strip_prefix("listening on ")
        .and_then(|rest| rest.split_whitespace().next());
    address
        .unwrap_or_else(|| panic!("it said {line:?}"))
        .to_owned()
}

pub fn stderr(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

/// The report of a copy that must have succeeded.
pub fn report(ended: &Output) -> Value {
    assert!(
        ended.status.success(),
        "{:?}: {}",
        ended.status,
        stderr(ended)
    );
    let text = String::from_utf8(ended.stdout.clone()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Copies with `--json` and more `options`; gives the report.
pub fn copy(source: &Path, destination: &Path, options: &[&str]) -> Value {
    let words = [
        source.as_os_str(),
        destination.as_os_str(),
        OsStr::new("--json"),
    ];
    report(&run(command(
        words.into_iter().chain(options.iter().map(OsStr::new)),
    )))
}

/// Asserts that `ended` failed with each of `words` in its error; gives the error.
pub fn refused(ended: &Output, words: &[&str]) -> String {
    let said = stderr(ended);
    assert!(
        ended.status.code().is_some_and(|code| code != 0),
        "{:?}: {said}",
        ended.status
    );
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
    said
}

/// Sends `signal` to `child`.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}
