//! XRC: domains, and the targets by which initiators reach the SRQs of a node. Initiators are Queue Pairs ([`crate::pair`]).

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;

use rdma_core_sys::{ibv_qp, ibv_qp_state};
use rdma_qp::xrc::{CloseDomainError, Opening, XrcDomain, XrcTarget};
use rdma_qp::{Cq, Device, Negotiated, RecoverError, Recovery};

use crate::cq::{Queue, qp_cq};
use crate::device::{self, qp_device};
use crate::endpoint::qp_endpoint;
use crate::errors::in_use;
use crate::exchange::{Exchange, qp_exchange};
use crate::export::{In, Out, Text, export};
use crate::fault::*;
use crate::join::{hand_over, no_begin, qp_completion_fn};
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::{path, qp_path, qp_timing, timing};

/// An XRC domain: targets of one reach its SRQs and no others. Any number of calls may be under way with it.
#[allow(non_camel_case_types)]
pub struct qp_xrc_domain {
    _never: [u8; 0],
}

/// An XRC target: what an initiator of another node is connected to. It neither sends nor has receives. One thread at a time
/// may call functions with it.
#[allow(non_camel_case_types)]
pub struct qp_xrc_target {
    _never: [u8; 0],
}

/// How a domain is opened.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_opening {
    /// It is made if no process has it open.
    QP_OPEN_OR_CREATE = 0,
    /// No process has it open, and it is made.
    QP_CREATE_NEW = 1,
    /// A process has it open.
    QP_OPEN_EXISTING = 2,
}

/// What C has a `qp_xrc_target *` of.
pub(crate) struct Target {
    target: XrcTarget,
    agreed: Option<Negotiated>,
}

// SAFETY: no other type has this kind.
unsafe impl Object for XrcDomain {
    type C = qp_xrc_domain;
    const KIND: Kind = Kind::Domain;
}

// SAFETY: no other type has this kind.
unsafe impl Object for Target {
    type C = qp_xrc_target;
    const KIND: Kind = Kind::Target;
}

fn system(error: std::io::Error) -> Fault {
    Fault::new(
        QP_CODE_SYSTEM,
        error.raw_os_error().unwrap_or(libc::EIO),
        error.to_string(),
    )
}

