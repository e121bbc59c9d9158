//! What the tests share: the library under test, and processes that have it preloaded.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The shared object that was built with this test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let deps = test.parent().expect("a directory");
    let library = deps.join("librdma_soft_preload.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// Runs the test `name` of this program in a process of its own, with the library preloaded. Such a test is marked as ignored.
pub fn preloaded(name: &str, environment: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", name])
        .env("LD_PRELOAD", library())
        .envs(environment.iter().copied())
        .output()
        .expect("a process")
}

/// Runs it, and asserts that it passed.
pub fn passes(name: &str, environment: &[(&str, &str)]) {
    let ended = preloaded(name, environment);
    let (out, err) = (
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr),
    );
    assert!(
        ended.status.success() && out.contains("1 passed"),
        "{name}: {}\n{out}\n{err}",
        ended.status
    );
}
