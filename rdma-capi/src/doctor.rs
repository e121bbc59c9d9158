//! What is wrong with a connection, and what of it would do harm.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use rdma_qp::doctor::{Evidence, diagnose};
use rdma_qp::{Dump, Rtt};

use crate::export::{Out, Room, Text, export, put_text};
use crate::fault::Fault;
use crate::pair::{Pair, any, qp_pair};
use crate::slots::Alone;

/// A round trip in nanoseconds; 0: it is not known.
fn rtt(ns: u64) -> Option<Rtt> {
    (ns != 0).then(|| Rtt::from(Duration::from_nanos(ns)))
}

/// Lines for people.
fn lines<T: ToString>(found: &[T]) -> String {
    found
        .iter()
        .map(|finding| finding.to_string() + "\n")
        .collect()
}

export! {
    /// Says which settings of a Queue Pair are legal and do harm: one a line, what it is, what happens, what to set. Empty where
    /// there is none.
    ///
    /// @param rtt_ns  The round trip to the peer in nanoseconds, where it was measured; 0: not known.
    /// @param text    Arguments and result as qp_query_text().
    fn qp_pair_lint(
        pair: *mut qp_pair as Alone<Pair>,
        rtt_ns: u64,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let found = any!(&pair.qp, qp => qp.lint(rtt(rtt_ns)));
        put_text(&lines(&found), &mut places, needed)
    }

    /// Says why a connection does not work: cause, evidence and cure of each finding, the surest first. Empty where nothing is
    /// found. It looks at nothing but what it is given, so the two ends may be of other machines, and of long ago.
    ///
    /// @param here     One end: what qp_pair_query_json(), qp_query_json() or qp_supervised_query_json() gave.
    /// @param there    The other end; NULL: not known.
    /// @param rtt_ns   The round trip in nanoseconds, where it was measured; 0: not known.
    /// @param as_json  Not 0: as a JSON array of objects with code, weight, end, cause, evidence and cure, for programs.
    /// @param text     Arguments and result as qp_query_text().
    /// @return As qp_query_text(); EINVAL (QP_CODE_TEXT): an end is no such document.
    fn qp_doctor(
        here: *const c_char as Text<'_>,
        there: *const c_char as Option<Text<'_>>,
        rtt_ns: u64,
        as_json: c_int,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let mut evidence = Evidence::default();
        evidence.ends.push(Dump::from_json(here.0)?);
        if let Some(there) = there {
            evidence.ends.push(Dump::from_json(there.0)?);
        }
        evidence.rtt = rtt(rtt_ns);
        let found = diagnose(&evidence);
        let said = match as_json {
            0 => lines(&found),
            _ => serde_json::to_string_pretty(&found).map_err(|error| Fault::range(error.to_string()))?,
        };
        put_text(&said, &mut places, needed)
    }
}
