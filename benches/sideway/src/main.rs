//! The crate sideway in the same loops as `cost`: 16 QPs on one CQ in turn, another address and another length each time. It
//! takes its libibverbs by `dlopen`, so it runs on `standin.c`, which does as little as the provider of the other loops.

use std::error::Error;

use clap::Parser;
use rdma_benches::allocations;
use rdma_benches::harness::{Arguments, Way, run};
use rdma_benches::objects::{LIST, Objects, QPS, c_loops, place};
use rdma_qp::Doorbell;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::queue_pair::{
    PostSendGuard, QueuePair, SetScatterGatherEntry, WorkRequestFlags,
};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

type Outcome = Result<(), Box<dyn Error>>;

/// Posts requests `first` to `first + count` by one call. A macro, since the guards of the two kinds of QP share no trait with
/// a nameable lifetime.
macro_rules! post {
    ($qp:expr, $first:expr, $count:expr, $addr:expr, $lkey:expr) => {{
        let mut guard = $qp.start_post_send();
        for i in $first..$first + $count {
            let (offset, len) = place(i);
            let request = guard
                .construct_wr(i, WorkRequestFlags::Signaled)
                .setup_send();
            // SAFETY: the memory behind the key lives as long as the program.
            unsafe { request.setup_sge($lkey, $addr + offset as u64, len as u32) };
        }
        guard.post()?;
    }};
}

/// Polls the completions of requests `first` to `first + count`.
macro_rules! reap {
    ($cq:expr, $first:expr, $count:expr) => {{
        let (mut next, end) = ($first, $first + $count);
        while next != end {
            if let Ok(poller) = $cq.start_poll() {
                for done in poller {
                    if done.status() != 0 || done.wr_id() != next {
                        return Err("another request, or a failed one".into());
                    }
                    next += 1;
                }
            }
        }
    }};
}

macro_rules! single {
    ($name:ident, $cq:ty) => {
        #[inline(never)]
        fn $name(qps: &mut [impl QueuePair], cq: &$cq, addr: u64, lkey: u32, n: u64) -> Outcome {
            for i in 0..n {
                post!(qps[i as usize % QPS], i, 1, addr, lkey);
                reap!(cq, i, 1);
            }
            Ok(())
        }
    };
}

macro_rules! lists {
    ($name:ident, $cq:ty) => {
        #[inline(never)]
        fn $name(qps: &mut [impl QueuePair], cq: &$cq, addr: u64, lkey: u32, n: u64) -> Outcome {
            let list = LIST as u64;
            for i in (0..n).step_by(LIST) {
                post!(qps[(i / list) as usize % QPS], i, list, addr, lkey);
                reap!(cq, i, list);
            }
            Ok(())
        }
    };
}

single!(loop_basic, BasicCompletionQueue);
lists!(loop_basic_lists, BasicCompletionQueue);
single!(loop_extended, ExtendedCompletionQueue);
lists!(loop_extended_lists, ExtendedCompletionQueue);

fn main() -> Outcome {
    let arguments = Arguments::parse();
    let mut ways: Vec<(&'static str, Way)> = match &arguments.c {
        Some(path) => c_loops(&Objects::new(Doorbell::Each)?, path)?,
        None => Vec::new(),
    };
    ways.truncate(1);

    let devices = DeviceList::new()?;
    let context = devices.get(0).ok_or("no device")?.open()?;
    let pd = context.alloc_pd()?;
    let memory = Box::leak(vec![0u8; 8192].into_boxed_slice());
    let addr = memory.as_ptr() as u64;
    // SAFETY: the memory is leaked, so it lives as long as the program, and nobody reads it.
    let mr = unsafe { pd.reg_mr(addr as usize, memory.len(), AccessFlags::LocalWrite)? };
    // SAFETY: the region is alive.
    let lkey = unsafe { (*mr.mr().as_ptr()).lkey };

    for (name, lists) in [("sideway", false), ("sideway-lists", true)] {
        let cq = context.create_cq_builder().setup_cqe(2048).build()?;
        let mut qps = Vec::new();
        for _ in 0..QPS {
            let mut builder = pd.create_qp_builder();
            builder.setup_max_send_wr(2 * LIST as u32);
            qps.push(
                builder
                    .setup_send_cq(cq.clone())
                    .setup_recv_cq(cq.clone())
                    .build()?,
            );
        }
        let body = move |n| match lists {
            false => loop_basic(&mut qps, &cq, addr, lkey, n),
            true => loop_basic_lists(&mut qps, &cq, addr, lkey, n),
        };
        ways.push((name, Box::new(body)));
    }
    for (name, lists) in [("sideway-ex", false), ("sideway-ex-lists", true)] {
        let cq = context.create_cq_builder().setup_cqe(2048).build_ex()?;
        let mut qps = Vec::new();
        for _ in 0..QPS {
            let mut builder = pd.create_qp_builder();
            builder.setup_max_send_wr(2 * LIST as u32);
            qps.push(
                builder
                    .setup_send_cq(cq.clone())
                    .setup_recv_cq(cq.clone())
                    .build_ex()?,
            );
        }
        let body = move |n| match lists {
            false => loop_extended(&mut qps, &cq, addr, lkey, n),
            true => loop_extended_lists(&mut qps, &cq, addr, lkey, n),
        };
        ways.push((name, Box::new(body)));
    }
    run(&arguments, &mut ways)
}
