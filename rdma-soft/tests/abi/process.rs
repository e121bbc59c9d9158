//! The device inside a process: its threads, signals, and the process's end.

use std::ffi::{c_int, c_void};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::time::Duration;

use crate::common::*;
use rdma_core_sys::*;
use rdma_soft::verbs;

/// Asserts that each thread of the device blocks all signals that can be blocked; gives their number.
fn device_threads() -> u32 {
    let mut seen = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("/proc") {
        let dir = task.expect("a task").path();
        // A thread of another test may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(dir.join("status")) else {
            continue;
        };
        if !status.starts_with("Name:\trdma-soft\n") {
            continue;
        }
        seen += 1;
        let blocked = status.lines().find_map(|l| l.strip_prefix("SigBlk:\t"));
        let blocked = u64::from_str_radix(blocked.expect("SigBlk"), 16).expect("a mask");
        // All of 1..=64 but SIGKILL, SIGSTOP and the two that the C library keeps for itself.
        let mut unblockable = 0;
        for signal in [libc::SIGKILL, libc::SIGSTOP, 32, 33] {
            unblockable |= 1u64 << (signal - 1);
        }
        assert_eq!(blocked | unblockable, u64::MAX);
    }
    seen
}

/// Signals are for the application's threads: the device's threads block all that can be blocked.
#[test]
fn the_device_takes_no_signals() {
    let _device = Device::plain();
    // A thread gives itself its name soon after it has begun.
    until("the thread has its name", || device_threads() > 0);
    // SAFETY: a signal set of this thread's own.
    let blocked = unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        libc::sigismember(&set, libc::SIGTERM)
    };
    assert_eq!(
        blocked, 0,
        "the thread that opens the device has its mask back"
    );
}

/// What the child of `exit_while_busy` does: traffic that never ends, then the end of the process.
#[test]
#[ignore = "run by exit_while_busy"]
fn busy_child() {
    let Ok(how) = std::env::var("RDMA_TEST_EXIT") else {
        return;
    };
    let (a, b) = (Device::plain(), Device::with_faults("loss=1%,delay=100us"));
    let opt = Options {
        rnr_retry: 7,
        ..Options::default()
    };
    let (x, y) = pair(&a, &b, opt);
    let (from, to) = (Buf::new(&x, 1 << 20), Buf::new(&y, 1 << 20));
    for id in 0..32 {
        let mut sges = [from.sge(0, 1 << 20)];
        assert_eq!(
            x.send(&mut rdma(IBV_WR_RDMA_WRITE, id, &mut sges, &to, 0)),
            0
        );
    }
    std::thread::sleep(Duration::from_millis(20));
    if how == "exit" {
        // With everything open and in flight.
        std::process::exit(7);
    }
    drop((from, to));
    drop((x, y, a, b));
    std::process::exit(7);
}

/// A process that ends in the middle of transfers ends cleanly: no crash, no hang.
#[test]
fn exit_while_busy() {
    for how in ["exit", "close"] {
        for _ in 0..5 {
            let mut child = Command::new(std::env::current_exe().expect("this program"))
                .args(["--ignored", "--exact", "process::busy_child"])
                .env("RDMA_TEST_EXIT", how)
                .stdout(Stdio::null())
                .spawn()
                .expect("a child");
            let mut status = None;
            until("the child ends", || {
                status = child.try_wait().expect("a child's status");
                status.is_some()
            });
            assert_eq!(status.and_then(|s| s.code()), Some(7), "{how}");
        }
    }
}

/// Registering and deregistering leaves the process's mappings as they were.
#[test]
fn registering_marks_no_pages() {
    let device = Device::plain();
    let x = End::new(&device, Options::default());
    let memory = vec![0u8; 1 << 16];
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        let addr = memory.as_ptr() as u64;
        let holds = |line: &&str| {
            let (start, rest) = line.split_once('-').expect("a range");
            let (end, _) = rest.split_once(' ').expect("a range");
            let parse = |hex| u64::from_str_radix(hex, 16).expect("an address");
            parse(start) < addr + memory.len() as u64 && parse(end) > addr
        };
        maps.lines().filter(holds).count()
    };
    let before = mappings();
    for i in 0..10_000 {
        let addr = memory.as_ptr().wrapping_add(i % 5000).cast_mut();
        // SAFETY: the PD is live, the memory outlives the MR and nobody accesses it.
        unsafe {
            let mr = verbs().reg_mr(x.pd, addr.cast(), 1 + i * 7 % 50_000, 1);
            assert!(!mr.is_null());
            assert_eq!(verbs().dereg_mr(mr), 0);
        }
    }
    assert_eq!(mappings(), before);
}

