//! Connections that are kept alive: watched, found dead within a known time, made anew, and explained.
//!
//! A Queue Pair whose peer is gone stays in RTS for as long as nobody sends; one that has failed stays in ERR until somebody
//! resets it, and everything that was under way has to be sorted out first. [`Supervised`] does all that for a Queue Pair, and
//! tells what happens. It takes RC, UC, UD and XRC:
//!
//! ```
//! use rdma_qp::supervise::{self, Event, Happened, Options, Supervised};
//! use rdma_qp::exchange::tcp;
//! use rdma_qp::{Device, PostFlags, op};
//! use std::time::Duration;
//!
//! # fn end(device: &Device, meeting: impl supervise::Meeting + 'static) -> Result<Supervised, Box<dyn std::error::Error>> {
//! let (pd, cq) = (device.alloc_pd()?, device.create_event_cq(64)?);
//! let pool = pd.buffers(16, 64)?;
//! let qp = pd.rc(&cq).send_depth(16).recv_depth(16).inline_data(64).create()?;
//! let link = Supervised::new(device, (qp, cq), meeting, Options::default(), move |qp| {
//!     // Each life of the connection begins with these receives.
//!     while let Some(buffer) = pool.take() {
//!         qp.recv_buffer(buffer).map_err(|not| not.error)?;
//!     }
//!     Ok(())
//! })?;
//! # Ok(link) }
//! # fn server(listener: tcp::Listener) -> Result<(), Box<dyn std::error::Error>> {
//! # let device = Device::open_index(rdma_soft::verbs(), 0)?;
//! # let mut link = end(&device, supervise::listen(listener))?;
//! # let mut got = 0;
//! # while got < 3 {
//! #     if let Some(Happened::Received(_)) = link.next(Duration::from_secs(20))? { got += 1 }
//! # }
//! # Ok(()) }
//! # let listener = tcp::listen("127.0.0.1:0")?;
//! # let address = listener.local_addr()?;
//! # let first = std::thread::spawn(move || server(listener).unwrap());
//! # let device = Device::open_index(rdma_soft::verbs(), 0)?;
//! # let mut link = end(&device, supervise::connect(address))?;
//! # let (mut number, mut again, mut second) = (0u64, 0, None);
//! # let limit = std::time::Instant::now() + Duration::from_secs(20);
//! # while again < 3 {
//! # assert!(std::time::Instant::now() < limit);
//! // The application sends whenever it can, and is told what becomes of it.
//! if link.is_up() && link.under_way() < 8 {
//!     link.post_inline(op::Send, b"hello", PostFlags::empty(), number)?;
//!     number += 1;
//! }
//! match link.next(Duration::from_millis(10))? {
//!     Some(Happened::Done(message)) => println!("{} is at the peer", message.context),
//!     Some(Happened::Event(event)) => println!("{event}"), // dead, attempt 1 in 17 ms, connected ...
//!     Some(Happened::Ended(report)) => {
//!         for message in &report.unknown {
//!             println!("{} may be at the peer or not", message.context);
//!         }
//! #       second = Some(std::thread::spawn(move || loop {
//! #           match tcp::listen(address) {
//! #               Ok(listener) => return server(listener).unwrap(),
//! #               Err(_) => std::thread::sleep(Duration::from_millis(10)),
//! #           }
//! #       }));
//!     }
//!     _ => {}
//! }
//! # if let Some(second) = &second { if second.is_finished() { again = 3 } }
//! # }
//! # first.join().unwrap();
//! # second.unwrap().join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `cargo run --example supervised` plays it with two processes, one of which is killed; `-- --transport all` over each transport.
//!
//! # How a death is noticed
//!
//! | what happens | how it is noticed | within |
//! |---|---|---|
//! | the peer's end is dropped, or has failed | its channel closes | a round trip |
//! | the peer's process is killed, met over TCP | its channel closes | a round trip |
//! | the peer's process is killed, met by messages ([`carried`]) | nothing tells: as its silence | see the next two |
//! | the peer is silent, requests under way on RC or XRC | the device gives up | 4 x [`Timing::budget`](crate::Timing::budget) |
//! | the peer is silent, nothing under way | a probe is not answered | [`Options::notices_within`] |
//! | the peer was restarted | it comes anew | at once |
//!
//! What a probe is, and what it proves ([`Proof`]):
//!
//! | transport | a probe is | it proves | a receive |
//! |---|---|---|---|
//! | RC | an RDMA WRITE of no bytes | the peer's process, with which its Queue Pair ends | takes none |
//! | XRC | the same, answered by the target | the peer's node: a target lives as long as any process holds it | takes none |
//! | UC, UD | a message, which the peer's supervisor answers | that the peer's process polls | takes one at each end |
//!
//! On UC and UD nothing is acknowledged, and a probe may be lost: five are sent before silence counts. Post the receives that
//! [`Happened::Heartbeat`] tells again, as those of messages, and have some more of them than messages need.
//!
//! On UD a connection is one of the application's idea: two Queue Pairs that send to each other ([`Supervised::destination`]).
//! Each life has a Q_Key of its own, drawn at random, so what was sent in a former life, or by somebody else, does not get in.
//!
//! On XRC each end is an initiator and a target ([`Supervised::over_xrc`]); the receives stay the application's, in its SRQ. That
//! the peer's process has ended is told by its channel alone; where a channel may stay open behind a process, or what [`carried`]
//! has does not tell, let each process be asked by messages, as the mesh of `rdma-xrc` does.
//!
//! # How a connection is made anew
//!
//! The requests that are under way are flushed, each gets its [`Fate`](crate::Fate), and [`Happened::Ended`] tells of
//! those that were not done, or of which nobody can know: by ticket, and by what the application gave along. Nothing is ever
//! posted again by itself. Then both ends meet: one connects, with waits that grow ([`Backoff`]), the other listens, whichever
//! of them was restarted. They swap fresh records over a new channel ([`Meeting`]), go to RTR with their receives posted, tell each
//! other so, and go to RTS. Nothing of a former life gets into the next: on RC and XRC by the PSNs, on UD by the Q_Key, and on UC,
//! which has neither, because an end takes nothing for a while before ([`Options::settle`]).
//!
//! Remote addresses and keys of a process that was restarted are others: ask [`Supervised::peer`] after each
//! [`Event::Recovered`].
//!
//! # What else is handled
//!
//! * A port that goes down: nobody is probed or looked for until it is up. A connection may survive that: a probe tells.
//! * A GID that goes away: the connection is made anew with another one.
//! * A device that is removed: what was under way is told, and the end is [`SuperviseError::DeviceRemoved`].
//!
//! # In an event loop
//!
//! [`Supervised`] is one descriptor (`AsFd`), readable when there is something to do: [`Supervised::arm`], sleep,
//! [`Supervised::poll`]. With the feature `tokio`, `AsyncSupervised` does that.
//!
//! # Inside
//!
//! [`Supervisor`] is the state machine, without clock, socket or Queue Pair; [`Ledger`] keeps the books. The simulator of the
//! software device (`sim --supervise`) plays both on a virtual clock.

mod carried;
mod driver;
mod event;
mod ledger;
mod machine;
mod meeting;
mod options;
mod probes;
#[cfg(feature = "tokio")]
mod tokio;
mod wake;

pub use carried::{Carried, Courier, carried};
pub use driver::{Happened, NotPosted, SuperviseError, Supervised};
pub use event::{Action, Event, Why};
pub use ledger::{Ledger, Message, Report};
pub use machine::{Probed, Supervisor};
pub use meeting::{Connect, Listen, Meeting, Sign, connect, connect_any, listen};
pub use options::{Backoff, Options, Proof};
pub use probes::{HEARTBEAT, HEARTBEAT_ANSWER, Probes};
#[cfg(feature = "tokio")]
pub use tokio::AsyncSupervised;
pub(crate) use wake::Wake;

#[cfg(test)]
mod tests;
