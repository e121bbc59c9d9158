//! The mesh: every process of a job sends to every other one, by rank.

mod attr;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use rdma_qp::xrc::XrcDomain;
use rdma_qp::{Device, Fate, GidEntry, Memory, Mr};
use rdma_xrc::mesh::{
    Event, Joining, Layout, Mesh, MeshError, Message, NotDone, OpId, Options, Over, Rank, SendError,
};

use crate::device::{self, qp_device};
use crate::errors;
use crate::export::{Array, In, Out, Places, Raw, Room, export};
use crate::fault::*;
use crate::memory::{access, qp_mr};
use crate::slots::{Alone, Held, Kind, Later, Object, Place, insert};
use crate::values::{deadline, framed, qp_region, qp_timing, unframed};
use crate::xrc::qp_xrc_domain;
use attr::qp_mesh_options;

/// One process of a job in which every process sends to every other one. One thread at a time may call functions with it.
#[allow(non_camel_case_types)]
pub struct qp_mesh {
    _never: [u8; 0],
}

/// Bytes of a card in which a process offers up to 16 regions: what qp_mesh_card() and qp_mesh_join() take for each process.
pub const QP_MESH_CARD: usize = 512;

/// What happened in a mesh.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_mesh_kind {
    /// A message came from `rank`, of `len` bytes.
    QP_MESH_MESSAGE = 1,
    /// The request `op` towards `rank` has ended.
    QP_MESH_DONE = 2,
    /// The process `rank` has failed: nothing is sent to it any more.
    QP_MESH_FAILED = 3,
    /// The process `rank` has left the job.
    QP_MESH_LEFT = 4,
}

/// What the peer made of a request.
#[repr(C)]
#[allow(non_camel_case_types, dead_code)]
#[derive(Clone, Copy)]
pub enum qp_fate {
    /// It was executed.
    QP_FATE_DONE = 0,
    /// It was not executed.
    QP_FATE_NOT_DONE = 1,
    /// It may have been executed or not.
    QP_FATE_UNKNOWN = 2,
}

/// The fate as C has it.
pub(crate) fn fate(fate: Fate) -> u32 {
    let fate = match fate {
        Fate::Done => qp_fate::QP_FATE_DONE,
        Fate::NotDone => qp_fate::QP_FATE_NOT_DONE,
        Fate::Unknown => qp_fate::QP_FATE_UNKNOWN,
    };
    fate as u32
}

/// What an event has of an operation that was not done: `status` and `fate`. (Never inlined: where one was done, the optimiser
/// would look at what is not there, and memory checkers would tell its user.)
#[cold]
#[inline(never)]
fn why(not_done: &NotDone) -> (u32, u32) {
    let status = not_done.failure.map(|failure| failure.status.0);
    (status.unwrap_or(u32::MAX), fate(not_done.fate))
}

/// Something that happened in a mesh.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_mesh_event {
    /// What: one of enum qp_mesh_kind.
    pub kind: u32,
    /// Whom it concerns.
    pub rank: u32,
    /// QP_MESH_DONE: which request, as the call that began it said.
    pub op: u64,
    /// QP_MESH_MESSAGE: bytes.
    pub len: usize,
    /// QP_MESH_DONE: how it ended: one of enum ibv_wc_status, 0 for success; UINT32_MAX: it had not left yet.
    pub status: u32,
    /// QP_MESH_DONE: one of enum qp_fate.
    pub fate: u32,
}

/// What C has a `qp_mesh *` of.
pub(crate) struct Process {
    stage: Stage,
    /// Processes of the job.
    processes: usize,
    /// A message that did not fit, to be asked for again.
    kept: Option<Message>,
    /// What is to be told before anything else.
    failed: VecDeque<u32>,
}

enum Stage {
    Joining(Box<Joining>),
    Joined(Box<Mesh>),
    /// Joining failed.
    Nothing,
}

