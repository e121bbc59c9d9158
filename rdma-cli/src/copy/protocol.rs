//! What the two ends of a copy say to each other.
//!
//! Over the control channel (TCP) go the offer of the file, the endpoint records, the verdict and, at the very end,
//! both ends' reports: a few kilobytes whatever the size of the file. Everything else goes through the Queue Pairs:
//!
//! - The receiver registers [`SLOTS`] slots of [`CHUNK`] bytes and offers them as one region.
//! - The sender writes each chunk into the next slot by RDMA WRITE WITH IMMEDIATE. The immediate is the number of the
//!   chunk in the file, so chunks that are all zeros are left out. What arrives arrives in order, so the slot is known
//!   by counting.
//! - The receiver gives slots back by empty SENDs whose immediate is how many it has freed so far (modulo 2^32).
//! - A tree is sent like a file: its listing, and then its files, are the bytes of it.
//! - A receiver that has something of a copy that broke off says how much and with which digest; the sender compares that
//!   with what it has, and says from which chunk on it sends: the next one, or the first.
//! - Whoever hears nothing for a while writes zero bytes to the other: only a living device acknowledges that.

use rdma_qp::exchange::tcp::Channel;
use rdma_qp::exchange::{Exchange as _, ExchangeError};
use serde::{Deserialize, Serialize};

use super::file::{CHUNK, LARGEST_LISTING};
use super::report::End;

/// Version of all this; both ends must have the same.
pub const VERSION: u32 = 2;

/// Slots that a receiver offers.
pub const SLOTS: u32 = 16;

/// Largest file: the number of a chunk must fit in the 32 bits of an immediate.
pub const LARGEST: u64 = (CHUNK as u64) << 32;

/// A message on the control channel.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum Message {
    /// The sender has a file or a tree.
    Offer(Offer),
    /// The receiver takes it.
    Accept {
        /// Where it will be, as people read it.
        path: String,
        /// It looks at what a copy that broke off has left: [`Message::Have`] follows.
        #[serde(default)]
        resume: bool,
    },
    /// What the receiver has, after [`Message::Accept`] with `resume`.
    Have {
        /// Whole chunks from the beginning.
        chunks: u64,
        /// The digest of them; empty if there are none.
        sha256: String,
    },
    /// The sender goes on, after [`Message::Have`].
    From {
        /// From this chunk on: the first one that the receiver has not, or 0.
        chunk: u64,
    },
    /// The sender has written everything.
    Sent {
        /// Chunks written.
        chunks: u64,
        /// The digest of the source.
        sha256: String,
    },
    /// The receiver read the same digest from its disk, and the file has its final name.
    Done,
    /// Whoever says so gives up.
    Failed {
        /// A sentence with the cause.
        why: String,
    },
    /// An end's last word.
    Report(Box<End>),
}

/// The file or the tree that a sender has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// [`VERSION`].
    pub version: u32,
    /// [`CHUNK`].
    pub chunk: u64,
    /// Its name without directories; any bytes.
    pub name: Vec<u8>,
    /// Bytes that will be sent: its length; of a tree, the listing and all files.
    pub size: u64,
    /// Of a tree, the length of its listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<u64>,
    /// Its permission bits.
    pub mode: u32,
    /// What the receiver was told that its sender knows; empty where a file is taken from anybody.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub secret: String,
}

impl Offer {
    /// Says why this cannot be received by a receiver that wants to hear `secret`, if it cannot.
    ///
    /// # Errors
    /// The peer is of another version or does not know the secret, or the file is larger than [`LARGEST`].
    pub fn check(&self, secret: &str) -> Result<(), String> {
        if (self.version, self.chunk) != (VERSION, CHUNK as u64) {
            let theirs = self.version;
            return Err(format!(
                "the ends speak versions {theirs} and {VERSION} of the copy protocol: use the same release of qp"
            ));
        }
        if !secret.is_empty() && self.secret != secret {
            return Err(
                "somebody else came instead of the sender that this receiver was started for: nothing was received"
                    .into(),
            );
        }
        if let Some(listing) = self.listing
            && (listing == 0 || listing > LARGEST_LISTING || listing > self.size)
        {
            return Err(format!(
                "a listing of {listing} bytes is none that this receiver takes ({LARGEST_LISTING} at most)"
            ));
        }
        if self.size > LARGEST {
            return Err(format!(
                "a file of {} bytes is over the limit of {LARGEST}",
                self.size
            ));
        }
        Ok(())
    }
}

