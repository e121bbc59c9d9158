//! The one conformance suite (program `conformance`).
//!
//! [`checks`] gives its checks, whose bodies take any device; [`run`] runs them on the arms and says how they came out.
//! Each check is a rule of verbs or stricter by us; only the first kind is expected of other devices, where
//! [`DIFFERENCES`] lists what is known to be otherwise.

mod arm;
mod check;
mod cq;
mod difference;
mod events;
mod extended;
pub mod matrix;
mod memory;
mod multicast;
mod pair;
mod posts;
mod queries;
mod run;
mod safe;
mod setting;
mod shapes;
mod srq;
mod statuses;
mod windows;
mod xrc;

pub use arm::{Arm, GRHS, MEMORY, PORT, SOURCE, Side, TARGET};
pub use check::{Check, Done, Outcome, Trouble, expect, refused};
pub use difference::{DIFFERENCES, Difference, Shows};
pub use pair::{End, Pair, next, patience, way_to, within};
pub use run::{Report, Result, Verdict, run};
pub use setting::{DEPTH, INLINE, QKEY, SGES, Setting};
pub use statuses::{Origin, STATUSES};

/// Every check, in order.
#[must_use]
pub fn checks(quick: bool) -> Vec<Check> {
    let mut all = Vec::new();
    all.extend(matrix::checks(quick));
    all.extend(shapes::checks());
    all.extend(statuses::checks());
    all.extend(srq::checks());
    all.extend(xrc::checks());
    all.extend(multicast::checks());
    all.extend(windows::checks());
    all.extend(posts::checks());
    all.extend(events::checks());
    all.extend(cq::checks());
    all.extend(extended::checks());
    all.extend(memory::checks());
    all.extend(queries::checks());
    all.extend(safe::checks(quick));
    all
}
