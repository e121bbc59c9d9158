//! Where a device is known to differ from the rules, and why.

use rdma_core_sys::rules::Transport::{self, Rc, Uc, Ud};
use rdma_core_sys::*;

use super::{EOPNOTSUPP, OK, Try};
use crate::{Platform, When};

/// A difference between a device and the rules whose cause has been read in the kernel's source.
#[derive(Debug)]
pub struct Exception {
    /// A short name for the table of results.
    pub name: &'static str,
    /// The driver, by how its device names begin.
    pub driver: &'static str,
    /// The platforms that have it: all of these hold.
    pub when: &'static [When],
    /// The transports.
    pub transports: &'static [Transport],
    /// The state that the QP is in; `None` for any.
    pub from: Option<ibv_qp_state>,
    /// The state asked for; `None` for any.
    pub to: Option<ibv_qp_state>,
    /// The mask has at least one of these bits; none of them names every mask.
    pub bits: ibv_qp_attr_mask,
    /// The mask has none of these bits.
    pub lacks: ibv_qp_attr_mask,
    /// The field whose value was out of range; `None` where all values were fine.
    pub field: Option<&'static str>,
    /// The errno that the device gives, 0 for success.
    pub errno: i32,
    /// File and function of the kernel or of rdma-core.
    pub source: &'static str,
    /// What they do there.
    pub reason: &'static str,
}

impl Exception {
    /// True if it is about devices of this name on this platform.
    #[must_use]
    pub fn is_of(&self, device: &str, on: Platform) -> bool {
        device.starts_with(self.driver) && on.is(self.when)
    }

    /// True if it is about this try, and about what the device did; of devices that it [is of](Self::is_of).
    #[must_use]
    pub fn explains(&self, tried: &Try, errno: i32) -> bool {
        self.transports.contains(&tried.transport)
            && self.from.is_none_or(|from| from == tried.from)
            && self.to.is_none_or(|to| to == tried.to)
            && (self.bits.is_empty() || tried.mask.intersects(self.bits))
            && !tried.mask.intersects(self.lacks)
            && self.field == tried.value.map(|value| value.field)
            && self.errno == errno
    }
}

const ALL: &[Transport] = &[Rc, Uc, Ud];

/// Bits that only the extended form of the call takes.
const BEYOND: ibv_qp_attr_mask =
    ibv_qp_attr_mask::from_bits_retain(u32::MAX << (IBV_QP_DEST_QPN.bits().trailing_zeros() + 1));

/// All of them. One that explains nothing on a device that it is of fails the run, and is to be taken out.
pub const EXCEPTIONS: &[Exception] = &[
    Exception {
        name: "beyond-the-standard-bits",
        driver: "rxe",
        when: &[],
        transports: ALL,
        from: None,
        to: None,
        bits: BEYOND,
        lacks: ibv_qp_attr_mask::empty(),
        field: None,
        errno: EOPNOTSUPP,
        source: "rdma-core libibverbs/cmd.c:ibv_cmd_modify_qp",
        reason: "bits above IBV_QP_DEST_QPN are refused before the kernel is asked, with EOPNOTSUPP instead of EINVAL",
    },
    Exception {
        name: "uc-av-in-sqd",
        driver: "rxe",
        when: &[],
        transports: &[Uc],
        from: Some(IBV_QPS_SQD),
        to: Some(IBV_QPS_SQD),
        bits: IBV_QP_AV,
        lacks: ibv_qp_attr_mask::empty(),
        field: None,
        errno: super::EINVAL,
        source: "drivers/infiniband/core/uverbs_cmd.c:modify_qp",
        reason: "IBV_QP_PORT is added to every mask that has IBV_QP_AV and does not go to RTR, and UC must not have it",
    },
    Exception {
        name: "qkey-for-privileged-programs",
        driver: "rxe",
        when: &[],
        transports: &[Ud],
        from: None,
        to: None,
        bits: IBV_QP_QKEY,
        lacks: ibv_qp_attr_mask::empty(),
        field: Some("qkey"),
        errno: OK,
        source: "drivers/infiniband/core/uverbs_cmd.c:modify_qp",
        reason: "a program with CAP_NET_RAW, such as root's, may set such a key",
    },
    Exception {
        name: "path-mtu-of-0",
        driver: "rxe",
        when: &[],
        transports: &[Rc, Uc],
        from: None,
        to: None,
        bits: IBV_QP_PATH_MTU,
        lacks: ibv_qp_attr_mask::empty(),
        field: Some("path_mtu"),
        errno: OK,
        source: "drivers/infiniband/sw/rxe/rxe_qp.c:rxe_qp_chk_attr",
        reason: "the code is compared with the greatest one only, so 0, which is none, passes",
    },
    Exception {
        name: "no-rule-without-a-state",
        driver: "rxe",
        when: &[When::KernelFrom(6, 12)],
        transports: ALL,
        from: None,
        to: None,
        bits: ibv_qp_attr_mask::empty(),
        lacks: IBV_QP_STATE,
        field: None,
        errno: OK,
        source: "drivers/infiniband/sw/rxe/rxe_qp.c:rxe_qp_chk_attr",
        reason: "the table of moves is asked only where IBV_QP_STATE is in the mask",
    },
];