export! {
    /// Opens an XRC domain.
    ///
    /// @param path    A file that the processes of a node share the domain by; its content means nothing, and it is made if it
    ///                is not there, unless it is to exist. NULL: a domain of this process alone.
    /// @param how     One of enum qp_opening; not looked at without a path.
    /// @param domain  Where the handle goes; destroy it with qp_xrc_domain_destroy().
    /// @return 0; EOPNOTSUPP: the device has no XRC; EEXIST or ENOENT: it is there, or not; or what the system said.
    fn qp_xrc_domain_open(
        device: *mut qp_device as Held<Device>,
        path: *const c_char as Option<Text<'_>>,
        how: c_int,
        domain: *mut *mut qp_xrc_domain as Out<'_, *mut qp_xrc_domain>,
    ) {
        let Some(Text(path)) = path else {
            domain.set(insert(XrcDomain::anonymous(&device)?)?);
            return Ok(());
        };
        let opening = match how {
            0 => Opening::Create,
            1 => Opening::CreateNew,
            2 => Opening::Existing,
            _ => return Err(Fault::range(format!("how is {how}, but must be in 0..=2 (enum qp_opening)"))),
        };
        let create = how != 2;
        let file = File::options().read(true).write(create).create(create).truncate(false).open(path).map_err(system)?;
        domain.set(insert(XrcDomain::of_file(&device, &file, opening)?)?);
        Ok(())
    }

    /// Closes an XRC domain.
    ///
    /// @return 0; EBUSY (QP_CODE_IN_USE): something stands in it, which qp_last_error() names; or what the system said. It stays
    ///         open then.
    fn qp_xrc_domain_destroy(domain: *mut qp_xrc_domain as Later<XrcDomain>) {
        domain.destroy(|domain| {
            domain.close().map_err(|error| {
                let text = error.to_string();
                match error {
                    CloseDomainError::Refused { domain, source } => (domain, Fault::of(QP_CODE_SYSTEM, source, &text)),
                    CloseDomainError::Busy { domain, .. } => (domain, in_use(text)),
                    // There is no third.
                    _ => unreachable!("{text}"),
                }
            })
        })
    }

    /// Makes a target, in RESET.
    ///
    /// @param domain  The XRC domain whose SRQs it reaches.
    /// @param target  Where the handle goes; destroy it with qp_xrc_target_destroy().
    fn qp_xrc_target_create(
        domain: *mut qp_xrc_domain as Held<XrcDomain>,
        target: *mut *mut qp_xrc_target as Out<'_, *mut qp_xrc_target>,
    ) {
        target.set(insert(Target { target: domain.create_target()?, agreed: None })?);
        Ok(())
    }

    /// Opens a target that any process has made in this domain: it then lives at least as long as this handle.
    ///
    /// @param qp_num  Its number.
    fn qp_xrc_target_open(
        domain: *mut qp_xrc_domain as Held<XrcDomain>,
        qp_num: u32,
        target: *mut *mut qp_xrc_target as Out<'_, *mut qp_xrc_target>,
    ) {
        target.set(insert(Target { target: domain.open_target(qp_num)?, agreed: None })?);
        Ok(())
    }

    /// Tells the number of a target: completions of an SRQ name by it who sent.
    fn qp_xrc_target_number(target: *mut qp_xrc_target as Alone<Target>, qp_num: *mut u32 as Out<'_, u32>) {
        qp_num.set(target.target.qp_num());
        Ok(())
    }

    /// Gives the object of libibverbs that a target is, as qp_device_raw().
    fn qp_xrc_target_raw(target: *mut qp_xrc_target as Alone<Target>, raw: *mut *mut ibv_qp as Out<'_, *mut ibv_qp>) {
        raw.set(target.target.as_ptr());
        Ok(())
    }

    /// Asks the device for the state of a target: one of enum ibv_qp_state.
    fn qp_xrc_target_state(target: *mut qp_xrc_target as Alone<Target>, state: *mut c_int as Out<'_, c_int>) {
        let ibv_qp_state(now) = target.target.state()?;
        state.set(now as c_int);
        Ok(())
    }

    /// Describes a target for the initiator that connects to it, as qp_pair_endpoint().
    fn qp_xrc_target_endpoint(
        target: *mut qp_xrc_target as Alone<Target>,
        device: *mut qp_device as Held<Device>,
        port: c_int,
        gid_index: c_int,
        options: *const qp_path as Option<In<'_, qp_path>>,
        here: *mut qp_endpoint as Out<'_, qp_endpoint>,
    ) {
        let options = self::path(options)?;
        let gid = device::gid(&device, port, gid_index)?;
        let told = target.target.endpoint_with(gid, options)?;
        here.set(qp_endpoint::of_this(&told, gid.index, options.pkey_index)?);
        Ok(())
    }

    /// Connects a target to the initiator that there describes, as qp_pair_connect().
    fn qp_xrc_target_connect(
        target: *mut qp_xrc_target as Alone<Target>,
        there: *const qp_endpoint as In<'_, qp_endpoint>,
        exchange: *mut qp_exchange as Alone<Exchange>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let agreed = target.target.connect_begin(&there.0.peer()?, timing)?;
        exchange.barrier()?;
        target.target.connect_finish(agreed, timing)?;
        Ok(())
    }

    /// First half of qp_xrc_target_connect(), to RTR, for programs with a barrier of their own.
    fn qp_xrc_target_connect_begin(
        target: *mut qp_xrc_target as Alone<Target>,
        there: *const qp_endpoint as In<'_, qp_endpoint>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let agreed = target.target.connect_begin(&there.0.peer()?, timing)?;
        target.agreed = Some(agreed);
        Ok(())
    }

    /// Second half of qp_xrc_target_connect(), to RTS.
    fn qp_xrc_target_connect_finish(
        target: *mut qp_xrc_target as Alone<Target>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
    ) {
        let timing = self::timing(timing)?;
        let agreed = target.agreed.ok_or_else(no_begin)?;
        target.target.connect_finish(agreed, timing)?;
        target.agreed = None;
        Ok(())
    }

    /// Lets a CQ to which SRQs of the domain report know a target: qp_cq_explain() then knows its path, and what a former
    /// Queue Pair of its number left there is told apart.
    fn qp_xrc_target_report_on(target: *mut qp_xrc_target as Alone<Target>, cq: *mut qp_cq as Alone<Queue>) {
        target.target.report_on(&cq.cq)?;
        Ok(())
    }

    /// Gives a target a new life, as qp_pair_recover() does for the initiator, which does the same at the same time: what comes by it
    /// ends, it is moved to RESET, told of with a fresh PSN, and connected again. Receives are the SRQs' and stay; a message that was
    /// half received ends with a flush.
    ///
    /// @param device     The device that it is of.
    /// @param port       Its port, counted from 1.
    /// @param gid_index  As for qp_pair_endpoint().
    /// @param cq         The CQ of its SRQs, of which the completions that came by it are taken; NULL: they stay for qp_poll().
    /// @param exchange   The channel to the peer.
    /// @param timing     NULL for the usual one.
    /// @param function   Takes the completions of the former life; NULL: nobody does.
    /// @param context    Handed to the function.
    /// @return 0, or why a step failed; calling it again begins anew, and the peer has to as well.
    fn qp_xrc_target_recover(
        target: *mut qp_xrc_target as Alone<Target>,
        device: *mut qp_device as Held<Device>,
        port: c_int,
        gid_index: c_int,
        cq: *mut qp_cq as Option<Alone<Queue>>,
        exchange: *mut qp_exchange as Alone<Exchange>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
        function: qp_completion_fn,
        context: *mut c_void,
    ) {
        let how = Recovery {
            timing: self::timing(timing)?,
            ..Recovery::new(device::gid(&device, port, gid_index)?)
        };
        target.agreed = None;
        let (drained, failed) = {
            let cqs: Vec<&Cq> = cq.iter().map(|queue| &queue.cq).collect();
            match target.target.recover(&cqs, exchange.any(), &how) {
                Ok(recovered) => (recovered.drained, None),
                Err(RecoverError { drained, reason, .. }) => (*drained, Some(reason)),
            }
        };
        if let Some(cq) = &mut cq {
            for done in &drained.completions {
                hand_over(cq, done, function, context);
            }
        }
        failed.map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Closes the handle of a target; the target itself ends with its last handle.
    fn qp_xrc_target_destroy(target: *mut qp_xrc_target as Later<Target>) {
        target.destroy(|Target { target, agreed }| {
            target.close().map_err(|error| {
                let fault = Fault::of(QP_CODE_SYSTEM, error.source, &error);
                (Target { target: *error.target, agreed }, fault)
            })
        })
    }
}
