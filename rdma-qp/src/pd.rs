//! Protection domains.

use std::fmt;
use std::sync::Arc;

use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_RELAXED_ORDERING,
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_access_flags,
    ibv_device_attr, ibv_pd,
};

use crate::cq::Cq;
use crate::errno::Errno;
use crate::mr::Mr;
use crate::qp::{QpBuilder, Rc, Uc, Ud};
use crate::raw::last;
use crate::raw::memory::Memory;
use crate::raw::pd::{Contents, PdHandle};
use crate::raw::region::OwnedRegion;
use crate::xrc::{XrcDomain, XrcSend, XrcSrqBuilder};

bitflags::bitflags! {
    /// What a region, or a QP, lets the device do on behalf of others.
    ///
    /// Reading for requests of this side is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write for requests of this side: receives, and the results of READ and atomics.
        const LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE.bits();
        /// Peers may write; on a region it comes with `LOCAL_WRITE`, which verbs demands.
        const REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE.bits();
        /// Peers may read.
        const REMOTE_READ = IBV_ACCESS_REMOTE_READ.bits();
        /// Peers may do atomics; on a region it comes with `LOCAL_WRITE`, which verbs demands.
        const REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC.bits();
        /// Memory windows may be bound to the region.
        const MW_BIND = IBV_ACCESS_MW_BIND.bits();
        /// The region's pages are not pinned: the device faults them in as it needs them, where it can
        /// (`ibv_query_device_ex(3)`, on-demand paging; the software device and soft-RoCE are asked like any other).
        const ON_DEMAND = IBV_ACCESS_ON_DEMAND.bits();
        /// The device may write in any order, which is faster on some machines. A hint: a device that does not know it
        /// leaves it away (`ibv_reg_mr(3)`).
        const RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING.bits();
    }
}

impl Access {
    /// The flags for a registration: with `LOCAL_WRITE` where verbs demands it (`ibv_reg_mr(3)`).
    pub(crate) fn for_region(self) -> ibv_access_flags {
        let implied = self.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let all = if implied {
            self | Access::LOCAL_WRITE
        } else {
            self
        };
        ibv_access_flags::from_bits_retain(all.bits())
    }
}

/// Memory could not be registered. It is inside the error, and so not lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// There are no bytes to register: devices disagree on what that would mean.
    #[error("a region needs at least one byte")]
    Empty,
    /// The system has not so much memory.
    #[error("the system has no memory for {count} buffers of {size} bytes")]
    NoMemory {
        /// Buffers.
        count: usize,
        /// Bytes of each.
        size: usize,
    },
    /// Longer than the device's limit.
    #[error("a region of {len} bytes is over the limit of {max} of {device}")]
    TooLong {
        /// The device.
        device: String,
        /// The length asked for.
        len: usize,
        /// The limit.
        max: u64,
        /// The memory.
        memory: Memory,
    },
    /// The library refused.
    #[error("{device} did not register {} bytes with {access:?}: {source}{}", .memory.len(), memlock_hint(*.source))]
    Refused {
        /// The device.
        device: String,
        /// The access asked for.
        access: Access,
        /// What the library said.
        source: Errno,
        /// The memory.
        memory: Memory,
    },
}

fn memlock_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => {
            "; on a real device look at the limit of locked memory (ulimit -l) and at its number of regions"
        }
        Errno::EINVAL => "; does the device support this access?",
        _ => "",
    }
}

/// A protection domain: regions and QPs of one can be used together, of two they cannot.
///
/// What is made in it keeps it alive, so it may be dropped at any time.
pub struct Pd {
    handle: Arc<PdHandle>,
    attr: Arc<ibv_device_attr>,
}

impl Pd {
    pub(crate) fn new(handle: Arc<PdHandle>, attr: Arc<ibv_device_attr>) -> Pd {
        Pd { handle, attr }
    }

    pub(crate) fn handle(&self) -> &Arc<PdHandle> {
        &self.handle
    }

    pub(crate) fn device_attr(&self) -> &Arc<ibv_device_attr> {
        &self.attr
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.handle.context.name
    }

    /// The verbs object, for calls that this library does not have. It is freed with the last of what was made in it.
    pub fn as_ptr(&self) -> *mut ibv_pd {
        self.handle.as_ptr()
    }

    /// Registers memory that no peer gets a right to.
    pub(crate) fn register_owned(&self, memory: Memory) -> Result<OwnedRegion, RegisterError> {
        Ok(self.register(memory, Access::LOCAL_WRITE)?.into_owned())
    }

    /// Registers `memory`, which moves into the region.
    ///
    /// # Errors
    /// The memory is empty, longer than the device's limit, or the library refused. The error has it.
    pub fn register(&self, memory: Memory, access: Access) -> Result<Mr, RegisterError> {
        let device = || self.device().to_owned();
        if memory.is_empty() {
            return Err(RegisterError::Empty);
        }
        let (len, max) = (memory.len(), self.attr.max_mr_size);
        if len as u64 > max {
            return Err(RegisterError::TooLong {
                device: device(),
                len,
                max,
                memory,
            });
        }
        match self.handle.register(memory, access.for_region()) {
            Ok(region) => Ok(Mr::new(region, self.handle.clone())),
            Err((source, memory)) => Err(RegisterError::Refused {
                device: device(),
                access,
                source,
                memory,
            }),
        }
    }