/// Two nodes cannot have one address, and the second is told so.
#[test]
fn an_address_in_use() {
    let a = Device::plain();
    let mut profile = rdma_soft::Profile::default();
    profile.ports[0].addresses = vec![crate::kinds::address(&a)];
    let name = rdma_soft::add_device(profile).expect("a profile");
    assert_eq!(Device::try_open(&name).err(), Some(libc::EADDRINUSE));
    assert_eq!(rdma_soft::counters(&name), None);
    let why = rdma_soft::open_error(&name)
        .expect("it was refused")
        .to_string();
    let address = crate::kinds::address(&a).to_string();
    assert!(why.contains(&address) && why.contains("in use"), "{why}");
    assert!(rdma_soft::open_error(&a.name).is_none());
}

/// A child's use of a device that its parent opened is an error, and does the parent no harm.
#[test]
fn a_child_cannot_use_inherited_devices() {
    let (a, b) = (Device::plain(), Device::plain());
    let (x, y) = pair(&a, &b, Options::default());
    let to = Buf::new(&y, 64);
    let mut request = rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0);
    assert_eq!(x.send(&mut request), 0);
    ok(x.sent());
    // SAFETY: the child makes a few calls that neither allocate nor lock, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut bad = null_mut();
        let mut wc = ibv_wc::zeroed();
        // SAFETY: the objects are live copies; a null list entry is never reached.
        unsafe {
            let refused = ops::ibv_post_send(x.qp, &mut request, &mut bad) == libc::EIO
                && ops::ibv_poll_cq(x.scq, 1, &mut wc) == -libc::EIO
                && verbs().alloc_pd(a.ctx).is_null()
                && verbs().destroy_qp(x.qp) == libc::EIO
                && verbs().close_device(a.ctx) == -1
                && errno() == libc::EIO;
            libc::_exit(if refused { 0 } else { 1 });
        }
    }
    let mut status = -1;
    // SAFETY: the child above, `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "every call of the child was refused");
    assert_eq!(x.send(&mut request), 0);
    ok(x.sent());
}

