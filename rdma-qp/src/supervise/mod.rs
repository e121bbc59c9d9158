//! Connections that are kept alive: watched, found dead within a known time, made anew, and explained.
mod driver;
mod event;
mod ledger;
mod machine;
mod meeting;
mod options;
mod probes;
mod wake;

pub use driver::{Happened, NotPosted, SuperviseError, Supervised};
pub use event::{Action, Event, Why};
pub use ledger::{Ledger, Message, Report};
pub use machine::{Probed, Supervisor};
pub use meeting::{Connect, Listen, Meeting, Sign, connect, listen};
pub use options::{Backoff, Options, Proof};
pub use probes::{HEARTBEAT, Probes};
