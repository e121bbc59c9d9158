//! Links: how frames travel between nodes.
//!
//! A frame is what a UDP datagram carries: BTH..padding, then the ICRC. Everything here but
//! [`UdpLink`] works on values: no socket, no clock, no thread.

mod amount;
mod fault;
mod frame;
mod ingress;
mod pcap;
mod run;
pub(crate) mod shm;
mod source_port;
mod udp;

pub use amount::{AmountError, Probability, display_duration, parse_duration};
pub use fault::{FaultCounters, FaultLayer, Faults, FaultsError};
pub use frame::{Frame, IpFields, Pool};
pub use ingress::{IngressError, IpIds, check};
pub use pcap::{CaptureFile, Direction, Pcap, PcapError};
pub use run::{Run, Way};
pub use source_port::SourcePort;
pub(crate) use udp::interface_mtu;
pub use udp::{Bound, LinkError, Received, Sent, UdpLink};

#[cfg(test)]
mod tests;
