//! Tells the linker which version node each exported symbol stands in: the one of `Verbs::SYMBOLS`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

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
    println!("cargo:rerun-if-changed=build.rs");
}