    /// Begins a reliable-connection QP whose completions go to `cq`.
    pub fn rc<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Rc> {
        QpBuilder::new(self, cq)
    }

    /// Begins an unreliable-connection QP whose completions go to `cq`.
    pub fn uc<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Uc> {
        QpBuilder::new(self, cq)
    }

    /// Begins an unreliable-datagram QP whose completions go to `cq`.
    pub fn ud<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Ud> {
        QpBuilder::new(self, cq)
    }

    /// Begins an XRC initiator whose completions go to `cq`.
    pub fn xrc<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, XrcSend> {
        QpBuilder::new(self, cq)
    }

    /// Begins an XRC SRQ that stands in `domain`, and whose receives complete on `cq`.
    pub fn xrc_srq<'a>(&'a self, domain: &'a XrcDomain, cq: &'a Cq) -> XrcSrqBuilder<'a> {
        XrcSrqBuilder::new(self, domain, cq)
    }

    /// Regions that were dropped while queues might still use them, and have not been freed yet.
    ///
    /// Looking frees those that no queue holds any more. It happens by itself too, whenever a CQ is polled, a QP is
    /// reset or destroyed, or another region is dropped.
    pub fn retired_regions(&self) -> usize {
        self.handle.sweep()
    }
}

/// A protection domain was not freed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClosePdError {
    /// Something of it is left. If nothing is named, another thread is in a call that uses it, and was for a second.
    #[error(
        "the protection domain still has {}{} and {regions} region(s){}{}",
        qp_names(.qps), srq_names(.srqs), window_count(*.windows), ah_count(*.ahs)
    )]
    Busy {
        /// The domain.
        pd: Pd,
        /// Numbers of its QPs.
        qps: Vec<u32>,
        /// Numbers of its SRQs.
        srqs: Vec<u32>,
        /// Number of its regions, those included that were dropped and are still held by queues.
        regions: usize,
        /// Number of its memory windows, those included that were dropped and are still held by queues.
        windows: usize,
        /// Number of address handles that somebody has, see [`Ah`](crate::Ah). Those that only the domain keeps do not count.
        ahs: usize,
    },
    /// The library refused.
    #[error("the protection domain could not be freed: {source}")]
    Refused {
        /// The domain.
        pd: Pd,
        /// What the library said.
        source: Errno,
    },
}

fn qp_names(numbers: &[u32]) -> String {
    match numbers {
        [] => "no QP".into(),
        numbers => {
            let names: Vec<String> = numbers.iter().map(|n| format!("QP {n:#x}")).collect();
            names.join(", ")
        }
    }
}

fn window_count(windows: usize) -> String {
    match windows {
        0 => String::new(),
        1 => ", and 1 memory window".to_owned(),
        windows => format!(", and {windows} memory windows"),
    }
}

fn ah_count(held: usize) -> String {
    match held {
        0 => String::new(),
        held => format!(", and {held} address handle(s) are held"),
    }
}

fn srq_names(numbers: &[u32]) -> String {
    numbers.iter().map(|n| format!(", SRQ {n}")).collect()
}

impl Pd {
    /// Frees the domain and says whether that worked. Dropping it instead frees it when the last of what was made in it
    /// is gone.
    ///
    /// Where nothing is left but what another thread is freeing, because it polls a CQ or drops something, it waits for that.
    ///
    /// # Errors
    /// Something of it is left (the error says what), or the library refused.
    pub fn close(self) -> Result<(), ClosePdError> {
        let Pd { handle, attr } = self;
        let mut left = Contents::default();
        let alone = last::owner(handle, |handle| {
            handle.sweep();
            left = handle.contents();
            left.passes
        });
        match alone {
            Ok(mut handle) => handle.free().map_err(|source| {
                let handle = Arc::new(handle);
                let pd = Pd { handle, attr };
                ClosePdError::Refused { pd, source }
            }),
            Err(handle) => Err(ClosePdError::Busy {
                pd: Pd { handle, attr },
                qps: left.qps,
                srqs: left.srqs,
                regions: left.regions,
                windows: left.windows,
                ahs: left.ahs,
            }),
        }
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({} on {})", self.handle.id, self.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ibv_reg_mr(3): "If IBV_ACCESS_REMOTE_WRITE or IBV_ACCESS_REMOTE_ATOMIC is set, then IBV_ACCESS_LOCAL_WRITE must be set too".
    #[test]
    fn remote_writing_implies_local_writing() {
        assert_eq!(Access::REMOTE_WRITE.for_region().bits(), 0b11);
        assert_eq!(Access::REMOTE_ATOMIC.for_region().bits(), 0b1001);
        assert_eq!(Access::REMOTE_READ.for_region().bits(), 0b100);
        assert_eq!(Access::empty().for_region().bits(), 0);
    }
}
