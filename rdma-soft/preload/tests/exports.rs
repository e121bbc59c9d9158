//! What the shared object exports: the table under the versions of libibverbs, and the few functions of the C library.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use rdma_core_sys::Verbs;

/// What stands in front of the C library, and what libibverbs' own programs call under a version that changes.
const OTHERS: &[&str] = &[
    "dlopen",
    "ibv_query_gid_type",
    "ibv_read_sysfs_file",
    "access",
    "stat",
    "stat64",
    "lstat",
    "lstat64",
    "__xstat",
    "__xstat64",
    "__lxstat",
    "__lxstat64",
    "fstatat",
    "fstatat64",
    "open",
    "open64",
    "openat",
    "openat64",
];

#[test]
fn exactly_the_table_and_what_finds_devices() {
    let listed = match Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(common::library())
        .output()
    {
        Ok(listed) => listed,
        Err(error) => return println!("SKIP preload-exports: readelf does not run: {error}"),
    };
    assert!(listed.status.success(), "{listed:?}");
    let text = String::from_utf8(listed.stdout).expect("text");
    // Number, value, size, type, binding, visibility, section, name.
    let rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let exported: BTreeSet<String> = rows
        .filter(|row| row.len() == 8 && row[4] == "GLOBAL" && row[6] != "UND" && row[6] != "ABS")
        .map(|row| row[7].to_owned())
        .collect();
    let table = Verbs::SYMBOLS
        .iter()
        .map(|(name, version, _)| format!("{name}@@{version}"));
    let wanted: BTreeSet<String> = table
        .chain(OTHERS.iter().map(|&name| name.to_owned()))
        .collect();
    let (missing, extra): (Vec<_>, Vec<_>) = (
        wanted.difference(&exported).collect(),
        exported.difference(&wanted).collect(),
    );
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:?}, extra {extra:?}"
    );
}

/// A program that has libibverbs already must not be kept from loading it, and one that has none must not need it.
#[test]
fn it_needs_no_libibverbs_and_is_none() {
    let listed = match Command::new("readelf")
        .args(["--dynamic", "--wide"])
        .arg(common::library())
        .output()
    {
        Ok(listed) => listed,
        Err(error) => return println!("SKIP preload-needs: readelf does not run: {error}"),
    };
    let text = String::from_utf8(listed.stdout).expect("text");
    assert!(text.contains("(NEEDED)"), "{text}");
    assert!(!text.contains("ibverbs"), "{text}");
}
