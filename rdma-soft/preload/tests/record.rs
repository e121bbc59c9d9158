//! What is recorded of a process, down to its end: in handlers of exit(3), from several threads, out of a signal's handler.

mod common;

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_core_sys::dispatch::table_of;
use rdma_core_sys::*;
use rdma_qp::doctor::Record;
use rdma_qp::dump::Failed;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of this name, empty.
fn directory(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("record-{}", std::process::id()))
        .join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

/// Runs the test `name` of this program in a process of its own, which is recorded: how it ended, what it said, and where.
fn run(name: &str, environment: &[(&str, &str)]) -> (ExitStatus, String, PathBuf) {
    let dir = directory(name);
    let mut all = environment.to_vec();
    all.push(("RDMA_SOFT_RECORD", dir.to_str().expect("text")));
    let ended = common::preloaded(name, &all);
    let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    (ended.status, said.concat(), dir)
}

/// Runs it, asserts that it ended well, and gives its record.
fn recorded(name: &str) -> Record {
    let (status, said, dir) = run(name, &[]);
    assert_eq!(status.code(), Some(0), "{name}: {status}\n{said}");
    let files = std::fs::read_dir(&dir).expect("the directory");
    let mut records = files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| std::fs::read_to_string(path).expect("a record"));
    let record = Record::from_json(&records.next().expect("a record")).expect("a record");
    assert!(records.next().is_none());
    record
}

/// The exported functions: those that a program which links libibverbs is bound to.
fn verbs() -> Verbs {
    Verbs::from_process().expect("the preloaded library is in the process")
}

/// Objects of a program, which live until the process ends or the test ends them.
struct Ends {
    verbs: Verbs,
    pd: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
}

impl Ends {
    fn new() -> Ends {
        let verbs = verbs();
        // SAFETY: the list is used until it is freed; each object is live when the next one is made of it.
        unsafe {
            let mut count = 0;
            let list = verbs.get_device_list(&mut count);
            assert!(count >= 1);
            // Ours come last.
            let context = verbs.open_device(*list.add(count as usize - 1));
            verbs.free_device_list(list);
            assert!(!context.is_null());
            let pd = verbs.alloc_pd(context);
            let channel = verbs.create_comp_channel(context);
            let cq = verbs.create_cq(context, 64, null_mut(), channel, 0);
            assert!(!pd.is_null() && !cq.is_null());
            Ends {
                verbs,
                pd,
                channel,
                cq,
            }
        }
    }

    fn qp(&self, kind: ibv_qp_type) -> *mut ibv_qp {
        let mut attr = ibv_qp_init_attr::zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (self.cq, self.cq, kind);
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
        // SAFETY: PD and CQ are live.
        let qp = unsafe { self.verbs.create_qp(self.pd, &mut attr) };
        assert!(!qp.is_null());
        qp
    }

    /// A modify as a program makes it; the errno.
    fn to(&self, qp: *mut ibv_qp, state: ibv_qp_state) -> c_int {
        let (mut attr, mask) = step(qp, state);
        // SAFETY: a live QP, and whole attributes.
        unsafe { self.verbs.modify_qp(qp, &mut attr, mask) }
    }
}

