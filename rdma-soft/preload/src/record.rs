//! What is written for `qp doctor`, where `RDMA_SOFT_RECORD` names a directory: the Queue Pairs of this process, the calls that
//! were refused, and its regions, as a [`Record`] in the file `<pid>.json`.
//!
//! A thread writes it again and again, so that it is there, too, when the process hangs or is killed; a Queue Pair that is
//! destroyed is looked at right before. Without the variable each function here is one load and the call.
#![allow(unsafe_code)]

mod regions;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_core_sys::dispatch::table_of;
use rdma_core_sys::*;
use rdma_qp::doctor::{Record, Refusal};
use rdma_qp::dump::{Dump, Failed, LastError, Mishap, RegionDump, Wrong};
use rdma_qp::{Errno, Psn, QpRef};
use rdma_soft::Profile;
use rdma_soft::core::Mishap as Noted;

use self::regions::{Id, Regions};
use crate::ending;

/// The process that records; 0 is none yet, [`ENDED`] none any more. A child that was forked does not. It is written under the lock
/// of `RECORDER`.
static RECORDS: AtomicU32 = AtomicU32::new(0);
/// Of no process: Linux numbers them up to 2^22.
const ENDED: u32 = u32::MAX;
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// How often the record is written.
const EVERY: Duration = Duration::from_millis(250);
/// Queue Pairs, and refused calls of devices other than ours, that a record has at most.
const MOST: usize = 256;

struct Recorder {
    path: PathBuf,
    /// Without its Queue Pairs.
    record: Record,
    /// Queue Pairs of the program, by address.
    live: BTreeMap<usize, Live>,
    /// Those that were destroyed, oldest first, by numbers of their own.
    buried: BTreeMap<u64, Dump>,
    burials: u64,
    regions: Regions,
    /// Which function met a refusal of the software device: its place among them, and the name.
    calls: BTreeMap<usize, &'static str>,
}

