//! What is written for `qp doctor`, where `RDMA_SOFT_RECORD` names a directory: the Queue Pairs of this process, the calls that
//! were refused, and its regions, as a [`Record`] in the file `<pid>.json`.
//!
//! A thread writes it again and again, so that it is there, too, when the process hangs or is killed; a Queue Pair that is
//! destroyed is looked at right before. Without the variable each function here is one load and the call.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
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

/// The process that records; 0 is none. A child that was forked does not.
static RECORDS: AtomicU32 = AtomicU32::new(0);
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// How often the record is written.
const EVERY: Duration = Duration::from_millis(250);
/// Queue Pairs and regions that a record has at most.
const MOST: usize = 256;

struct Recorder {
    path: PathBuf,
    record: Record,
    /// Queue Pairs that were modified at least once, by address.
    live: BTreeMap<usize, Live>,
    /// Regions, with their addresses while they are registered.
    regions: Vec<(usize, RegionDump)>,
    /// Which function met a refusal of the software device: its place among them, and the name.
    calls: BTreeMap<usize, &'static str>,
}

/// A Queue Pair of the program.
struct Adopted(QpRef<'static>);

// SAFETY: calls on an ibv_qp may be made by any thread (ibv_modify_qp(3) and its kin say nothing else, and libibverbs locks),
// and this one is only touched under the lock of `RECORDER`.
unsafe impl Send for Adopted {}

struct Live {
    /// It is taken out before the Queue Pair or its context ends, under the lock.
    qp: Adopted,
    context: usize,
    soft: bool,
    first_sq_psn: Option<Psn>,
    first_rq_psn: Option<Psn>,
    last_error: Option<LastError>,
    /// The regions as they were when it failed, if one was deregistered since.
    regions: Option<Vec<RegionDump>>,
}

/// Begins to record, if that is wanted.
pub(crate) fn begin() {
    extern "C" fn at_exit() {
        if wanted() {
            if let Some(recorder) = lock().as_mut() {
                recorder.record.ended = true;
                recorder.write();
            }
            RECORDS.store(0, Ordering::Relaxed);
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
    let program = std::fs::read("/proc/self/comm").unwrap_or_default();
    let mut record = Record::new(String::from_utf8_lossy(&program).trim_end());
    let round_trip = (faults.delay + faults.jitter) * 2;
    record.link_rtt_us = u64::try_from(round_trip.as_micros())
        .ok()
        .filter(|us| *us > 0);
    let path = dir.join(format!("{}.json", std::process::id()));
    *lock() = Some(Recorder {
        path,
        record,
        live: BTreeMap::new(),
        regions: Vec::new(),
        calls: BTreeMap::new(),
    });
    RECORDS.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: a function of this library, which is preloaded and never unloaded.
    unsafe { libc::atexit(at_exit) };
    // SAFETY: sets of integers, to write to and to read; all signals are blocked for the thread that is made meanwhile, so that
    // none of the program's handlers runs on it.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let thread = std::thread::Builder::new()
            .name("qp-record".to_owned())
            .spawn(|| {
                while wanted() {
                    if let Some(recorder) = lock().as_mut() {
                        recorder.write();
                    }
                    std::thread::sleep(EVERY);
                }
            });
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if let Err(error) = thread {
            crate::say(format_args!("no thread that records: {error}"));
        }
    }
}

fn wanted() -> bool {
    match RECORDS.load(Ordering::Relaxed) {
        0 => false,
        pid => pid == std::process::id(),
    }
}

fn lock() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call, and notes its name if the software device refuses something meanwhile.
pub(crate) fn named<T>(symbol: &'static str, call: impl FnOnce() -> T) -> T {
    if !wanted() {
        return call();
    }
    let before = rdma_soft::refusals().len();
    let answer = call();
    let errno = ops::errno();
    for place in before..rdma_soft::refusals().len() {
        if let Some(recorder) = lock().as_mut() {
            recorder.calls.entry(place).or_insert(symbol);
        }
    }
    ops::set_errno(errno);
    answer
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
    // SAFETY: the caller's promises are those that it asks for.
    let errno = unsafe { verbs.modify_qp(qp, attr, mask) };
    if wanted() && !qp.is_null() && !attr.is_null() {
        let mask = ibv_qp_attr_mask::from_bits_retain(mask as u32);
        if let Some(recorder) = lock().as_mut() {
            // SAFETY: a live QP and readable attributes, as `ibv_modify_qp` needs them.
            unsafe { recorder.modified(verbs, qp, &*attr, mask, errno) };
        }
    }
    errno
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// That of `ibv_destroy_qp` of that table.
pub(crate) unsafe fn destroy_qp(verbs: &Verbs, qp: *mut ibv_qp) -> c_int {
    if wanted()
        && let Some(recorder) = lock().as_mut()
    {
        recorder.bury(|address, _| address == qp as usize);
    }
    // SAFETY: the caller's promise.
    unsafe { verbs.destroy_qp(qp) }
}

/// `ibv_close_device`, after which nothing of the context may be used.
///
/// # Safety
/// That of `ibv_close_device` of that table.
pub(crate) unsafe fn close_device(verbs: &Verbs, context: *mut ibv_context) -> c_int {
    if wanted()
        && let Some(recorder) = lock().as_mut()
    {
        recorder.bury(|_, live| live.context == context as usize);
    }
    // SAFETY: the caller's promise.
    unsafe { verbs.close_device(context) }
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

/// Notes a region that was registered, or could not be. Gives it back.
///
/// # Safety
/// `mr` is null or a live region that was just made.
pub(crate) unsafe fn registered(len: usize, access: u32, mr: *mut ibv_mr) -> *mut ibv_mr {
    if mr.is_null() {
        return made("ibv_reg_mr", u64::try_from(len).ok(), mr);
    }
    if wanted()
        && let Some(recorder) = lock().as_mut()
        && recorder.regions.len() < MOST
    {
        // SAFETY: a live region by the caller's promise.
        let region = unsafe { &*mr };
        let dump = RegionDump {
            addr: region.addr as u64,
            len: region.length as u64,
            lkey: region.lkey,
            rkey: region.rkey,
            access,
            gone: false,
        };
        recorder.regions.push((mr as usize, dump));
    }
    mr
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// That of `ibv_dereg_mr` of that table.
pub(crate) unsafe fn deregister(verbs: &Verbs, mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    let errno = unsafe { verbs.dereg_mr(mr) };
    if errno == 0
        && wanted()
        && let Some(recorder) = lock().as_mut()
    {
        recorder.forget(mr as usize);
    }
    errno
}

impl Recorder {
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
        if !self.live.contains_key(&(qp as usize)) {
            if self.live.len() + self.record.dumps.len() >= MOST {
                return;
            }
            // SAFETY: live by the caller's promise, and it stays so as long as it is in the list: destroying it, or closing its
            // context, takes it out first, under the lock under which it is used. It is used for questions alone.
            let Ok(adopted) = (unsafe { QpRef::from_raw(verbs, qp) }) else {
                return;
            };
            // SAFETY: as above.
            let (context, soft) = unsafe { ((*qp).context as usize, table_of(qp).is_some()) };
            let live = Live {
                qp: Adopted(adopted),
                context,
                soft,
                first_sq_psn: None,
                first_rq_psn: None,
                last_error: None,
                regions: None,
            };
            self.live.insert(qp as usize, live);
        }
        let Some(live) = self.live.get_mut(&(qp as usize)) else {
            return;
        };
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

    /// A region was deregistered. A Queue Pair that had failed before keeps the regions as they were: that is what its failure
    /// came from.
    fn forget(&mut self, mr: usize) {
        for live in self.live.values_mut().filter(|live| live.regions.is_none()) {
            if live.qp.0.state().ok() == Some(IBV_QPS_ERR) {
                live.regions = Some(regions(&self.regions));
            }
        }
        for (address, region) in &mut self.regions {
            region.gone |= *address == mr;
        }
    }

    /// Takes the last look at Queue Pairs that are about to end.
    fn bury(&mut self, ends: impl Fn(usize, &Live) -> bool) {
        let gone: Vec<_> = self
            .live
            .iter()
            .filter(|(address, live)| ends(**address, live))
            .map(|(address, _)| *address)
            .collect();
        for address in gone {
            if let Some(live) = self.live.remove(&address) {
                let dump = live.dump(&self.regions);
                self.record.dumps.push(dump);
            }
        }
    }

    /// Writes the file, whole or not at all.
    fn write(&mut self) {
        let mut now = self.record.clone();
        now.dumps
            .extend(self.live.values().map(|live| live.dump(&self.regions)));
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
        let written =
            std::fs::write(&new, now.to_json()).and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(error) = written {
            crate::say(format_args!(
                "cannot write the record {}: {error}",
                self.path.display()
            ));
            RECORDS.store(0, Ordering::Relaxed);
        }
    }
}

fn regions(known: &[(usize, RegionDump)]) -> Vec<RegionDump> {
    known.iter().map(|(_, region)| region.clone()).collect()
}

impl Live {
    /// A modify that was refused, with what is wrong with it by the rules.
    fn refused(&mut self, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask, errno: c_int) -> LastError {
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
        let why = if self.soft {
            rdma_soft::last_refusal()
        } else {
            None
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
    fn dump(&self, known: &[(usize, RegionDump)]) -> Dump {
        let mut dump = self.qp.0.dump();
        dump.qp.attributes.first_sq_psn = self.first_sq_psn;
        dump.qp.attributes.first_rq_psn = self.first_rq_psn;
        dump.last_error = self.last_error.clone();
        dump.regions = self.regions.clone().unwrap_or_else(|| regions(known));
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
