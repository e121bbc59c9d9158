//! The memory regions of the process.

use rdma_qp::dump::RegionDump;

/// Regions that are kept at most.
const MOST: usize = 256;

/// A region while it is registered: its number in the order in which they were noted. The address of its `ibv_mr` is not enough:
/// that of one that is deregistered may be the next one's before anybody hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64);

struct Known {
    id: Id,
    /// Of its `ibv_mr`.
    address: usize,
    region: RegionDump,
}

/// The regions that are known, oldest first.
#[derive(Default)]
pub(crate) struct Regions {
    known: Vec<Known>,
    noted: u64,
    left_out: bool,
}

impl Regions {
    /// Notes a region that was just registered. Where there is no room, the oldest one that was deregistered makes some.
    pub(crate) fn add(&mut self, address: usize, region: RegionDump) {
        if self.known.len() == MOST {
            self.left_out = true;
            let Some(oldest) = self.known.iter().position(|known| known.region.gone) else {
                return;
            };
            self.known.remove(oldest);
        }
        let id = Id(self.noted);
        self.noted += 1;
        self.known.push(Known {
            id,
            address,
            region,
        });
    }

    /// The region whose `ibv_mr` is there at present.
    pub(crate) fn at(&self, address: usize) -> Option<Id> {
        let mut newest = self.known.iter().rev();
        newest
            .find(|known| known.address == address && !known.region.gone)
            .map(|known| known.id)
    }

    /// It was deregistered.
    pub(crate) fn forget(&mut self, id: Id) {
        self.change(id, |region| region.gone = true);
    }

    /// Something of it is different from now on.
    pub(crate) fn change(&mut self, id: Id, change: impl FnOnce(&mut RegionDump)) {
        if let Some(known) = self.known.iter_mut().find(|known| known.id == id) {
            change(&mut known.region);
        }
    }

    /// Nobody knows what it is now.
    pub(crate) fn lose(&mut self, id: Id) {
        self.known.retain(|known| known.id != id);
        self.left_out = true;
    }

    /// All that are known.
    pub(crate) fn all(&self) -> Vec<RegionDump> {
        (self.known.iter())
            .map(|known| known.region.clone())
            .collect()
    }

    /// There were others.
    pub(crate) fn left_out(&self) -> bool {
        self.left_out
    }
}