/// What a modify to `state` needs, of an RC or UD Queue Pair that is its own peer.
fn step(qp: *mut ibv_qp, state: ibv_qp_state) -> (ibv_qp_attr, c_int) {
    // SAFETY: the callers' QPs are live.
    let (number, kind, context) = unsafe { ((*qp).qp_num, (*qp).qp_type, (*qp).context) };
    let rc = kind == IBV_QPT_RC;
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = state;
    let mask = match state {
        IBV_QPS_INIT => {
            attr.port_num = 1;
            let kind = if rc { IBV_QP_ACCESS_FLAGS } else { IBV_QP_QKEY };
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | kind
        }
        IBV_QPS_RTR if rc => {
            (attr.path_mtu, attr.dest_qp_num, attr.min_rnr_timer) = (IBV_MTU_1024, number, 12);
            (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
            let mut gid = ibv_gid::from_raw([0; 16]);
            // SAFETY: a live context, and a GID to write to.
            assert_eq!(unsafe { verbs().query_gid(context, 1, 0, &mut gid) }, 0);
            attr.ah_attr.grh.dgid = gid;
            IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        IBV_QPS_RTS if rc => {
            IBV_QP_STATE
                | IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => IBV_QP_STATE,
    };
    (attr, mask.bits() as c_int)
}

// SAFETY: verbs objects may be used by any thread.
unsafe impl Send for Ends {}
// SAFETY: as above; each test says which thread modifies or ends one.
unsafe impl Sync for Ends {}

/// What the handlers of exit(3) work on.
struct Kept(Ends, *mut ibv_qp);

// SAFETY: a Queue Pair is a verbs object like the others.
unsafe impl Send for Kept {}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

fn keep(ends: Ends, qp: *mut ibv_qp) {
    *KEPT.lock().expect("no panic") = Some(Kept(ends, qp));
}

fn kept() -> Option<Kept> {
    KEPT.lock().ok()?.take()
}

/// Ends the process as a program does that returns from `main`.
fn exit() -> ! {
    std::process::exit(0)
}

/// Ends the process in a handler, where nothing may panic: with 0 if all is as it should be.
fn verdict(fine: bool) -> ! {
    // SAFETY: it ends the process.
    unsafe { libc::_exit(if fine { 0 } else { 3 }) }
}

/// Handlers run in the reverse of the order in which they are told: one that is told before devices are listed runs when the
/// record has ended.
fn at_exit(handler: extern "C" fn()) {
    // SAFETY: a function of this program.
    assert_eq!(unsafe { libc::atexit(handler) }, 0);
}

/// The record of this process, or what it is written as.
fn own_record(extension: &str) -> PathBuf {
    let dir = std::env::var_os("RDMA_SOFT_RECORD").expect("set");
    Path::new(&dir).join(format!("{}.{extension}", std::process::id()))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Globals of a program in C++ that were made before devices were listed end after the record, and what they destroy is asked
/// nothing any more.
#[test]
fn nothing_is_asked_after_the_end() {
    let (status, said, _) = run("ends_while_the_recorder_waits", &[]);
    assert_eq!(status.code(), Some(0), "{status}\n{said}");
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn ends_while_the_recorder_waits() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    extern "C" fn destroys() {
        let Some(Kept(ends, qp)) = kept() else {
            verdict(false)
        };
        // SAFETY: live, and used by nobody from here on.
        let destroyed = unsafe { ends.verbs.destroy_qp(qp) } == 0;
        std::thread::sleep(Duration::from_millis(400));
        // What was written last is still there: the pipe.
        let last = std::fs::metadata(own_record("json"));
        verdict(destroyed && last.is_ok_and(|last| last.file_type().is_fifo()))
    }
    at_exit(destroys);
    let ends = Ends::new();
    let qp = ends.qp(IBV_QPT_RC);
    assert_eq!(ends.to(qp, IBV_QPS_INIT), 0);
    keep(ends, qp);
    // The recorder has just written, and sleeps.
    let written = || std::fs::metadata(own_record("json")).map_or(0, |about| about.ino());
    until("it is written", || written() != 0);
    let first = written();
    until("it is written again", || written() != first);
    // The last time takes until somebody reads, which is when the recorder is awake again and waits for its turn.
    let pipe = own_record("new");
    let name = std::ffi::CString::new(pipe.to_str().expect("text")).expect("no zero byte");
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(350));
        std::fs::read(pipe)
    });
    exit()
}

#[test]
fn devices_that_are_listed_after_the_end() {
    let record = recorded("lists_again_at_the_end");
    assert!(record.ended);
    assert_eq!(record.dumps.len(), 1, "what was there before");
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn lists_again_at_the_end() {
    extern "C" fn lists() {
        let Ok(verbs) = Verbs::from_process() else {
            verdict(false)
        };
        // SAFETY: nobody wants the count; the list is freed and not used.
        unsafe { verbs.free_device_list(verbs.get_device_list(null_mut())) };
        std::thread::sleep(Duration::from_millis(300));
    }
    at_exit(lists);
    let ends = Ends::new();
    assert_eq!(ends.to(ends.qp(IBV_QPT_RC), IBV_QPS_INIT), 0);
    exit()
}

/// Where the record cannot be written, that is said once.
#[test]
fn a_directory_that_is_not_there() {
    let nowhere = directory("not-there").join("nowhere");
    let record = ("RDMA_SOFT_RECORD", nowhere.to_str().expect("text"));
    let ended = common::preloaded("lists_several_times", &[record]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert_eq!(said.matches("cannot write the record").count(), 1, "{said}");
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn lists_several_times() {
    for _ in 0..3 {
        // SAFETY: nobody wants the count; the list is freed and not used.
        unsafe { verbs().free_device_list(verbs().get_device_list(null_mut())) };
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What the thread that ends was refused last is no more when handlers of exit(3) run on it.
#[test]
fn calls_that_are_refused_at_the_end() {
    let record = recorded("is_refused_at_the_end");
    let last = record.dumps[0].last_error.as_ref().expect("a refusal");
    assert!(matches!(&last.what, Failed::Modify { to, .. } if to == "RTR"));
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn is_refused_at_the_end() {
    extern "C" fn is_refused() {
        match kept() {
            Some(Kept(ends, qp)) if ends.to(qp, IBV_QPS_RTR) != 0 => {}
            _ => verdict(false),
        }
    }
    let ends = Ends::new();
    let qp = ends.qp(IBV_QPT_RC);
    assert_ne!(ends.to(qp, IBV_QPS_RTS), 0, "from RESET");
    keep(ends, qp);
    at_exit(is_refused);
    exit()
}

/// A thread waits for an event while another one is refused something.
#[test]
fn a_refusal_is_of_its_own_function() {
    let record = recorded("is_refused_while_another_waits");
    let call = |words: &str| {
        let mut told = record.refusals.iter();
        let found = told.find(|told| told.why.as_ref().is_some_and(|why| why.contains(words)));
        found.expect("it was refused").call.clone()
    };
    assert_eq!(call("takes no requests"), None, "the header calls it");
    assert_eq!(call("RTS").as_deref(), Some("ibv_modify_qp"));
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn is_refused_while_another_waits() {
    let ends = Ends::new();
    let qp = ends.qp(IBV_QPT_RC);
    let waits = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (ends, waits) = (&ends, &waits);
        s.spawn(move || {
            let (mut cq, mut context) = (null_mut(), null_mut());
            waits.store(true, Ordering::Release);
            // SAFETY: a live channel, and places for the answer; the event is acknowledged.
            unsafe {
                let got = ends.verbs.get_cq_event(ends.channel, &mut cq, &mut context);
                assert_eq!(got, 0);
                ends.verbs.ack_cq_events(cq, 1);
            }
        });
        until("the thread waits", || waits.load(Ordering::Acquire));
        std::thread::sleep(Duration::from_millis(100));
        let (mut send, mut receive) = (ibv_send_wr::zeroed(), ibv_recv_wr::zeroed());
        // SAFETY: QP and CQ are live, the requests whole.
        unsafe {
            assert_ne!(ops::ibv_post_send(qp, &mut send, &mut null_mut()), 0);
            assert_eq!(ops::ibv_req_notify_cq(ends.cq, 0), 0);
            assert_eq!(ends.to(qp, IBV_QPS_INIT), 0);
            assert_eq!(ops::ibv_post_recv(qp, &mut receive, &mut null_mut()), 0);
        }
        assert_eq!(ends.to(qp, IBV_QPS_ERR), 0);
    });
    assert_ne!(ends.to(qp, IBV_QPS_RTS), 0, "from ERR");
    exit()
}

/// The recorder asks for states, and writes none of the past.
#[test]
fn a_state_is_that_of_the_last_modify() {
    recorded("is_modified_while_regions_come_and_go");
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn is_modified_while_regions_come_and_go() {
    let ends = Ends::new();
    let qp = ends.qp(IBV_QPT_RC);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (ends, done) = (&ends, &done);
        s.spawn(move || {
            let mut memory = vec![0u8; 64];
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the PD is live, and the memory outlives the region.
                unsafe {
                    let mr = ends
                        .verbs
                        .reg_mr(ends.pd, memory.as_mut_ptr().cast(), 64, 1);
                    assert!(!mr.is_null());
                    assert_eq!(ends.verbs.dereg_mr(mr), 0);
                }
            }
        });
        for cycle in 0..3000 {
            for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_RESET] {
                assert_eq!(ends.to(qp, state), 0);
                // SAFETY: live. Others write what is there already.
                let now = unsafe { (&raw const (*qp).state).read_volatile() };
                if now != state {
                    done.store(true, Ordering::Relaxed);
                }
                assert_eq!(now, state, "cycle {cycle}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    exit()
}

/// A Queue Pair that could not be destroyed is there once, as it is now.
#[test]
fn a_queue_pair_that_stays() {
    let record = recorded("cannot_destroy");
    let states: Vec<_> = record.dumps.iter().map(|dump| &dump.qp.state[..]).collect();
    assert_eq!(states, ["RTR"]);
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn cannot_destroy() {
    let ends = Ends::new();
    let qp = ends.qp(IBV_QPT_UD);
    assert_eq!(ends.to(qp, IBV_QPS_INIT), 0);
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = std::net::Ipv4Addr::new(239, 3, high, low).to_ipv6_mapped();
    let group = ibv_gid::from_raw(group.octets());
    // SAFETY: a live QP, and a GID to read; it is not destroyed, since it is in a group.
    unsafe {
        assert_eq!(ends.verbs.attach_mcast(qp, &group, 0), 0);
        assert_eq!(ends.verbs.destroy_qp(qp), libc::EBUSY);
    }
    assert_eq!(ends.to(qp, IBV_QPS_RTR), 0);
    exit()
}

/// One that had something wrong is there, however many there were before.
#[test]
fn where_there_were_many() {
    let record = recorded("makes_many_queue_pairs");
    assert!(record.queue_pairs_left_out);
    assert!(record.dumps.len() <= 256);
    let wrong = record.dumps.iter().filter(|dump| dump.last_error.is_some());
    assert_eq!(wrong.count(), 2, "the first one and the last");
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn makes_many_queue_pairs() {
    let ends = Ends::new();
    let first = ends.qp(IBV_QPT_RC);
    assert_ne!(ends.to(first, IBV_QPS_RTR), 0, "from RESET");
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { ends.verbs.destroy_qp(first) }, 0);
    for _ in 0..300 {
        let qp = ends.qp(IBV_QPT_RC);
        assert_eq!(ends.to(qp, IBV_QPS_INIT), 0);
        // SAFETY: live, and not used any more.
        assert_eq!(unsafe { ends.verbs.destroy_qp(qp) }, 0);
    }
    assert_ne!(ends.to(ends.qp(IBV_QPT_RC), IBV_QPS_RTS), 0, "from RESET");
    exit()
}

/// A library that knows the table of a device calls it directly, as `libqp` does: then nobody sees the modify, but the state.
#[test]
fn a_queue_pair_that_others_move() {
    let record = recorded("is_moved_by_its_table");
    let states: Vec<_> = record.dumps.iter().map(|dump| &dump.qp.state[..]).collect();
    assert_eq!(
        states,
        ["INIT"],
        "and not the one to which nothing was done"
    );
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn is_moved_by_its_table() {
    let ends = Ends::new();
    let (qp, _idle) = (ends.qp(IBV_QPT_RC), ends.qp(IBV_QPT_RC));
    // SAFETY: a live QP of the software device.
    let table = unsafe { table_of(qp) }.expect("a table");
    let (mut attr, mask) = step(qp, IBV_QPS_INIT);
    // SAFETY: a live QP of that table, and whole attributes.
    assert_eq!(unsafe { table.modify_qp(qp, &mut attr, mask) }, 0);
    exit()
}

/// A program that polls, and calls `exit` in the handler of a signal, ends, whatever the signal interrupted.
#[test]
fn exit_within_a_poll() {
    let dir = directory("exits_within_a_poll");
    for delay in (0..12).map(|round: u32| round * 137) {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "exits_within_a_poll"])
            .env("LD_PRELOAD", common::library())
            .env("RDMA_SOFT_RECORD", &dir)
            .env("RDMA_SOFT_COUNTERS", dir.join("counters"))
            .env("DELAY", delay.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let end = Instant::now() + PATIENCE;
        while child.try_wait().expect("a child's status").is_none() {
            std::thread::sleep(Duration::from_millis(5));
            if Instant::now() > end {
                child.kill().expect("it is there");
            }
        }
        let status = child.wait().expect("it has ended");
        assert_eq!(status.code(), Some(0), "after {delay} us: {status}");
    }
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn exits_within_a_poll() {
    extern "C" fn exits(_: c_int) {
        // SAFETY: not allowed in a handler, and done in many.
        unsafe { libc::exit(0) }
    }
    let delay: u64 = std::env::var("DELAY").map_or(0, |delay| delay.parse().expect("a number"));
    let ends = Ends::new();
    assert_eq!(ends.to(ends.qp(IBV_QPT_RC), IBV_QPS_INIT), 0);
    let handler: extern "C" fn(c_int) = exits;
    // SAFETY: a handler of the type that the call asks for; and the number of this thread.
    let own = unsafe {
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        libc::pthread_self()
    };
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50) + Duration::from_micros(delay));
        // SAFETY: the thread polls until the process ends.
        unsafe { libc::pthread_kill(own, libc::SIGTERM) }
    });
    loop {
        let mut wc = ibv_wc::zeroed();
        // SAFETY: a live CQ, and room for one completion.
        assert_eq!(unsafe { ops::ibv_poll_cq(ends.cq, 1, &mut wc) }, 0);
    }
}