/// A Queue Pair of the program.
struct Adopted(QpRef<'static>);

// SAFETY: calls on an ibv_qp may be made by any thread (ibv_modify_qp(3) and its kin say nothing else, and libibverbs locks),
// and this one is only touched under the lock of `RECORDER`.
unsafe impl Send for Adopted {}

struct Live {
    /// It is taken out, under the lock, before the Queue Pair or its context ends, and with the recorder once nobody looks for it
    /// any more.
    qp: Adopted,
    context: usize,
    soft: bool,
    /// Something was done to it.
    used: bool,
    first_sq_psn: Option<Psn>,
    first_rq_psn: Option<Psn>,
    last_error: Option<LastError>,
    /// The regions as they were when it failed, if one was deregistered or changed since.
    regions: Option<Vec<RegionDump>>,
}

/// Queue Pairs that were taken out because they are about to end, each with its number among the buried, if it has one.
type Taken = Vec<(usize, Option<u64>, Live)>;

/// Begins to record, if that is wanted.
pub(crate) fn begin() {
    extern "C" fn at_exit() {
        if wanted() && !ending::do_last(write_last) {
            crate::say(format_args!(
                "the record lacks the end: the process ends within a call of the device"
            ));
        }
    }
    if RECORDS.load(Ordering::Relaxed) != 0 {
        return;
    }
    // What is wrong with a profile is told where devices are listed.
    let Ok(Profile {
        record: Some(dir),
        faults,
        ..
    }) = Profile::from_env()
    else {
        return;
    };
    let mut recorder = lock();
    // Another thread may have been faster.
    if RECORDS.load(Ordering::Relaxed) != 0 {
        return;
    }
    let program = std::fs::read("/proc/self/comm").unwrap_or_default();
    let mut record = Record::new(String::from_utf8_lossy(&program).trim_end());
    let round_trip = (faults.delay + faults.jitter) * 2;
    record.link_rtt_us = u64::try_from(round_trip.as_micros())
        .ok()
        .filter(|us| *us > 0);
    let path = dir.join(format!("{}.json", std::process::id()));
    *recorder = Some(Recorder {
        path,
        record,
        live: BTreeMap::new(),
        buried: BTreeMap::new(),
        burials: 0,
        regions: Regions::default(),
        calls: BTreeMap::new(),
    });
    RECORDS.store(std::process::id(), Ordering::Relaxed);
    drop(recorder);
    // SAFETY: a function of this library, which is preloaded and never unloaded.
    unsafe { libc::atexit(at_exit) };
    let thread = ending::spawn("qp-record", || {
        while write_now(&mut lock()) {
            std::thread::sleep(EVERY);
        }
    });
    if let Err(error) = thread {
        crate::say(format_args!("no thread that records: {error}"));
    }
}

/// Writes the record, and ends where it cannot be written. Whether anybody records still.
fn write_now(recorder: &mut Option<Recorder>) -> bool {
    let Some(recording) = recorder else {
        return false;
    };
    if let Err(error) = recording.write() {
        crate::say(format_args!(
            "cannot write the record {}: {error}",
            recording.path.display()
        ));
        end(recorder);
    }
    recorder.is_some()
}

/// Writes the record a last time.
fn write_last() {
    let mut recorder = lock();
    if let Some(recording) = recorder.as_mut() {
        recording.record.ended = true;
        write_now(&mut recorder);
        end(&mut recorder);
    }
}

/// From now on nobody records: whoever waits for the lock finds no Queue Pair to ask, for nobody tells any more which of them ends.
fn end(recorder: &mut Option<Recorder>) {
    *recorder = None;
    RECORDS.store(ENDED, Ordering::Release);
}

fn wanted() -> bool {
    // Whoever sees the end may destroy what was looked at until then.
    match RECORDS.load(Ordering::Acquire) {
        0 | ENDED => false,
        pid => pid == std::process::id(),
    }
}

fn lock() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call; gives also the place of its refusal, if the software device refused it. What other threads are refused meanwhile is
/// none of it.
fn with_refusal<T>(call: impl FnOnce() -> T) -> (T, Option<usize>) {
    let before = rdma_soft::refusal_place();
    let answer = call();
    let after = rdma_soft::refusal_place();
    (answer, after.filter(|_| after != before))
}

/// Makes a call, and notes its name if the software device refuses it.
pub(crate) fn named<T>(symbol: &'static str, call: impl FnOnce() -> T) -> T {
    if !wanted() {
        return call();
    }
    let (answer, refused) = with_refusal(call);
    if let Some(place) = refused {
        let errno = ops::errno();
        if let Some(recorder) = lock().as_mut() {
            recorder.calls.entry(place).or_insert(symbol);
        }
        ops::set_errno(errno);
    }
    answer
}

/// Notes a Queue Pair that was made, or could not be. Gives it back.
///
/// # Safety
/// `qp` is null or a live QP of that table that was just made.
pub(crate) unsafe fn created(verbs: &Verbs, qp: *mut ibv_qp) -> *mut ibv_qp {
    if qp.is_null() {
        return made("ibv_create_qp", None, qp);
    }
    if wanted()
        && let Some(recorder) = lock().as_mut()
    {
        // Whatever had this address is gone.
        recorder.live.remove(&(qp as usize));
        // SAFETY: live by the caller's promise.
        unsafe { recorder.adopt(verbs, qp) };
    }
    qp
}

/// `ibv_modify_qp`.
///
/// # Safety
/// That of `ibv_modify_qp` of that table.
pub(crate) unsafe fn modify_qp(
    verbs: &Verbs,
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    if !wanted() || qp.is_null() || attr.is_null() {
        // SAFETY: the caller's promises are those that it asks for.
        return unsafe { verbs.modify_qp(qp, attr, mask) };
    }
    // Under the lock: to ask for a state is to write it to `ibv_qp::state` (ibv_query_qp(3) and libibverbs' verbs.c), where it must
    // not come behind that of this call. Nothing in it waits for another call of the program's.
    let mut recorder = lock();
    // SAFETY: the caller's promises are those that it asks for.
    let (errno, refused) = with_refusal(|| unsafe { verbs.modify_qp(qp, attr, mask) });
    if let Some(recorder) = recorder.as_mut() {
        // Here, since the recorder may be refused something, too, when it asks what was wrong.
        if let Some(place) = refused {
            recorder.calls.entry(place).or_insert("ibv_modify_qp");
        }
        let mask = ibv_qp_attr_mask::from_bits_retain(mask as u32);
        // SAFETY: a live QP and readable attributes, as `ibv_modify_qp` needs them.
        unsafe { recorder.modified(verbs, qp, &*attr, mask, errno) };
    }
    errno
}

/// Makes a call that ends some Queue Pairs, and takes the last look at them before; after a call that was refused they are there
/// as before.
fn ends_some(ends: impl Fn(usize, &Live) -> bool, call: impl FnOnce() -> c_int) -> c_int {
    let taken = match wanted() {
        true => lock().as_mut().map(|recorder| recorder.bury(ends)),
        false => None,
    };
    let answer = call();
    if let Some(taken) = taken.filter(|taken| answer != 0 && !taken.is_empty()) {
        let errno = ops::errno();
        if let Some(recorder) = lock().as_mut() {
            recorder.dig_up(taken);
        }
        ops::set_errno(errno);
    }
    answer
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// That of `ibv_destroy_qp` of that table.
pub(crate) unsafe fn destroy_qp(verbs: &Verbs, qp: *mut ibv_qp) -> c_int {
    ends_some(
        |address, _| address == qp as usize,
        // SAFETY: the caller's promise.
        || unsafe { verbs.destroy_qp(qp) },
    )
}

/// `ibv_close_device`, after which nothing of the context may be used.
///
/// # Safety
/// That of `ibv_close_device` of that table.
pub(crate) unsafe fn close_device(verbs: &Verbs, context: *mut ibv_context) -> c_int {
    ends_some(
        |_, live| live.context == context as usize,
        // SAFETY: the caller's promise.
        || unsafe { verbs.close_device(context) },
    )
}

/// Notes that an object could not be made; `size` is what was asked for. Gives the object back.
pub(crate) fn made<T>(call: &str, size: Option<u64>, object: *mut T) -> *mut T {
    if object.is_null() && wanted() {
        let errno = ops::errno();
        if let Some(recorder) = lock().as_mut() {
            let refusals = &mut recorder.record.refusals;
            // The software device's own are asked for when the record is written; they have more to say.
            if refusals.len() < MOST
                && !rdma_soft::refusals()
                    .iter()
                    .any(|(number, _)| *number == errno)
            {
                refusals.push(Refusal {
                    call: Some(call.to_owned()),
                    errno,
                    size,
                    ..Refusal::default()
                });
            }
        }
        ops::set_errno(errno);
    }
    object
}

/// Notes a region that was registered by the function `call`, or could not be. Gives it back. `first` is where requests find its
/// first byte.
///
/// # Safety
/// `mr` is null or a live region that was just made.
pub(crate) unsafe fn registered(
    call: &str,
    len: usize,
    access: u32,
    first: u64,
    mr: *mut ibv_mr,
) -> *mut ibv_mr {
    if mr.is_null() {
        return made(call, u64::try_from(len).ok(), mr);
    }
    if wanted()
        && let Some(recorder) = lock().as_mut()
    {
        // SAFETY: a live region by the caller's promise.
        let region = unsafe { &*mr };
        let dump = RegionDump {
            addr: first,
            len: region.length as u64,
            lkey: region.lkey,
            rkey: region.rkey,
            access,
            gone: false,
        };
        recorder.regions.add(mr as usize, dump);
    }
    mr
}

/// Where requests find the first byte of a region that was registered without naming an address for it.
pub(crate) fn own_address(addr: *mut c_void, access: u32) -> u64 {
    if ibv_access_flags::from_bits_retain(access).contains(IBV_ACCESS_ZERO_BASED) {
        // SAFETY: it asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        // As the kernel has it: zero but for the offset within the page.
        addr as u64 % u64::try_from(page).unwrap_or(4096)
    } else {
        addr as u64
    }
}

/// Which region is about to be deregistered or changed, if it is known.
fn known(mr: *mut ibv_mr) -> Option<Id> {
    match wanted() {
        true => lock().as_ref()?.regions.at(mr as usize),
        false => None,
    }
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// That of `ibv_dereg_mr` of that table.
pub(crate) unsafe fn deregister(verbs: &Verbs, mr: *mut ibv_mr) -> c_int {
    let known = known(mr);
    // SAFETY: the caller's promise.
    let errno = unsafe { verbs.dereg_mr(mr) };
    if errno == 0
        && let Some(id) = known
        && let Some(recorder) = lock().as_mut()
    {
        recorder.keep_regions();
        recorder.regions.forget(id);
    }
    errno
}

/// `ibv_rereg_mr`.
///
/// # Safety
/// That of `ibv_rereg_mr` of that table.
pub(crate) unsafe fn reregister(
    verbs: &Verbs,
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let known = known(mr);
    // SAFETY: the caller's promise.
    let code = unsafe { verbs.rereg_mr(mr, flags, pd, addr, length, access) };
    // What was refused for its arguments left the region as it was.
    if code == IBV_REREG_MR_ERR_INPUT.0 {
        return code;
    }
    let errno = ops::errno();
    if let Some(id) = known
        && let Some(recorder) = lock().as_mut()
    {
        recorder.keep_regions();
        let flags = ibv_rereg_mr_flags::from_bits_retain(flags as u32);
        match code {
            0 => recorder.regions.change(id, |region| {
                if flags.contains(IBV_REREG_MR_CHANGE_ACCESS) {
                    region.access = access as u32;
                }
                if flags.contains(IBV_REREG_MR_CHANGE_TRANSLATION) {
                    region.addr = own_address(addr, region.access);
                    region.len = length as u64;
                }
            }),
            _ => recorder.regions.lose(id),
        }
    }
    ops::set_errno(errno);
    code
}

impl Recorder {
    /// A Queue Pair, which is known from now on; none where there is no room, or where the device does not tell what it is.
    ///
    /// # Safety
    /// `qp` is a live QP of `verbs`.
    unsafe fn adopt(&mut self, verbs: &Verbs, qp: *mut ibv_qp) -> Option<&mut Live> {
        let address = qp as usize;
        if !self.live.contains_key(&address) {
            if !self.has_room() {
                self.record.queue_pairs_left_out = true;
                return None;
            }
            // SAFETY: live by the caller's promise, and it stays so as long as it is in the list: destroying it, or closing its
            // context, takes it out first, under the lock under which it is used, and the list itself ends under that lock before
            // either is done without that. It is used for questions alone.
            let adopted = unsafe { QpRef::from_raw(verbs, qp) }.ok()?;
            // SAFETY: as above.
            let (context, soft) = unsafe { ((*qp).context as usize, table_of(qp).is_some()) };
            let live = Live {
                qp: Adopted(adopted),
                context,
                soft,
                used: false,
                first_sq_psn: None,
                first_rq_psn: None,
                last_error: None,
                regions: None,
            };
            self.live.insert(address, live);
        }
        self.live.get_mut(&address)
    }

    /// Makes room for one more Queue Pair: one that was destroyed and had nothing wrong has to go, or one that nothing was done to
    /// yet, which comes back when it is modified.
    fn has_room(&mut self) -> bool {
        if self.live.len() + self.buried.len() < MOST {
            return true;
        }
        let healthy = |dump: &Dump| {
            dump.last_error.is_none()
                && dump.mishaps.is_empty()
                && !matches!(&dump.qp.state[..], "ERR" | "SQE")
        };
        let buried = self.buried.iter().find(|(_, dump)| healthy(dump));
        if let Some(number) = buried.map(|(number, _)| *number) {
            self.buried.remove(&number);
            self.record.queue_pairs_left_out = true;
            return true;
        }
        let unused = self.live.iter().find(|(_, live)| !live.used);
        let unused = unused.map(|(address, _)| *address);
        unused.is_some_and(|address| self.live.remove(&address).is_some())
    }

    /// Notes a modify that was made, or refused with `errno`.
    ///
    /// # Safety
    /// `qp` is a live QP of `verbs`.
    unsafe fn modified(
        &mut self,
        verbs: &Verbs,
        qp: *mut ibv_qp,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        errno: c_int,
    ) {
        // SAFETY: the caller's promise.
        let Some(live) = (unsafe { self.adopt(verbs, qp) }) else {
            return;
        };
        live.used = true;
        if errno != 0 {
            live.last_error = Some(live.refused(attr, mask, errno));
            return;
        }
        if mask.contains(IBV_QP_STATE) {
            live.last_error = None;
            if attr.qp_state == IBV_QPS_RESET {
                (live.first_sq_psn, live.first_rq_psn) = (None, None);
            }
        }
        let psn = |value: u32| Psn::new(value & Psn::MAX.get()).ok();
        if mask.contains(IBV_QP_SQ_PSN) {
            live.first_sq_psn = psn(attr.sq_psn);
        }
        if mask.contains(IBV_QP_RQ_PSN) {
            live.first_rq_psn = psn(attr.rq_psn);
        }
    }

    /// A region is different from now on. A Queue Pair that had failed before keeps the regions as they were: that is what its
    /// failure came from.
    fn keep_regions(&mut self) {
        for live in self.live.values_mut().filter(|live| live.regions.is_none()) {
            if live.qp.0.state().ok() == Some(IBV_QPS_ERR) {
                live.regions = Some(self.regions.all());
            }
        }
    }

    /// Takes out Queue Pairs that are about to end, after a last look at them.
    fn bury(&mut self, ends: impl Fn(usize, &Live) -> bool) -> Taken {
        let gone: Vec<_> = self
            .live
            .iter()
            .filter(|(address, live)| ends(**address, live))
            .map(|(address, _)| *address)
            .collect();
        let mut taken = Vec::new();
        for address in gone {
            if let Some(mut live) = self.live.remove(&address) {
                let number = live.is_used().then(|| {
                    self.burials += 1;
                    self.buried.insert(self.burials, live.dump(&self.regions));
                    self.burials
                });
                taken.push((address, number, live));
            }
        }
        taken
    }

    /// They live on: the call that was to end them was refused. Nobody ends any of them while that call still runs, as it would
    /// end them twice.
    fn dig_up(&mut self, taken: Taken) {
        for (address, number, live) in taken {
            if let Some(number) = number {
                self.buried.remove(&number);
            }
            self.live.entry(address).or_insert(live);
        }
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// Those of the file.
    fn write(&mut self) -> std::io::Result<()> {
        let mut now = self.record.clone();
        now.dumps.extend(self.buried.values().cloned());
        for live in self.live.values_mut() {
            ending::step();
            if live.is_used() {
                now.dumps.push(live.dump(&self.regions));
            }
        }
        now.regions_left_out = self.regions.left_out() || rdma_soft::has_other_keys();
        let software = |(place, (errno, why))| Refusal {
            call: self.calls.get(&place).map(|name| (*name).to_owned()),
            errno,
            why: Some(why),
            software: true,
            ..Refusal::default()
        };
        now.refusals
            .extend(rdma_soft::refusals().into_iter().enumerate().map(software));
        let new = self.path.with_extension("new");
        let text = now.to_json();
        ending::step();
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.path))
    }
}

impl Live {
    /// Whether something was done to it: one that is still as it was made has nothing to tell. A library that has a table of its
    /// own does not say what it does.
    fn is_used(&mut self) -> bool {
        self.used = self.used || self.qp.0.state().ok() != Some(IBV_QPS_RESET);
        self.used
    }

    /// A modify that was refused, with what is wrong with it by the rules.
    fn refused(&mut self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask, errno: c_int) -> LastError {
        // What follows may be refused something itself.
        let why = if self.soft {
            rdma_soft::last_refusal()
        } else {
            None
        };
        let known = self.qp.0.check(attr, mask).err();
        let problems = known.as_ref().map_or(&[][..], |error| &error.problems[..]);
        let problems = problems.iter().map(|problem| Wrong {
            code: problem.code().to_owned(),
            text: problem.to_string(),
        });
        let from = match &known {
            Some(error) => error.from,
            None => self.qp.0.state().ok(),
        };
        LastError {
            unix_ms: u64::try_from(
                std::time::UNIX_EPOCH
                    .elapsed()
                    .unwrap_or_default()
                    .as_millis(),
            )
            .unwrap_or(u64::MAX),
            text: why.unwrap_or_else(|| Errno::from_raw(errno).to_string()),
            what: Failed::Modify {
                from: from.map(|state| state.to_string()),
                to: if mask.contains(IBV_QP_STATE) {
                    attr.qp_state.to_string()
                } else {
                    "the same state".to_owned()
                },
                errno,
                called: true,
                problems: problems.collect(),
            },
        }
    }

    /// What there is to say about it now.
    fn dump(&self, known: &Regions) -> Dump {
        let mut dump = self.qp.0.dump();
        dump.qp.attributes.first_sq_psn = self.first_sq_psn;
        dump.qp.attributes.first_rq_psn = self.first_rq_psn;
        dump.last_error = self.last_error.clone();
        dump.regions = self.regions.clone().unwrap_or_else(|| known.all());
        if !self.soft {
            return dump;
        }
        let (device, qp_num) = (self.qp.0.device(), self.qp.0.qp_num());
        if let Some(stats) = rdma_soft::qp_stats(device, qp_num) {
            let own = [
                ("qp/rnr_naks_sent", stats.rnr_naks_sent),
                ("qp/rnr_naks_received", stats.rnr_naks_received),
                (
                    "qp/rnr_wait_ms",
                    u64::try_from(stats.rnr_wait.as_millis()).unwrap_or(u64::MAX),
                ),
                ("qp/retransmitted", stats.retransmitted),
                ("qp/timeouts", stats.timeouts),
            ];
            dump.counters
                .extend(own.map(|(name, value)| (name.to_owned(), value)));
        }
        if let Some(counters) = rdma_soft::counters(device) {
            let all = counters.engine.all().chain(counters.link.all());
            dump.counters
                .extend(all.map(|(name, value)| (format!("soft/{name}"), value)));
            dump.mishaps = counters
                .engine
                .mishaps()
                .iter()
                .filter_map(|noted| mishap(noted, qp_num))
                .collect();
        }
        dump
    }
}

/// What was noted, if it is of that Queue Pair.
fn mishap(noted: &Noted, of: u32) -> Option<Mishap> {
    match *noted {
        Noted::Request {
            qp_num,
            opcode,
            status,
            remote,
            len,
        } if qp_num == of => Some(Mishap::Request {
            opcode: opcode
                .name()
                .map_or_else(|| opcode.0.to_string(), str::to_owned),
            status: status.0,
            addr: remote.map(|remote| remote.addr),
            rkey: remote.map(|remote| remote.rkey),
            len,
        }),
        Noted::Receive {
            qp_num,
            status,
            room,
            len,
        } if qp_num == of => Some(Mishap::Receive {
            status: status.0,
            room,
            len,
        }),
        Noted::Qkey {
            qp_num,
            from,
            qkey,
            own,
        } if qp_num == of => Some(Mishap::Qkey { from, qkey, own }),
        _ => None,
    }
}