// SAFETY: no other type has this kind.
unsafe impl Object for Process {
    type C = qp_mesh;
    const KIND: Kind = Kind::Mesh;
}

impl From<MeshError> for Fault {
    fn from(error: MeshError) -> Fault {
        let text = error.to_string();
        let (code, errno) = match error {
            MeshError::NotInLayout { .. } | MeshError::Option { .. } => {
                (QP_CODE_RANGE, libc::EINVAL)
            }
            MeshError::Card(_) => (QP_CODE_RECORD, libc::EPROTO),
            MeshError::Step { source, .. } => return errors::of_any(source).saying(text),
            MeshError::TimedOut { .. } => (QP_CODE_TIMED_OUT, libc::ETIMEDOUT),
            _ => (QP_CODE_SYSTEM, libc::EIO),
        };
        Fault::new(code, errno, text)
    }
}

impl From<SendError> for Fault {
    fn from(error: SendError) -> Fault {
        let (code, errno) = match error {
            SendError::Busy | SendError::Connecting(_) => (QP_CODE_FULL, libc::EAGAIN),
            SendError::Failed { .. } => (QP_CODE_PEER, libc::ECONNRESET),
            SendError::Left(_) => (QP_CODE_PEER, libc::ESHUTDOWN),
            SendError::NoSuchProcess { .. } | SendError::NoSuchRegion { .. } => {
                (QP_CODE_NOT_FOUND, libc::ENODATA)
            }
            SendError::OneSided(_) => (QP_CODE_UNSUPPORTED, libc::EOPNOTSUPP),
            SendError::Post(error) => return error.into(),
            SendError::Mesh(error) => return error.into(),
            _ => (QP_CODE_REFUSED, libc::EINVAL),
        };
        Fault::new(code, errno, error.to_string())
    }
}

#[cold]
fn wrong_stage(text: &str) -> Fault {
    Fault::new(QP_CODE_STATE, libc::EINVAL, text)
}

impl Process {
    fn joining(&mut self) -> Result<&mut Joining, Fault> {
        match &mut self.stage {
            Stage::Joining(joining) => Ok(joining),
            _ => Err(wrong_stage("the process has joined the mesh already")),
        }
    }

    fn mesh(&mut self) -> Result<&mut Mesh, Fault> {
        match &mut self.stage {
            Stage::Joined(mesh) => Ok(mesh),
            _ => Err(wrong_stage(
                "the process has not joined the mesh yet: call qp_mesh_join() first",
            )),
        }
    }

    /// The next event. `None`: there was none until the deadline.
    fn next(
        &mut self,
        timeout_ms: i64,
        data: &mut Places<'_, u8>,
    ) -> Result<Option<qp_mesh_event>, Fault> {
        let mut told = qp_mesh_event {
            kind: 0,
            rank: 0,
            op: 0,
            len: 0,
            status: 0,
            fate: 0,
        };
        if let Some(rank) = self.failed.pop_front() {
            (told.kind, told.rank) = (qp_mesh_kind::QP_MESH_FAILED as u32, rank);
            return Ok(Some(told));
        }
        let event = match self.kept.take() {
            Some(message) => Some(Event::Message(message)),
            None if timeout_ms == 0 => self.mesh()?.poll()?,
            None => self.mesh()?.wait(deadline(timeout_ms))?,
        };
        match event {
            None => return Ok(None),
            Some(Event::Message(message)) => {
                (told.kind, told.rank) = (qp_mesh_kind::QP_MESH_MESSAGE as u32, message.from.0);
                told.len = message.len();
                data.fill_whole(&message)
                    .inspect_err(|_| self.kept = Some(message))?;
            }
            Some(Event::Done { op, to, result }) => {
                (told.kind, told.rank) = (qp_mesh_kind::QP_MESH_DONE as u32, to.0);
                told.op = op.number();
                if let Err(not_done) = result {
                    (told.status, told.fate) = why(&not_done);
                }
            }
            Some(Event::Failed { processes, .. }) => {
                self.failed = processes.iter().map(|rank| rank.0).collect();
                return self.next(timeout_ms, data);
            }
            Some(Event::Left(rank)) => {
                (told.kind, told.rank) = (qp_mesh_kind::QP_MESH_LEFT as u32, rank.0);
            }
            Some(_) => return self.next(timeout_ms, data),
        }
        Ok(Some(told))
    }
}

