//! Tells the linker which version node each exported symbol stands in: the one of `Verbs::SYMBOLS`.
//!
//! The compiler has a version script of its own for shared objects, without a name, and GNU ld takes no other one beside that;
//! LLVM's linker does, which comes with the compiler and is the usual one on x86-64 from Rust 1.90 on. So it is asked for.
//! A distribution's own Rust may come without it, and then it is a package of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rdma_core_sys::Verbs;

fn main() {
    let mut nodes: BTreeMap<&str, String> = BTreeMap::new();
    for (symbol, version, _) in Verbs::SYMBOLS {
        let _ = writeln!(nodes.entry(version).or_default(), "    {symbol};");
    }
    let script: String = (nodes.iter())
        .map(|(version, symbols)| format!("{version} {{\n  global:\n{symbols}}};\n"))
        .collect();
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let path = PathBuf::from(out).join("versions.map");
    std::fs::write(&path, script).expect("OUT_DIR can be written");
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        path.display()
    );
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    match linkers() {
        Some(beside) => println!("cargo:rustc-cdylib-link-arg=-B{}", beside.display()),
        None if is_installed("ld.lld") => {}
        None => println!(
            "cargo::warning=the preload library needs LLVM's linker, for the versions of its symbols, and this Rust comes \
             without it: install the package lld"
        ),
    }
    println!("cargo:rerun-if-changed=build.rs");
}

/// Whether the system has that program.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// The directory of the linker that comes with the compiler, by the name that a C compiler looks for. Where it is missing, the
/// system's has to do.
fn linkers() -> Option<PathBuf> {
    let compiler = std::env::var_os("RUSTC")?;
    let told = Command::new(compiler)
        .args(["--print", "sysroot"])
        .output()
        .ok()?;
    let sysroot = String::from_utf8(told.stdout).ok()?;
    let host = std::env::var("HOST").ok()?;
    let dir = Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(host)
        .join("bin/gcc-ld");
    dir.join("ld.lld").is_file().then_some(dir)
}