/// Why the conversation ended.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The peer gave up, and said why.
    #[error("{0}")]
    Told(String),
    /// This end gives up, for a reason of its own.
    #[error("{0}")]
    Own(String),
    /// The channel does not work.
    #[error(transparent)]
    Channel(#[from] ExchangeError),
    /// The peer said something that has no place here.
    #[error("the peer said {0} out of place: is it the same release of qp?")]
    OutOfPlace(String),
}

/// Says `message`.
///
/// # Errors
/// The channel does not work.
pub fn say(channel: &mut Channel, message: &Message) -> Result<(), Broken> {
    let bytes = serde_json::to_vec(message).unwrap_or_default();
    Ok(channel.send(&bytes)?)
}

/// Waits for the next message, within the limit of the channel.
///
/// # Errors
/// The peer gave up, is gone, or says nothing that this end understands.
pub fn hear(channel: &mut Channel) -> Result<Message, Broken> {
    understand(&channel.recv()?)
}

/// The next message if it is there, without waiting.
///
/// # Errors
/// As [`hear`].
pub fn overhear(channel: &mut Channel) -> Result<Option<Message>, Broken> {
    channel
        .try_recv()?
        .map(|bytes| understand(&bytes))
        .transpose()
}

fn understand(bytes: &[u8]) -> Result<Message, Broken> {
    match serde_json::from_slice(bytes) {
        Ok(Message::Failed { why }) => Err(Broken::Told(why)),
        Ok(message) => Ok(message),
        Err(error) => Err(Broken::OutOfPlace(format!(
            "something unreadable ({error})"
        ))),
    }
}

/// Prefers what the peer said before it went to the news that it went.
pub fn last_words(channel: &mut Channel, error: ExchangeError) -> Broken {
    match channel.try_recv() {
        Ok(Some(bytes)) => match understand(&bytes) {
            Err(told @ Broken::Told(_)) => told,
            _ => Broken::Channel(error),
        },
        _ => Broken::Channel(error),
    }
}

/// Waits until the peer is here too.
///
/// # Errors
/// The peer gave up or is gone.
pub fn meet(channel: &mut Channel) -> Result<(), Broken> {
    channel
        .barrier()
        .map_err(|error| last_words(channel, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let name = b"caf\xe9.bin".to_vec();
        Offer {
            version: VERSION,
            chunk: CHUNK as u64,
            name,
            size: 5,
            listing: None,
            mode: 0o644,
            secret: String::new(),
        }
    }

    #[test]
    fn messages_survive_the_way() {
        for message in [
            Message::Offer(offer()),
            Message::Accept {
                path: "a/b".into(),
                resume: true,
            },
            Message::Have {
                chunks: 7,
                sha256: "00".into(),
            },
            Message::From { chunk: 7 },
            Message::Sent {
                chunks: 3,
                sha256: "00".into(),
            },
            Message::Done,
        ] {
            let bytes = serde_json::to_vec(&message).unwrap();
            assert_eq!(understand(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn a_peer_that_gives_up_is_an_error_with_its_words() {
        let bytes = serde_json::to_vec(&Message::Failed {
            why: "disk full".into(),
        })
        .unwrap();
        assert_eq!(understand(&bytes).unwrap_err().to_string(), "disk full");
    }

    #[test]
    fn noise_is_refused() {
        for noise in [
            &b""[..],
            b"{}",
            b"GET / HTTP/1.1",
            b"{\"say\":\"sing\"}",
            &[0xff; 100],
        ] {
            assert!(
                matches!(understand(noise), Err(Broken::OutOfPlace(_))),
                "{noise:?}"
            );
        }
    }

    #[test]
    fn offers_of_other_versions_and_too_large_ones_are_refused() {
        assert_eq!(offer().check(""), Ok(()));
        assert!(
            Offer {
                version: 9,
                ..offer()
            }
            .check("")
            .unwrap_err()
            .contains("versions 9 and 2")
        );
        for listing in [0, 6, LARGEST_LISTING + 1] {
            let tree = Offer {
                listing: Some(listing),
                ..offer()
            };
            assert!(tree.check("").unwrap_err().contains("listing"));
        }
        assert!(
            Offer {
                size: LARGEST + 1,
                ..offer()
            }
            .check("")
            .unwrap_err()
            .contains("limit")
        );
    }
}
