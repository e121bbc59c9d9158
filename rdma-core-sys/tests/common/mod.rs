//! What several test files need: skips that show, and the C compiler.
#![allow(dead_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Says on the real standard output, past the test harness's capture, that a check cannot run here.
pub fn skip(name: &str, reason: &str) {
    // One write, so that lines of tests running beside each other stay whole.
    let line = format!("SKIP {name}: {reason}\n");
    std::io::stdout()
        .write_all(line.as_bytes())
        .expect("standard output is open");
}

/// Runs `cc` in the C locale. `None` when there is no compiler.
pub fn cc(args: &[&str]) -> Option<Output> {
    match Command::new("cc").env("LC_ALL", "C").args(args).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("cc does not run: {error}"),
    }
}

/// A fresh directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}
