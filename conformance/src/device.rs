//! A verbs device as these programs use it: safe to call, thin, and the same for every table.
//!
//! The one module of this crate with `unsafe`. Objects own their parents by `Rc`, so none is destroyed before what
//! stands on it; a [`Qp`] owns the one [`Buffer`] that its requests may name, and a `Buffer` is read and written by copies
//! through raw pointers, never lent as a reference. No object leaves its thread (`Rc`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::{CStr, c_int};
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use rdma_core_sys::*;

/// Where the verbs come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Source {
    /// The software device of this process.
    Soft,
    /// The system's libibverbs, and through it a device of the kernel.
    System,
}

/// A call that failed: its name and errno.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The call, as verbs spell it, with what it was about.
    pub call: String,
    /// Its errno.
    pub errno: c_int,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{}: {why}", self.call)
    }
}

impl std::error::Error for Failed {}

fn failed(call: impl Into<String>) -> Failed {
    Failed {
        call: call.into(),
        errno: ops::errno(),
    }
}

/// Turns an errno value that a call returned into a result.
fn outcome(call: &str, errno: c_int) -> Result<(), Failed> {
    match errno {
        0 => Ok(()),
        errno => Err(Failed {
            call: call.to_owned(),
            errno,
        }),
    }
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    verbs: Verbs,
    context: NonNull<ibv_context>,
    name: String,
}

