//! Compiles the driver, and has the linker look for the functions that it calls.

fn main() {
    const DRIVER: &str = "../../../rdma-capi/tests/fuzz.c";
    println!("cargo::rerun-if-changed={DRIVER}");
    println!("cargo::rerun-if-changed=../../../rdma-capi/include/qp.h");
    cc::Build::new()
        .file(DRIVER)
        .include("../../../rdma-capi/include")
        .define("QP_FUZZ_INPUT", None)
        .compile("fuzz_driver");
    // The library comes before the driver on the linker's command line, and nothing in Rust names its functions.
    let text = std::fs::read_to_string(DRIVER).expect("the driver");
    let mut names: Vec<&str> = text
        .match_indices("qp_")
        .filter_map(|(at, _)| {
            text[at..]
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
                .zip(text[..at].chars().last())
        })
        .filter(|&(name, before)| {
            !before.is_alphanumeric() && before != '_' && text.contains(&format!("{name}("))
        })
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        println!("cargo::rustc-link-arg-bins=-Wl,--undefined={name}");
    }
}