fn create(
    (device, gid): (&Device, GidEntry),
    over: Over,
    nodes: &[u32],
    rank: u32,
    options: Options,
) -> Result<*mut qp_mesh, Fault> {
    let layout = Layout::new(nodes.iter().copied());
    let joining = Mesh::begin(device, gid, over, &layout, Rank(rank), &options)?;
    insert(Process {
        stage: Stage::Joining(Box::new(joining)),
        processes: nodes.len(),
        kept: None,
        failed: VecDeque::new(),
    })
}

/// Milliseconds, as poll(2) takes them: who sleeps so long does not wake too early.
fn at_least(time: Duration) -> c_int {
    let whole = time.as_nanos().div_ceil(1_000_000);
    whole.try_into().unwrap_or(c_int::MAX)
}

fn begun(result: Result<OpId, SendError>, op: Option<Out<'_, u64>>) -> Result<(), Fault> {
    let begun = result?;
    if let Some(mut op) = op {
        op.set(begun.number());
    }
    Ok(())
}

export! {
    /// Makes the part of a mesh that this process needs by itself. Then its card goes to all others, and theirs come here:
    /// qp_mesh_card(), MPI_Allgather() or what there is, qp_mesh_join().
    ///
    /// @param port       Port of the device, counted from 1.
    /// @param gid_index  Place of the GID in the port's table; -1 chooses one.
    /// @param domain     The XRC domain that the processes of this node share: the mesh is over XRC. NULL: over RC.
    /// @param nodes      The node that each process lives on, by rank: any numbers, equal for those of one node.
    /// @param processes  Their number.
    /// @param rank       This process.
    /// @param options    NULL for the usual ones.
    /// @param timing     NULL for the usual one of a mesh, which is patient.
    /// @param mesh       Where the handle goes; destroy it with qp_mesh_destroy().
    fn qp_mesh_create(
        device: *mut qp_device as Held<Device>,
        port: c_int,
        gid_index: c_int,
        domain: *mut qp_xrc_domain as Option<Held<XrcDomain>>,
        nodes: *const u32 as Array<'_, u32>,
        processes: usize,
        rank: u32,
        options: *const qp_mesh_options as Option<In<'_, qp_mesh_options>>,
        timing: *const qp_timing as Option<In<'_, qp_timing>>,
        mesh: *mut *mut qp_mesh as Out<'_, *mut qp_mesh>,
    ) {
        // SAFETY: `processes` is the length of `nodes`, says the header.
        let nodes = unsafe { nodes.of(processes) }?;
        let over = domain.map_or(Over::Rc, |domain| Over::Xrc(XrcDomain::clone(&domain)));
        let gid = device::gid(&device, port, gid_index)?;
        mesh.set(create((&device, gid), over, nodes, rank, attr::options(options, timing)?)?);
        Ok(())
    }

    /// The same over reliable datagrams: one UD Queue Pair for all the others, however many they are. There are messages only, and
    /// no one-sided requests (EOPNOTSUPP). In the options, send_depth and srq_depth count packets of one MTU, for all the others
    /// together. All else as qp_mesh_create().
    fn qp_mesh_create_datagrams(
        device: *mut qp_device as Held<Device>,
        port: c_int,
        gid_index: c_int,
        nodes: *const u32 as Array<'_, u32>,
        processes: usize,
        rank: u32,
        options: *const qp_mesh_options as Option<In<'_, qp_mesh_options>>,
        mesh: *mut *mut qp_mesh as Out<'_, *mut qp_mesh>,
    ) {
        // SAFETY: `processes` is the length of `nodes`, says the header.
        let nodes = unsafe { nodes.of(processes) }?;
        let gid = device::gid(&device, port, gid_index)?;
        mesh.set(create((&device, gid), Over::Datagrams, nodes, rank, attr::options(options, None)?)?);
        Ok(())
    }

    /// Registers memory of the program's for one-sided requests of a mesh that is not joined yet, and offers it to the others,
    /// who ask for it with qp_mesh_region(). All else as qp_mr_register().
    fn qp_mesh_offer(
        mesh: *mut qp_mesh as Alone<Process>,
        addr: *mut std::ffi::c_void as Raw<std::ffi::c_void>,
        len: usize,
        access: c_int,
        mr: *mut *mut qp_mr as Out<'_, *mut qp_mr>,
    ) {
        let access = self::access(access)?;
        let start: NonNull<u8> = addr.0.cast();
        if len > isize::MAX as usize || start.addr().get().checked_add(len).is_none() {
            return Err(Fault::range(format!("{len} bytes from {start:p} on: no memory is so long")));
        }
        let joining = mesh.joining()?;
        // What the others are told of has its handle: nothing fails after that.
        let place = Place::take()?;
        // SAFETY: the header asks for `len` bytes there until the region is destroyed, which gives them back, or refuses.
        let memory = unsafe { Memory::foreign(start, len) };
        let region: Mr = joining.pd().register(memory, access)?;
        joining.offer(region.remote());
        mr.set(place.fill(region));
        Ok(())
    }

    /// Gives what the others need to know of this process.
    ///
    /// @param card  Room for QP_MESH_CARD bytes.
    /// @return 0; EINVAL (QP_CODE_STATE): it has joined already; ENOSPC: it offers more than 16 regions.
    fn qp_mesh_card(mesh: *mut qp_mesh as Alone<Process>, card: *mut u8 as Room<'_, u8>) {
        // SAFETY: the header asks for so much room.
        let mut places = unsafe { card.of(QP_MESH_CARD) }?;
        let bytes = mesh.joining()?.card()?;
        let Some(card) = framed::<QP_MESH_CARD>(&bytes) else {
            let text = format!("a card of {} bytes: at most 16 regions can be offered here", bytes.len());
            return Err(Fault::new(QP_CODE_SHORT_BUFFER, libc::ENOSPC, text));
        };
        places.fill(&card);
        Ok(())
    }

    /// Joins the others. No way is connected yet: that happens when it is first needed, or with qp_mesh_connect().
    ///
    /// @param cards  The cards of all processes, by rank, this one's own among them: QP_MESH_CARD bytes each.
    /// @return 0; EPROTO (QP_CODE_RECORD): they are not those of this job; the mesh is of no use then.
    fn qp_mesh_join(mesh: *mut qp_mesh as Alone<Process>, cards: *const u8 as Array<'_, u8>) {
        let Some(len) = mesh.processes.checked_mul(QP_MESH_CARD) else {
            return Err(Fault::range("so many processes are not possible"));
        };
        // SAFETY: the header asks for so many bytes.
        let bytes = unsafe { cards.of(len) }?;
        let mut each = Vec::with_capacity(mesh.processes);
        for (rank, card) in bytes.chunks_exact(QP_MESH_CARD).enumerate() {
            each.push(unframed(card).ok_or_else(|| {
                Fault::new(QP_CODE_RECORD, libc::EPROTO, format!("the card of rank {rank} is none"))
            })?);
        }
        match std::mem::replace(&mut mesh.stage, Stage::Nothing) {
            Stage::Joining(joining) => {
                mesh.stage = Stage::Joined(Box::new(joining.join(&each)?));
                Ok(())
            }
            other => {
                mesh.stage = other;
                Err(wrong_stage("the process has joined the mesh already"))
            }
        }
    }

    /// Connects all ways, and waits until they are up. The others poll or call it too.
    ///
    /// @return 0; ETIMEDOUT: some are not up; or what failed.
    fn qp_mesh_connect(mesh: *mut qp_mesh as Alone<Process>, timeout_ms: i64) {
        Ok(mesh.mesh()?.bring_up(deadline(timeout_ms))?)
    }

    /// Tells the region that a process has offered.
    ///
    /// @param index  Which of its regions, counted from 0.
    fn qp_mesh_region(
        mesh: *mut qp_mesh as Alone<Process>,
        rank: u32,
        index: usize,
        region: *mut qp_region as Out<'_, qp_region>,
    ) {
        region.set(mesh.mesh()?.region(Rank(rank), index)?.into());
        Ok(())
    }

    /// Sends a message to a process. The bytes are copied. It ends with a QP_MESH_DONE.
    ///
    /// @param data  The bytes; NULL if len is 0.
    /// @param len   Their number, at most max_message.
    /// @param op    Where the number of the request goes; may be NULL.
    /// @return 0; EAGAIN (QP_CODE_FULL): no room at present, take events and try again; ECONNRESET or ESHUTDOWN (QP_CODE_PEER):
    ///         the process has failed, or left; EINVAL: too long, or this process itself.
    fn qp_mesh_send(
        mesh: *mut qp_mesh as Alone<Process>,
        rank: u32,
        data: *const u8 as Array<'_, u8>,
        len: usize,
        op: *mut u64 as Option<Out<'_, u64>>,
    ) {
        // SAFETY: `len` is the length of `data`, says the header.
        let bytes = unsafe { data.of(len) }?;
        begun(mesh.mesh()?.send(Rank(rank), bytes), op)
    }

    /// Writes into a region of a process. It ends with a QP_MESH_DONE.
    ///
    /// @param mr             A region of this process, of qp_mesh_offer().
    /// @param offset         First byte there.
    /// @param len            Bytes.
    /// @param region         The region of the other process.
    /// @param region_offset  First byte there.
    /// @param op             Where the number of the request goes; may be NULL.
    /// @return As qp_mesh_send(); EAGAIN also where there is no way to the process yet: it is being made; EOPNOTSUPP
    ///         (QP_CODE_UNSUPPORTED): the mesh is over datagrams.
    fn qp_mesh_write(
        mesh: *mut qp_mesh as Alone<Process>,
        rank: u32,
        mr: *mut qp_mr as Held<Mr>,
        offset: usize,
        len: usize,
        region: *const qp_region as In<'_, qp_region>,
        region_offset: u64,
        op: *mut u64 as Option<Out<'_, u64>>,
    ) {
        let local = mr.slice(offset, len)?;
        begun(mesh.mesh()?.write(Rank(rank), local, region.0.at(region_offset)), op)
    }

    /// Reads from a region of a process. Arguments and result as qp_mesh_write().
    fn qp_mesh_read(
        mesh: *mut qp_mesh as Alone<Process>,
        rank: u32,
        mr: *mut qp_mr as Held<Mr>,
        offset: usize,
        len: usize,
        region: *const qp_region as In<'_, qp_region>,
        region_offset: u64,
        op: *mut u64 as Option<Out<'_, u64>>,
    ) {
        let local = mr.slice(offset, len)?;
        begun(mesh.mesh()?.read(Rank(rank), local, region.0.at(region_offset)), op)
    }

    /// Adds to 8 bytes of a region of a process, atomically; the 8 bytes at offset of mr get what was there before. All else as
    /// qp_mesh_write().
    ///
    /// @param add  What to add, in host byte order.
    fn qp_mesh_fetch_and_add(
        mesh: *mut qp_mesh as Alone<Process>,
        rank: u32,
        mr: *mut qp_mr as Held<Mr>,
        offset: usize,
        region: *const qp_region as In<'_, qp_region>,
        region_offset: u64,
        add: u64,
        op: *mut u64 as Option<Out<'_, u64>>,
    ) {
        let local = mr.slice(offset, 8)?;
        begun(mesh.mesh()?.fetch_and_add(Rank(rank), local, region.0.at(region_offset), add), op)
    }

    /// Takes the next event, and does what is to be done for the mesh meanwhile: a process that does not call this receives what
    /// comes, but nobody can connect to it. So call this often, or sleep as qp_mesh_arm() says.
    ///
    /// @param timeout_ms  How long to wait, in milliseconds; 0: not at all; below 0: no limit.
    /// @param event       Where it goes.
    /// @param data        Where the bytes of a message go; NULL only if room is 0.
    /// @param room        Room there.
    /// @return 0; ETIMEDOUT: there was none; ENOSPC (QP_CODE_SHORT_BUFFER): a message does not fit, and comes again with the
    ///         next call; or what failed.
    fn qp_mesh_next(
        mesh: *mut qp_mesh as Alone<Process>,
        timeout_ms: i64,
        event: *mut qp_mesh_event as Out<'_, qp_mesh_event>,
        data: *mut u8 as Room<'_, u8>,
        room: usize,
    ) {
        // SAFETY: `room` is the length of `data`, says the header.
        let mut places = unsafe { data.of(room) }?;
        let Some(told) = mesh.next(timeout_ms, &mut places)? else {
            let text = format!("no event within {timeout_ms} ms");
            return Err(Fault::new(QP_CODE_TIMED_OUT, libc::ETIMEDOUT, text));
        };
        event.set(told);
        Ok(())
    }

    /// Gives the descriptor that becomes readable after qp_mesh_arm(), for poll(2) and the like: the same for the whole life of
    /// the handle. It is the mesh's: do not close it.
    fn qp_mesh_fd(mesh: *mut qp_mesh as Alone<Process>, fd: *mut c_int as Out<'_, c_int>) {
        let found = mesh.mesh()?.fd().ok_or_else(|| Fault::from(rdma_qp::PollError::NoChannel))?;
        fd.set(found.as_raw_fd());
        Ok(())
    }

    /// Prepares for sleeping on the descriptor, and looks whether there is something to do already.
    ///
    /// @param ready       Where the answer goes: 1, call qp_mesh_next() with a timeout of 0 until it says ETIMEDOUT; 0, the
    ///                    descriptor becomes readable when there is something to do: then do the same.
    /// @param timeout_ms  Where goes how long to sleep at most, in milliseconds, as poll(2) takes it: then do the same although
    ///                    nothing is readable.
    fn qp_mesh_arm(
        mesh: *mut qp_mesh as Alone<Process>,
        ready: *mut c_int as Out<'_, c_int>,
        timeout_ms: *mut c_int as Out<'_, c_int>,
    ) {
        let told_already = mesh.kept.is_some() || !mesh.failed.is_empty();
        let joined = mesh.mesh()?;
        let now = told_already || !joined.arm()?;
        ready.set(now.into());
        timeout_ms.set(if now { 0 } else { at_least(joined.next_timeout()) });
        Ok(())
    }

    /// Leaves the job: what was begun is ended, and the others are told, so that they do not take this process for failed.
    ///
    /// @param timeout_ms  How long to wait until all others know.
    /// @param silent      Where the number of those goes that have not answered; may be NULL.
    fn qp_mesh_leave(
        mesh: *mut qp_mesh as Alone<Process>,
        timeout_ms: i64,
        silent: *mut usize as Option<Out<'_, usize>>,
    ) {
        let left = mesh.mesh()?.leave(deadline(timeout_ms))?;
        if let Some(mut silent) = silent {
            silent.set(left.len());
        }
        Ok(())
    }

    /// Ends this process's part of a mesh, at once. Without qp_mesh_leave() the others find it dead.
    fn qp_mesh_destroy(mesh: *mut qp_mesh as Later<Process>) {
        mesh.destroy(|_| Ok(()))
    }
}
