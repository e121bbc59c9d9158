//! What one failure does to others: a test for each sentence of `src/isolation.md`, of the name that stands there.

#[path = "../common/mod.rs"]
mod common;
mod dead_process;
mod destroyed_srq;
mod empty_srq;
mod pair;
mod target;

use std::collections::BTreeSet;

/// A sentence without a test is a claim, and a test without a sentence helps nobody who builds a mesh.
#[test]
fn every_sentence_has_its_test() {
    let page = include_str!("../../src/isolation.md");
    // Names of tests are the only words in backticks with an underscore.
    let named: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let named: BTreeSet<&str> = named
        .into_iter()
        .filter(|word| word.contains('_') && !word.contains('/'))
        .collect();
    let sources = [
        include_str!("dead_process.rs"),
        include_str!("destroyed_srq.rs"),
        include_str!("empty_srq.rs"),
        include_str!("pair.rs"),
        include_str!("target.rs"),
    ];
    let tests: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| source.split("#[test]\nfn ").skip(1))
        .filter_map(|rest| rest.split('(').next())
        .collect();
    assert_eq!(named, tests);
}
