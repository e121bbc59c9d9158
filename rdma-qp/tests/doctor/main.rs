//! What the doctor says of dumps: troubles that are made on the software device, and set-ups in which nothing is wrong.
//! What it says of programs under observation is tried by the tests of the command.

#[path = "../common/mod.rs"]
mod common;
#[path = "../fake/mod.rs"]
mod fake;

mod ends;
mod healthy;
mod lives;
mod paths;
mod told;

use rdma_qp::Dump;
use rdma_qp::doctor::{Evidence, Finding, Weight, diagnose};

/// A dump that went through its text, as one of a file did.
fn reread(dump: Dump) -> Dump {
    Dump::from_json(&dump.to_json()).unwrap()
}

/// What is found in these dumps.
fn found(ends: Vec<Dump>) -> Vec<Finding> {
    let mut evidence = Evidence::default();
    evidence.ends = ends.into_iter().map(reread).collect();
    diagnose(&evidence)
}

/// Asserts that the first finding has this code and weight, and says each of the words; gives it.
#[track_caller]
fn first(found: &[Finding], code: &str, weight: Weight, words: &[&str]) -> Finding {
    let Some(top) = found.first() else {
        panic!("nothing was found, not {code}");
    };
    let text = top.to_string();
    assert_eq!((&top.code[..], top.weight), (code, weight), "{found:#?}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    top.clone()
}

fn codes(found: &[Finding]) -> Vec<&str> {
    found.iter().map(|finding| &finding.code[..]).collect()
}
