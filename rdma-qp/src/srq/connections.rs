//! From a completion to the connection that it is of.

use std::collections::HashMap;
use std::fmt;

use crate::cq::Completion;
use crate::number::NumberHasher;
use crate::qp::{Qp, Transport, XrcTarget};
use crate::wr_id::QueueKind;

/// The program's own record of each connection, found by the completions of its QP.
///
/// Completions of an SRQ come by many QPs and name each by its number. A number is used again by a later QP, and
/// completions of the former may come after it; they find nobody here: not once the connection is removed, and not when
/// another one has its number.
///
/// ```
/// use rdma_qp::{Connections, Device, Memory, Access};
/// # use std::time::Duration;
/// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
/// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
/// # let mr = pd.register(Memory::zeroed(64), Access::LOCAL_WRITE)?;
/// let mut connections = Connections::new();
/// let mut qp = pd.rc(&cq).create()?;
/// connections.insert(&qp, "the first client");
/// # qp.endpoint(device.port(1)?.best_gid()?)?;
/// # qp.init()?;
/// # qp.recv(mr.all())?;
/// # qp.to(rdma_qp::ToErr)?;
/// let done = cq.wait_any(Duration::from_secs(5))?.expect("a completion");
/// assert_eq!(connections.of(&done), Some(&"the first client"));
/// connections.remove(qp.qp_num());
/// assert_eq!(connections.of(&done), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Connections<T> {
    by_qp: HashMap<u32, Entry<T>, NumberHasher>,
}

struct Entry<T> {
    /// Ids of the CQs of the QP; an XRC target has none, and its completions are receives of any SRQ of its domain.
    cqs: Option<(u32, u32)>,
    value: T,
}

impl<T> Connections<T> {
    /// No connections.
    pub fn new() -> Connections<T> {
        Connections {
            by_qp: HashMap::default(),
        }
    }

    /// Enters the connection of `qp`. The record that was there for its number comes back: that of a QP that is gone, or a
    /// former one of this QP.
    pub fn insert<R: Transport>(&mut self, qp: &Qp<R>, value: T) -> Option<T> {
        self.enter(qp.qp_num(), Some(qp.cq_ids()), value)
    }

    /// Enters the connection that an XRC target is the end of, as [`Connections::insert`].
    pub fn insert_target(&mut self, target: &XrcTarget, value: T) -> Option<T> {
        self.enter(target.qp_num(), None, value)
    }

    fn enter(&mut self, qp_num: u32, cqs: Option<(u32, u32)>, value: T) -> Option<T> {
        let before = self.by_qp.insert(qp_num, Entry { cqs, value });
        before.map(|entry| entry.value)
    }

    /// The connection that a completion is of. `None`: its QP was not entered, or was removed.
    #[inline]
    pub fn of(&self, done: &Completion) -> Option<&T> {
        let entry = self.by_qp.get(&done.qp_num)?;
        entry.reports(done).then_some(&entry.value)
    }

    /// As [`Connections::of`], to be changed.
    #[inline]
    pub fn of_mut(&mut self, done: &Completion) -> Option<&mut T> {
        let entry = self.by_qp.get_mut(&done.qp_num)?;
        entry.reports(done).then_some(&mut entry.value)
    }

    /// The connection of the QP of that number.
    pub fn get(&self, qp_num: u32) -> Option<&T> {
        Some(&self.by_qp.get(&qp_num)?.value)
    }

    /// As [`Connections::get`], to be changed.
    pub fn get_mut(&mut self, qp_num: u32) -> Option<&mut T> {
        Some(&mut self.by_qp.get_mut(&qp_num)?.value)
    }

    /// Removes the connection of the QP of that number. Completions of it that come later find nobody.
    pub fn remove(&mut self, qp_num: u32) -> Option<T> {
        Some(self.by_qp.remove(&qp_num)?.value)
    }

    /// All connections with the numbers of their QPs, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.by_qp.iter().map(|(qp, entry)| (*qp, &entry.value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_qp.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_qp.is_empty()
    }
}

impl<T> Entry<T> {
    /// Whether a completion of that number came where the QP reports.
    #[inline]
    fn reports(&self, done: &Completion) -> bool {
        let cq = done.cq;
        match self.cqs {
            Some((send, recv)) => cq == send || cq == recv,
            None => done.queue == QueueKind::SharedRecv,
        }
    }
}

impl<T> Default for Connections<T> {
    fn default() -> Connections<T> {
        Connections::new()
    }
}

impl<T> fmt::Debug for Connections<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({})", self.len())
    }
}