impl Device {
    /// Opens the device of that name, or the first one.
    ///
    /// # Errors
    /// A text that names what is missing.
    pub fn open(source: Source, name: Option<&str>) -> Result<Rc<Device>, String> {
        let verbs = match source {
            Source::Soft => *rdma_soft::verbs(),
            Source::System => Verbs::open().map_err(|e| e.to_string())?,
        };
        let mut count = 0;
        // SAFETY: `count` is writable.
        let list = unsafe { verbs.get_device_list(&mut count) };
        if list.is_null() {
            return Err(failed("ibv_get_device_list").to_string());
        }
        let mut seen = Vec::new();
        let mut opened = None;
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: below the count of the list, which is not freed yet.
            let device = unsafe { *list.add(at) };
            // SAFETY: a device of the list; its name is a C string that lives as long.
            let found = unsafe { CStr::from_ptr(verbs.get_device_name(device)) };
            let found = found.to_string_lossy().into_owned();
            if opened.is_none() && name.is_none_or(|name| name == found) {
                // SAFETY: a device of the list, which is not freed yet.
                let context = NonNull::new(unsafe { verbs.open_device(device) });
                opened = Some(context.ok_or_else(|| failed(format!("ibv_open_device {found}"))));
            }
            seen.push(found);
        }
        // SAFETY: the list of `get_device_list`, freed once; an open device stays valid.
        unsafe { verbs.free_device_list(list) };
        match opened {
            Some(context) => {
                let context = context.map_err(|e| e.to_string())?;
                let name = name.unwrap_or(&seen[0]).to_owned();
                let device = Device {
                    verbs,
                    context,
                    name,
                };
                // SAFETY: the context is open: `device` closes it when it is dropped.
                match unsafe { ops::missing_fast_op(device.context.as_ptr()) } {
                    Some(op) => Err(format!("{} has no {op}", device.name)),
                    None => Ok(Rc::new(device)),
                }
            }
            None => Err(format!(
                "no device {}; there are: {}",
                name.unwrap_or("at all"),
                seen.join(" ")
            )),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its attributes.
    ///
    /// # Errors
    /// The call's errno.
    pub fn attributes(&self) -> Result<ibv_device_attr, Failed> {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: the context is open until `self` is dropped; `attr` is writable.
        let errno = unsafe { self.verbs.query_device(self.context.as_ptr(), &mut attr) };
        outcome("ibv_query_device", errno).map(|()| attr)
    }

    /// The attributes of a port, counted from 1.
    ///
    /// # Errors
    /// The call's errno.
    pub fn port(&self, port: u8) -> Result<ibv_port_attr, Failed> {
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: the context is open until `self` is dropped and of this table; `attr` is writable.
        let errno =
            unsafe { ops::ibv_query_port(&self.verbs, self.context.as_ptr(), port, &mut attr) };
        outcome("ibv_query_port", errno).map(|()| attr)
    }

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// The call's errno.
    pub fn gid(&self, port: u8, index: u8) -> Result<ibv_gid, Failed> {
        let mut gid = ibv_gid::zeroed();
        let at = c_int::from(index);
        // SAFETY: the context is open until `self` is dropped; `gid` is writable.
        let result = unsafe { (self.verbs).query_gid(self.context.as_ptr(), port, at, &mut gid) };
        match result {
            0 => Ok(gid),
            _ => Err(failed(format!(
                "ibv_query_gid of port {port}, index {index}"
            ))),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened once, closed here only; all objects on it own it, so they are gone.
        let result = unsafe { self.verbs.close_device(self.context.as_ptr()) };
        if result != 0 {
            eprintln!("{}", failed("ibv_close_device"));
        }
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    device: Rc<Device>,
    pd: NonNull<ibv_pd>,
}

impl Pd {
    /// Allocates one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(device: &Rc<Device>) -> Result<Rc<Pd>, Failed> {
        // SAFETY: the context is open until `device` is dropped.
        let pd = unsafe { device.verbs.alloc_pd(device.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| failed("ibv_alloc_pd"))?;
        let device = Rc::clone(device);
        Ok(Rc::new(Pd { device, pd }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed here only; all objects on it own it, so they are gone.
        let errno = unsafe { self.device.verbs.dealloc_pd(self.pd.as_ptr()) };
        report(outcome("ibv_dealloc_pd", errno));
    }
}

/// Says that an object could not be destroyed; the program goes on.
fn report(result: Result<(), Failed>) {
    if let Err(error) = result {
        eprintln!("{error}");
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    device: Rc<Device>,
    cq: NonNull<ibv_cq>,
}

impl Cq {
    /// Creates one with room for `depth` completions.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(device: &Rc<Device>, depth: c_int) -> Result<Rc<Cq>, Failed> {
        let context = device.context.as_ptr();
        // SAFETY: the context is open until `device` is dropped; no channel.
        let cq = unsafe { (device.verbs).create_cq(context, depth, null_mut(), null_mut(), 0) };
        let cq = NonNull::new(cq).ok_or_else(|| failed("ibv_create_cq"))?;
        let device = Rc::clone(device);
        Ok(Rc::new(Cq { device, cq }))
    }

    /// Takes one completion, if there is one.
    ///
    /// # Errors
    /// What a negative result of `ibv_poll_cq` left in errno.
    pub fn poll(&self) -> Result<Option<ibv_wc>, Failed> {
        let mut wc = ibv_wc::zeroed();
        // SAFETY: the CQ is alive until `self` is dropped, its device has `poll_cq` (checked by `Device::open`), and
        // there is room for one completion.
        match unsafe { ops::ibv_poll_cq(self.cq.as_ptr(), 1, &mut wc) } {
            0 => Ok(None),
            1 => Ok(Some(wc)),
            _ => Err(failed("ibv_poll_cq")),
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed here only; all QPs on it own it, so they are gone. No events: no channel.
        let errno = unsafe { self.device.verbs.destroy_cq(self.cq.as_ptr()) };
        report(outcome("ibv_destroy_cq", errno));
    }
}

/// Registered memory.
#[derive(Debug)]
pub struct Buffer {
    pd: Rc<Pd>,
    mr: NonNull<ibv_mr>,
    memory: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    /// Allocates and registers `len` bytes of zeros (at least one), page-aligned, for all that verbs know on RC.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(pd: &Rc<Pd>, len: usize) -> Result<Rc<Buffer>, Failed> {
        const PAGE: usize = 4096;
        let layout = Layout::from_size_align(len.max(1), PAGE).map_err(|_| Failed {
            call: format!("a buffer of {len} bytes"),
            errno: ENOMEM,
        })?;
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else {
            handle_alloc_error(layout)
        };
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let (verbs, address) = (&pd.device.verbs, memory.as_ptr().cast());
        // SAFETY: the PD is alive until `pd` is dropped and of this table. The memory stays until the drop, after the
        // region is gone, and is touched through raw pointers only.
        let mr = unsafe {
            ops::ibv_reg_mr(verbs, pd.pd.as_ptr(), address, layout.size(), access.bits())
        };
        let Some(mr) = NonNull::new(mr) else {
            let error = failed("ibv_reg_mr");
            // SAFETY: allocated above with this layout, known to nobody else.
            unsafe { dealloc(memory.as_ptr(), layout) };
            return Err(error);
        };
        let pd = Rc::clone(pd);
        Ok(Rc::new(Buffer {
            pd,
            mr,
            memory,
            layout,
        }))
    }

    /// The address of the byte at `offset`.
    #[must_use]
    pub fn address(&self, offset: usize) -> u64 {
        self.memory.as_ptr() as u64 + offset as u64
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is alive until the drop.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// A scatter/gather entry for a part of it. Nothing is checked here: the device does that.
    fn sge(&self, part: (usize, usize)) -> ibv_sge {
        ibv_sge {
            addr: self.address(part.0),
            length: part.1 as u32,
            // SAFETY: the region is alive until the drop.
            lkey: unsafe { self.mr.as_ref() }.lkey,
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Past the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(
            end.is_some_and(|end| end <= self.layout.size()),
            "past the end of a buffer"
        );
        let to = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: inside the allocation by the line above; `bytes` is a borrow, and this memory is never lent.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// A copy of `len` bytes at `offset`.
    ///
    /// # Panics
    /// Past the end.
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.layout.size()),
            "past the end of a buffer"
        );
        let mut bytes = vec![0; len];
        let from = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: inside the allocation by the lines above; `bytes` is our own, so they do not overlap.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: registered once, deregistered here only; all QPs that may touch it own it, so they are gone.
        let errno = unsafe { self.pd.device.verbs.dereg_mr(self.mr.as_ptr()) };
        if errno != 0 {
            // A device may still touch the memory: it stays.
            return report(outcome("ibv_dereg_mr", errno));
        }
        // SAFETY: allocated in `new` with this layout; no device knows it any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

const ENOMEM: c_int = 12;

/// A send request on the QP's buffer.
#[derive(Clone, Debug)]
pub struct Send {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: ibv_wr_opcode,
    /// Its flags.
    pub flags: ibv_send_flags,
    /// Immediate data in host byte order; used where the operation has some.
    pub imm: u32,
    /// The parts of the QP's buffer, as offset and length.
    pub parts: Vec<(usize, usize)>,
    /// Remote address and rkey; used where the operation has them.
    pub remote: (u64, u32),
    /// What an atomic compares with or adds, and what it swaps in.
    pub operands: (u64, u64),
}

/// A Queue Pair.
#[derive(Debug)]
pub struct Qp {
    pd: Rc<Pd>,
    cqs: [Rc<Cq>; 2],
    buffer: Option<Rc<Buffer>>,
    qp: NonNull<ibv_qp>,
    cap: ibv_qp_cap,
}

impl Qp {
    /// Creates one whose requests may name `buffer`. The first CQ is for sends, the second for receives.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(
        pd: &Rc<Pd>,
        cqs: [&Rc<Cq>; 2],
        buffer: Option<&Rc<Buffer>>,
        qp_type: ibv_qp_type,
        cap: ibv_qp_cap,
    ) -> Result<Qp, Failed> {
        let mut init = ibv_qp_init_attr::zeroed();
        init.send_cq = cqs[0].cq.as_ptr();
        init.recv_cq = cqs[1].cq.as_ptr();
        init.cap = cap;
        init.qp_type = qp_type;
        // SAFETY: PD and CQs are alive, because the QP owns them; `init` is writable.
        let qp = unsafe { pd.device.verbs.create_qp(pd.pd.as_ptr(), &mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| failed("ibv_create_qp"))?;
        Ok(Qp {
            pd: Rc::clone(pd),
            cqs: cqs.map(Rc::clone),
            buffer: buffer.cloned(),
            qp,
            cap: init.cap,
        })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the QP is alive until the drop, and the number never changes.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// The capacity that the device gave.
    #[must_use]
    pub fn cap(&self) -> ibv_qp_cap {
        self.cap
    }

    /// The CQ of sends.
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        &self.cqs[0]
    }

    /// The CQ of receives.
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        &self.cqs[1]
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// The call's errno.
    pub fn modify(&self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Failed> {
        let (verbs, mut attr) = (&self.pd.device.verbs, *attr);
        // SAFETY: the QP is alive until the drop; `attr` is a whole struct of our own.
        let errno =
            unsafe { verbs.modify_qp(self.qp.as_ptr(), &mut attr, mask.bits().cast_signed()) };
        outcome("ibv_modify_qp", errno)
    }

    /// `ibv_query_qp`, for all attributes.
    ///
    /// # Errors
    /// The call's errno.
    pub fn query(&self) -> Result<ibv_qp_attr, Failed> {
        let verbs = &self.pd.device.verbs;
        let mask = (ibv_qp_attr_mask::all() - IBV_QP_RATE_LIMIT)
            .bits()
            .cast_signed();
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: the QP is alive until the drop; both structs are writable.
        let errno = unsafe { verbs.query_qp(self.qp.as_ptr(), &mut attr, mask, &mut init) };
        outcome("ibv_query_qp", errno).map(|()| attr)
    }

    fn sges(&self, parts: &[(usize, usize)]) -> Vec<ibv_sge> {
        let buffer = self.buffer.as_ref();
        parts
            .iter()
            .filter_map(|&part| Some(buffer?.sge(part)))
            .collect()
    }

    /// Posts one receive into parts of the QP's buffer.
    ///
    /// # Errors
    /// The call's errno.
    pub fn post_recv(&self, wr_id: u64, parts: &[(usize, usize)]) -> Result<(), Failed> {
        let mut sges = self.sges(parts);
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as c_int;
        let mut bad = null_mut();
        // SAFETY: the QP is alive and its device has `post_recv`; one request whose list lives during the call. The keys
        // are those of the QP's own buffer, which outlives the QP.
        outcome("ibv_post_recv", unsafe {
            ops::ibv_post_recv(self.qp.as_ptr(), &mut wr, &mut bad)
        })
    }

    /// Posts one send.
    ///
    /// # Errors
    /// The call's errno.
    ///
    /// # Panics
    /// Where an inline request names bytes past the end of the buffer.
    pub fn post_send(&self, send: &Send) -> Result<(), Failed> {
        let mut sges = self.sges(&send.parts);
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = send.wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as c_int;
        wr.opcode = send.opcode;
        wr.send_flags = send.flags.bits();
        let (remote_addr, rkey) = send.remote;
        match send.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let (compare_add, swap) = send.operands;
                wr.wr.atomic = ibv_send_wr_atomic {
                    remote_addr,
                    compare_add,
                    swap,
                    rkey,
                };
            }
            _ => {}
        }
        if matches!(
            send.opcode,
            IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND_WITH_IMM
        ) {
            wr.set_imm_data(send.imm);
        }
        if send.flags.contains(IBV_SEND_INLINE) {
            // The post itself reads the bytes, and looks at no key.
            let size = self
                .buffer
                .as_ref()
                .map_or(0, |buffer| buffer.layout.size());
            let inside =
                |&(at, len): &(usize, usize)| at.checked_add(len).is_some_and(|end| end <= size);
            assert!(send.parts.iter().all(inside), "past the end of a buffer");
        }
        let mut bad = null_mut();
        // SAFETY: the QP is alive and its device has `post_send`; one request whose list lives during the call. The keys
        // are those of the QP's own buffer, which outlives the QP; inline parts lie inside it by the check above.
        outcome("ibv_post_send", unsafe {
            ops::ibv_post_send(self.qp.as_ptr(), &mut wr, &mut bad)
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed here only, before the fields that it stands on.
        let errno = unsafe { self.pd.device.verbs.destroy_qp(self.qp.as_ptr()) };
        report(outcome("ibv_destroy_qp", errno));
    }
}
