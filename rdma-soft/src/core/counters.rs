//! One counter per reason: every received frame ends in *accepted* or in exactly one of these.

use rdma_core_sys::{ibv_wc_opcode, ibv_wc_status};

use super::wqe::Remote;

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a received frame was not accepted. Each reason has a counter of its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Refused { $($(#[$doc])* $name,)* }

        impl Refused {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Refused] = &[$(Refused::$name,)*];

            /// The counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(Refused::$name => $text,)* }
            }
        }
    };
}

refusals! {
    /// Shorter than the headers and the ICRC that it needs.
    TooShort = "rx_too_short",
    /// The invariant CRC does not match: damaged on the way.
    BadIcrc = "rx_bad_icrc",
    /// A header that breaks its format.
    BadHeader = "rx_bad_header",
    /// An opcode that this device does not know, or of a transport that it does not run.
    UnknownOpcode = "rx_unknown_opcode",
    /// A congestion notification: counted, not acted upon.
    Congestion = "rx_cnp_ignored",
    /// No Queue Pair has that number.
    UnknownQp = "rx_unknown_qp",
    /// The opcode's transport is not the Queue Pair's.
    WrongTransport = "rx_wrong_transport",
    /// The Queue Pair is not yet, or no longer, receiving.
    QpState = "rx_qp_state",
    /// It did not come from the peer that the Queue Pair is connected to.
    WrongPeer = "rx_wrong_peer",
    /// The partition key does not match.
    BadPkey = "rx_bad_pkey",
    /// A datagram whose Q_Key is not the Queue Pair's.
    BadQkey = "rx_bad_qkey",
    /// A datagram to a multicast group that no Queue Pair of this node is attached to.
    UnknownGroup = "rx_unknown_group",
    /// A request that was executed before.
    DuplicateRequest = "rx_duplicate_request",
    /// A request ahead of the one that is due.
    OutOfSequence = "rx_out_of_sequence",
    /// A SEND or WRITE with immediate that found no receive.
    NoReceive = "rx_no_receive",
    /// A request that was answered with a fatal NAK.
    Nak = "rx_nak_sent",
    /// An unacknowledged request for memory that it may not reach.
    AccessDenied = "rx_access_denied",
    /// An unacknowledged request that breaks the rules of its operation.
    InvalidRequest = "rx_invalid_request",
    /// An unacknowledged message that is longer than its receive.
    TooLong = "rx_too_long",
    /// An unacknowledged message for a receive whose key does not open its memory.
    LocalError = "rx_local_error",
    /// A response to nothing that is outstanding.
    GhostResponse = "rx_ghost_response",
    /// A response that was seen before.
    DuplicateResponse = "rx_duplicate_response",
    /// A response ahead of the one that is due: something was lost.
    EarlyResponse = "rx_early_response",
    /// A response that does not fit its request.
    BadResponse = "rx_bad_response",
}

/// Something that went wrong with one request, with its values: what a counter cannot say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// A request of a send queue failed. What was flushed behind it has none.
    Request {
        /// The Queue Pair.
        qp_num: u32,
        /// What it was.
        opcode: ibv_wc_opcode,
        /// Why it failed.
        status: ibv_wc_status,
        /// The peer's memory that it named; `None` for messages.
        remote: Option<Remote>,
        /// Its bytes.
        len: u64,
    },
    /// A receive failed. What was flushed has none.
    Receive {
        /// The Queue Pair.
        qp_num: u32,
        /// Why it failed.
        status: ibv_wc_status,
        /// Bytes that it had room for.
        room: u64,
        /// Bytes that were to go there, a datagram's 40 in front included; `None` if the message had not come whole.
        len: Option<u64>,
    },
    /// A datagram was dropped for its Q_Key.
    Qkey {
        /// The Queue Pair that it came to.
        qp_num: u32,
        /// The Queue Pair that sent it.
        from: u32,
        /// Its Q_Key.
        qkey: u32,
        /// The Q_Key of the Queue Pair that it came to.
        own: u32,
    },
}

/// Mishaps that are kept: the first ones, for what follows mostly follows from them.
const MISHAPS: usize = 64;

/// Counters of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received, accepted or not.
    pub rx_frames: u64,
    /// Frames accepted.
    pub rx_accepted: u64,
    refused: [u64; Refused::ALL.len()],
    /// Frames made.
    pub tx_frames: u64,
    /// Request packets made again.
    pub tx_retransmitted: u64,
    /// Positive acknowledgements made.
    pub tx_acks: u64,
    /// RNR NAKs made.
    pub tx_rnr_naks: u64,
    /// RNR NAKs received.
    pub rx_rnr_naks: u64,
    /// NAKs for a gap in the sequence made.
    pub tx_sequence_naks: u64,
    /// NAKs for a gap in the sequence received.
    pub rx_sequence_naks: u64,
    /// Expired acknowledgement timers.
    pub timeouts: u64,
    /// Unacknowledged messages that began and were dropped, since a packet was missing or refused.
    pub rx_messages_dropped: u64,
    /// Requests that a READ before them may see, or whose buffer it fills, with neither a fence nor a
    /// completion in between ([`Strict::hazards`](super::config::Strict::hazards)).
    pub tx_unfenced_hazards: u64,
    /// Payload bytes sent in requests and responses, retransmissions included.
    pub tx_payload_bytes: u64,
    /// Payload bytes accepted.
    pub rx_payload_bytes: u64,
    mishaps: Vec<Mishap>,
}

impl Counters {
    /// Counts a received frame with what became of it.
    pub fn received(&mut self, outcome: Result<(), Refused>) {
        self.rx_frames += 1;
        match outcome {
            Ok(()) => self.rx_accepted += 1,
            Err(why) => self.refused[why as usize] += 1,
        }
    }

    /// How many frames were refused for this reason.
    pub fn refused(&self, why: Refused) -> u64 {
        self.refused[why as usize]
    }

    /// Notes what went wrong with one request.
    #[cold]
    pub fn note(&mut self, mishap: Mishap) {
        if self.mishaps.len() < MISHAPS {
            self.mishaps.push(mishap);
        }
    }

    /// What went wrong with single requests: the first 64 of the node.
    pub fn mishaps(&self) -> &[Mishap] {
        &self.mishaps
    }

    /// All counters, by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let own = [
            ("rx_frames", self.rx_frames),
            ("rx_accepted", self.rx_accepted),
            ("tx_frames", self.tx_frames),
            ("tx_retransmitted", self.tx_retransmitted),
            ("tx_acks", self.tx_acks),
            ("tx_rnr_naks", self.tx_rnr_naks),
            ("rx_rnr_naks", self.rx_rnr_naks),
            ("tx_sequence_naks", self.tx_sequence_naks),
            ("rx_sequence_naks", self.rx_sequence_naks),
            ("timeouts", self.timeouts),
            ("rx_messages_dropped", self.rx_messages_dropped),
            ("tx_unfenced_hazards", self.tx_unfenced_hazards),
            ("tx_payload_bytes", self.tx_payload_bytes),
            ("rx_payload_bytes", self.rx_payload_bytes),
        ];
        own.into_iter()
            .chain(Refused::ALL.iter().map(|&r| (r.name(), self.refused(r))))
    }
}