/// What the child of `a_child_captures_for_itself` does: what it sends itself is captured, and so is what a child of its own sends.
#[test]
#[ignore = "run by a_child_captures_for_itself"]
fn capturing_child() {
    if std::env::var_os("RDMA_SOFT_PCAP").is_none() {
        return;
    }
    let exchange = || {
        let a = Device::open("soft0");
        let (x, y) = pair(&a, &a, Options::default());
        let to = Buf::new(&y, 64);
        let mut request = rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0);
        assert_eq!(x.send(&mut request), 0);
        ok(x.sent());
        (a, x, y, to)
    };
    let (_a, x, _y, to) = exchange();
    // SAFETY: no other thread of this process holds a lock of the allocator or of the device list; the child ends by itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = std::panic::catch_unwind(exchange);
        // SAFETY: ends the child without running what the parent registered.
        unsafe { libc::_exit(if own.is_ok() { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child above, `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0)), 0);
    ok(x.sent());
}

/// A child that opens the device captures into a file of its own number, and its parent's stays whole.
#[test]
fn a_child_captures_for_itself() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("captures-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "process::capturing_child"])
        .env("RDMA_SOFT_PCAP", dir.join("frames-%p"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let parent = child.id();
    let ended = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{said}"
    );
    let mut counts: Vec<(bool, usize)> = (std::fs::read_dir(&dir).expect("a directory"))
        .map(|entry| {
            let path = entry.expect("a file").path();
            let frames = crate::capture::frames(&std::fs::read(&path).expect("a file"));
            (path.ends_with(format!("frames-{parent}")), frames.len())
        })
        .collect();
    counts.sort();
    // A WRITE and its acknowledgement, each as it is sent and as it comes in; the parent has made two.
    assert_eq!(counts, [(false, 4), (true, 8)]);
    let _ = std::fs::remove_dir_all(&dir);
}

/// Runs a test of this file that is ignored, in a process of its own, with that in its environment; it must succeed.
fn succeeds_alone(test: &str, environment: &[(&str, &std::ffi::OsStr)]) {
    let ended = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", &format!("process::{test}")])
        .envs(environment.iter().copied())
        .output()
        .expect("a child");
    let [said, complained] = [&ended.stdout, &ended.stderr].map(|s| String::from_utf8_lossy(s));
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{environment:?}: {}\n{said}\n{complained}",
        ended.status
    );
}

/// What the child of `a_capture_that_nobody_reads_ends_alone` does: it looks at the first frames of its own capture, and at no
/// others.
#[test]
#[ignore = "run by a_capture_that_nobody_reads_ends_alone"]
fn watched_child() {
    let [Some(fifo), Some(reader)] = ["RDMA_SOFT_PCAP", "RDMA_TEST_READER"].map(std::env::var_os)
    else {
        return;
    };
    // As in a program in C, where a pipe that nobody reads ends the process; and what hangs, hangs not for ever.
    // SAFETY: the default action is no function; an alarm is only a signal.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::alarm(PATIENCE.as_secs() as u32);
    }
    let mut watched = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(fifo)
        .expect("a pipe");
    let device = Device::open("soft0");
    let (x, y) = pair(&device, &device, Options::default());
    let (from, to) = (Buf::new(&x, 4096), Buf::new(&y, 4096));
    let exchange = |id, len| {
        let mut sges = [from.sge(0, len)];
        let mut request = rdma(IBV_WR_RDMA_WRITE, id, &mut sges, &to, 0);
        assert_eq!(x.send(&mut request), 0);
        assert_eq!(ok(x.sent()).wr_id, id);
    };
    exchange(1, 8);
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    until("a WRITE and its acknowledgement, each at both ends", || {
        let count = watched.read(&mut piece).unwrap_or(0);
        seen.extend_from_slice(&piece[..count]);
        crate::capture::frames(&seen).len() == 4
    });
    let _still_there = (reader == "still").then_some(watched);
    // More than a pipe holds.
    for id in 2..100 {
        exchange(id, 4096);
    }
}

/// A program whose capture goes into a pipe goes on when the reader ends, or takes nothing any more.
#[test]
fn a_capture_that_nobody_reads_ends_alone() {
    for reader in ["gone", "still"] {
        let fifo = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("watched-{}-{reader}", std::process::id()));
        let (mode, of_all) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, mode, of_all, 0).expect("a pipe");
        let environment = [
            ("RDMA_SOFT_PCAP", fifo.as_os_str()),
            ("RDMA_TEST_READER", reader.as_ref()),
        ];
        succeeds_alone("watched_child", &environment);
        let _ = std::fs::remove_file(&fifo);
    }
}

unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attr: *const libc::pthread_attr_t,
        start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        arg: *mut c_void,
    ) -> c_int;
    fn pthread_testcancel();
}

/// A request and what became of it.
struct Work {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    request: ibv_send_wr,
    posted: c_int,
    polled: c_int,
    wc: ibv_wc,
}

/// Does its work although it was cancelled, and ends when it says so. No value here is to be dropped: it is left without a return.
extern "C-unwind" fn cancelled(work: *mut c_void) -> *mut c_void {
    let work: *mut Work = work.cast();
    let mut bad = null_mut();
    // SAFETY: the work and its objects live until the thread has been joined, and nobody else uses them.
    unsafe {
        libc::pthread_cancel(libc::pthread_self());
        (*work).posted = ops::ibv_post_send((*work).qp, &raw mut (*work).request, &mut bad);
        while (*work).polled == 0 {
            (*work).polled = ops::ibv_poll_cq((*work).cq, 1, &raw mut (*work).wc);
        }
        pthread_testcancel();
    }
    null_mut()
}

#[test]
#[ignore = "run by a_thread_is_not_cancelled_inside_the_device"]
fn cancelled_child() {
    let (a, b) = (Device::without_shm(), Device::without_shm());
    let (x, y) = pair(&a, &b, Options::default());
    // Several packets, which go with one call.
    let (from, to) = (Buf::new(&x, 8192), Buf::new(&y, 8192));
    let mut sges = [from.sge(0, 8192)];
    let mut work = Work {
        qp: x.qp,
        cq: x.scq,
        request: rdma(IBV_WR_RDMA_WRITE, 7, &mut sges, &to, 0),
        posted: -1,
        polled: 0,
        wc: ibv_wc::zeroed(),
    };
    let (mut thread, mut ended) = (0, null_mut());
    // SAFETY: all that is passed lives until the thread has been joined.
    unsafe {
        let arg = (&raw mut work).cast();
        assert_eq!(
            pthread_create(&mut thread, std::ptr::null(), cancelled, arg),
            0
        );
        assert_eq!(libc::pthread_join(thread, &mut ended), 0);
    }
    assert_eq!((work.posted, work.polled, ok(work.wc).wr_id), (0, 1, 7));
    // PTHREAD_CANCELED of pthread.h: it ended where it looked, not before.
    assert_eq!(ended as isize, -1);
}

/// Posting and polling are no cancellation points (pthreads(7)), as with any device: there an unwinding would come through frames
/// that know nothing of it, and would end the process.
#[test]
fn a_thread_is_not_cancelled_inside_the_device() {
    succeeds_alone("cancelled_child", &[]);
}

/// Takes the thread that gets the signal out of whatever it does, for a while.
extern "C" fn doze(_: c_int) {
    // SAFETY: no descriptors; a handler may call it.
    unsafe { libc::poll(null_mut(), 0, 4) };
}

/// What the child of `a_device_is_closed_while_a_post_ends` does: whoever polls the completion ends everything, while the thread
/// that has posted the request dozes wherever it is by then.
#[test]
#[ignore = "run by a_device_is_closed_while_a_post_ends"]
fn closing_child() {
    // SAFETY: the handler is a function that lives as long as the process.
    unsafe { libc::signal(libc::SIGUSR1, doze as *const () as libc::sighandler_t) };
    let name = rdma_soft::add_device(rdma_soft::Profile::default()).expect("a profile");
    let (give, given) = std::sync::mpsc::channel::<usize>();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(move || {
            // SAFETY: a thread may ask for its own number.
            let own = unsafe { libc::pthread_self() };
            tell.send(own).expect("somebody waits");
            for qp in given {
                // A WRITE of nothing needs no key.
                let mut request = wr(IBV_WR_RDMA_WRITE, 1, &mut []);
                assert_eq!(post_send(qp as *mut ibv_qp, &mut request), 0);
                tell.send(own).expect("somebody waits");
            }
        });
        let poster = told.recv().expect("a thread");
        for _ in 0..200 {
            let device = Device::open(&name);
            let (x, y) = pair(&device, &device, Options::default());
            give.send(x.qp as usize).expect("a thread");
            ok(x.sent());
            // SAFETY: the thread ends after the last round.
            unsafe { libc::pthread_kill(poster, libc::SIGUSR1) };
            drop((x, y));
            drop(device);
            told.recv().expect("the post's end");
        }
        drop(give);
    });
}

/// Once a request has completed, all may be destroyed and closed, though the call that has posted it has not returned.
#[test]
fn a_device_is_closed_while_a_post_ends() {
    // What is freed holds nothing that looks like anything (mallopt(3)).
    succeeds_alone("closing_child", &[("MALLOC_PERTURB_", "165".as_ref())]);
}

/// What the child of `a_child_has_no_running_devices` does, alone in its process: no other thread of a test
/// holds a lock when it forks.
#[test]
#[ignore = "run by a_child_has_no_running_devices"]
fn forking_child() {
    if std::env::var_os("RDMA_TEST_FORK").is_none() {
        return;
    }
    let a = Device::plain();
    let sent = a.counters().link.tx_datagrams;
    // SAFETY: no other thread of this process holds a lock of the allocator or of the device list; the
    // child ends by itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let none = rdma_soft::counters(&a.name).is_none()
            && rdma_soft::qp_stats(&a.name, 2).is_none()
            && !rdma_soft::set_faults(&a.name, Default::default())
            && rdma_soft::set_port_up(&a.name, 1, false).map_err(|e| e.errno.raw_os_error())
                == Err(libc::ENODEV);
        // What it opens itself is its own.
        let own = || {
            let again = Device::try_open(&a.name).ok()?;
            let (x, y) = pair(&again, &again, Options::default());
            let to = Buf::new(&y, 64);
            let posted = x.send(&mut rdma(IBV_WR_RDMA_WRITE, 1, &mut [], &to, 0));
            (posted == 0).then(|| ok(x.sent()))?;
            rdma_soft::counters(&again.name)
        };
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(own));
        let fine = none && matches!(own, Ok(Some(_)));
        // SAFETY: ends the child without running what the parent registered.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child above, `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(
        status, 0,
        "the child found its parent's node, or had none of its own"
    );
    assert_eq!(a.counters().link.tx_datagrams, sent);
}

/// To a child the devices of its parent are closed: asking for them by name neither waits for locks that
/// nobody there will ever give up nor does anything to the parent's node.
#[test]
fn a_child_has_no_running_devices() {
    let ended = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "process::forking_child"])
        .env("RDMA_TEST_FORK", "1")
        .output()
        .expect("a child");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// A device that was closed with objects left in it gives its address back.
#[test]
fn a_closed_device_gives_its_address_back() {
    let a = Device::plain();
    let mut profile = rdma_soft::Profile::default();
    profile.ports[0].addresses = vec![crate::kinds::address(&a)];
    let x = End::new(&a, Options::default());
    std::mem::forget(x);
    drop(a);
    drop(Device::new(profile));
}
