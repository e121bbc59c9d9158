//! Q_Keys: what a datagram must carry to be received.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{OutOfRange, in_range, random};

/// A Q_Key of a QP. A datagram with another one is dropped, counted at the receiver's port, and nobody is told.
///
/// The high bit is never set. In a request that bit does not belong to a key: it means "the sending QP's own Q_Key"
/// (`ibv_post_send(3)`; here that is a [`Destination`](crate::Destination) without a key). In the attribute of a QP such
/// a key is for privileged programs, and the kernel refuses it with EPERM (uverbs_cmd.c, `modify_qp`).
///
/// ```
/// use rdma_qp::QKey;
/// assert_eq!(QKey::new(0x1111_1111)?.get(), 0x1111_1111);
/// assert!(QKey::new(0x8000_0001).is_err());
/// # Ok::<(), rdma_qp::OutOfRange>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct QKey(u32);

/// What a request says for "the sending QP's own Q_Key".
pub(crate) const OWN: u32 = 1 << 31;

impl QKey {
    /// A Q_Key from its value.
    ///
    /// # Errors
    /// The high bit is set.
    pub fn new(value: u32) -> Result<QKey, OutOfRange> {
        let max = (OWN - 1).into();
        in_range(
            "qkey",
            value.into(),
            max,
            " (the high bit is no part of it)",
        )?;
        Ok(QKey(value))
    }

    /// An unpredictable Q_Key from the operating system's random source. All QPs that talk to one another need the same
    /// one, or each needs to be told that of the others.
    ///
    /// # Errors
    /// The system has no random bytes to give.
    pub fn random() -> std::io::Result<QKey> {
        let mut bytes = [0u8; 4];
        random(&mut bytes)?;
        Ok(QKey(u32::from_ne_bytes(bytes) & !OWN))
    }

    /// The value; the high bit is 0.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for QKey {
    type Error = OutOfRange;

    fn try_from(value: u32) -> Result<QKey, OutOfRange> {
        QKey::new(value)
    }
}

impl From<QKey> for u32 {
    fn from(qkey: QKey) -> u32 {
        qkey.0
    }
}

impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
