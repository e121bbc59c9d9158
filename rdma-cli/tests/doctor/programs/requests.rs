//! A request that the peer, or the own device, does not execute.

use rdma_core_sys::*;
use rdma_qp::{PostFlags, RemoteAddr};

use super::*;

/// A WRITE to an address or key that `spoil` changed.
fn write_to(spoil: impl FnOnce(&mut RemoteAddr)) {
    let (mut a, b, there) = pair();
    let mut to = there.regions[0].at(0);
    to.room = u64::MAX;
    spoil(&mut to);
    let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), to).unwrap();
    fails(&a, &b, ticket, IBV_WC_REM_ACCESS_ERR);
}

/// A WRITE to a region of the second end that `register` makes there, which peers may only read. Requests find it at the address
/// that comes with it.
fn write_to_read_only(register: impl FnOnce(&End) -> (*mut ibv_mr, u64)) {
    let (mut a, b, there) = pair();
    let (mr, addr) = register(&b);
    assert!(!mr.is_null());
    // SAFETY: the region is live; only a field is read.
    let rkey = unsafe { (*mr).rkey };
    let to = RemoteAddr {
        addr,
        rkey,
        ..there.regions[0].at(0)
    };
    let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), to).unwrap();
    fails(&a, &b, ticket, IBV_WC_REM_ACCESS_ERR);
}

/// Memory that stays until the process ends, in whole pages.
fn memory() -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(4096, 4096).unwrap();
    // SAFETY: the layout is not empty.
    unsafe { std::alloc::alloc_zeroed(layout) }
}

const READ_ONLY: ibv_access_flags = IBV_ACCESS_LOCAL_WRITE.union(IBV_ACCESS_REMOTE_READ);

/// A fetch-and-add by two ends of which the second has these rights.
fn add_to(memory: Access, queue: Access, status: ibv_wc_status) {
    let device = device();
    let (mut a, b, there) = pair_of(
        end(&device),
        end_of(&device, memory, queue),
        &device,
        impatient(),
        |_, _| {},
    );
    let word = a.mr.slice(0, 8).unwrap();
    let ticket = a.qp.fetch_and_add(word, there.regions[0].at(0), 1).unwrap();
    fails(&a, &b, ticket, status);
}

programs! {
    a_message_longer_than_its_receive => {
        let (mut a, mut b, _) = pair();
        b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
        let ticket = a.qp.send(a.mr.slice(0, 100).unwrap()).unwrap();
        fails(&a, &b, ticket, IBV_WC_REM_INV_REQ_ERR);
    }

    a_region_without_atomics => { add_to(Access::REMOTE_WRITE, ALL, IBV_WC_REM_ACCESS_ERR) }
    a_qp_without_atomics => { add_to(ALL, Access::REMOTE_WRITE, IBV_WC_REM_INV_REQ_ERR) }

    an_atomic_that_is_not_aligned => {
        let (a, _b, there) = pair();
        let mut sge = ibv_sge { addr: 0, length: 8, lkey: 0 };
        // SAFETY: the region's verbs object is live; only its fields are read.
        unsafe { (sge.addr, sge.lkey) = ((*a.mr.as_ptr()).addr as u64, (*a.mr.as_ptr()).lkey) };
        let mut request = ibv_send_wr::zeroed();
        (request.opcode, request.sg_list, request.num_sge) = (IBV_WR_ATOMIC_FETCH_AND_ADD, &mut sge, 1);
        request.send_flags = IBV_SEND_SIGNALED.bits();
        request.wr.atomic.remote_addr = there.regions[0].addr + 4;
        request.wr.atomic.rkey = there.regions[0].rkey;
        // SAFETY: the QP is live; the request and its range are, too, during the call, and the region until the process ends.
        let errno = unsafe { ops::ibv_post_send(a.qp.as_ptr(), &mut request, &mut std::ptr::null_mut()) };
        assert_eq!(errno, 0);
        // Its completion is none of the library's: it is enough that the QP ends in ERR.
        while a.qp.state().unwrap() != IBV_QPS_ERR {
            std::thread::yield_now();
        }
        leave(&[], &"Failed status remote invalid request error (9) for wr_id 0");
        give_up()
    }

    a_region_after_many_others => {
        write_to_read_only(|end| {
            for _ in 0..300 {
                drop(end.pd.register(Memory::zeroed(64), ALL).unwrap());
            }
            let at = memory();
            // SAFETY: the protection domain is live, the memory stays.
            let mr = unsafe { verbs().reg_mr(end.pd.as_ptr(), at.cast(), 4096, READ_ONLY.bits() as i32) };
            (mr, at as u64)
        });
    }

    a_region_at_an_address_of_its_own => {
        const OWN: u64 = 0x1234_5000;
        write_to_read_only(|end| {
            // SAFETY: the protection domain is live, the memory stays.
            let mr = unsafe { verbs().reg_mr_iova(end.pd.as_ptr(), memory().cast(), 4096, OWN, READ_ONLY.bits() as i32) };
            (mr, OWN)
        });
    }

    a_region_that_lost_a_right => {
        write_to_read_only(|end| {
            let at = memory();
            let (lost, all) = (IBV_REREG_MR_CHANGE_ACCESS.bits() as i32, READ_ONLY | IBV_ACCESS_REMOTE_WRITE);
            // SAFETY: protection domain and region are live, the memory stays.
            unsafe {
                let mr = verbs().reg_mr(end.pd.as_ptr(), at.cast(), 4096, all.bits() as i32);
                let changed = verbs().rereg_mr(mr, lost, std::ptr::null_mut(), std::ptr::null_mut(), 0, READ_ONLY.bits() as i32);
                assert_eq!(changed, 0);
                (mr, at as u64)
            }
        });
    }

    /// By the window's key, of which only the device knows.
    beyond_a_window => {
        let (mut a, mut b, _) = pair();
        let mr = b.pd.register(Memory::zeroed(4096), ALL | Access::MW_BIND).unwrap();
        let mut window = b.pd.window().unwrap();
        let part = mr.slice(0, 64).unwrap();
        let (bound, there) = b.qp.bind(&mut window, part, Access::REMOTE_WRITE, PostFlags::empty()).unwrap();
        b.cq.wait(&bound, LIMIT).unwrap();
        let mut to = there.at(0);
        (to.addr, to.room) = (to.addr + 60, u64::MAX);
        let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), to).unwrap();
        fails(&a, &b, ticket, IBV_WC_REM_ACCESS_ERR);
    }

    an_rkey_in_the_wrong_byte_order => { write_to(|to| to.rkey = to.rkey.swap_bytes()); }
    an_address_in_the_wrong_byte_order => { write_to(|to| to.addr = to.addr.swap_bytes()); }
    an_address_cut_to_32_bits => { write_to(|to| to.addr &= 0xffff_ffff); }
    an_address_swapped_as_32_bits => { write_to(|to| to.addr = u64::from((to.addr as u32).swap_bytes())); }
    beyond_the_region => { write_to(|to| to.addr += 8190); }
    /// Of the first region of this device; keys of a region differ.
    an_lkey_instead_of_the_rkey => {
        let (mut a, b, there) = pair();
        let mut to = there.regions[0].at(0);
        // SAFETY: the region's verbs object is live; only its fields are read.
        to.rkey = unsafe { (*b.mr.as_ptr()).lkey };
        let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), to).unwrap();
        fails(&a, &b, ticket, IBV_WC_REM_ACCESS_ERR);
    }

    a_region_that_is_gone => {
        let (mut a, b, there) = pair();
        let End { mr, qp, .. } = b;
        drop(mr);
        let ticket = a.qp.write(a.mr.slice(0, 8).unwrap(), there.regions[0].at(0)).unwrap();
        let Err(error) = a.cq.wait(&ticket, LIMIT) else { panic!("it was written") };
        leave(&[a.qp.dump(), qp.dump()], &error);
    }

    /// A READ, and behind it, without a fence, a WRITE to where it reads.
    a_write_that_overtakes_a_read => {
        let (mut a, b, there) = pair();
        let at = there.regions[0].at(0);
        a.qp.read(a.mr.slice(0, 4096).unwrap(), at).unwrap();
        let ticket = a.qp.write(a.mr.slice(4096, 8).unwrap(), at).unwrap();
        a.cq.wait(&ticket, LIMIT).unwrap();
        leave(&[a.qp.dump(), b.qp.dump()], &"");
        give_up()
    }

    /// The same with the fence where it belongs.
    a_write_behind_a_fence => {
        let (mut a, b, there) = pair();
        let at = there.regions[0].at(0);
        a.qp.read(a.mr.slice(0, 4096).unwrap(), at).unwrap();
        let write = rdma_qp::op::Write { remote: at };
        let ticket = a.qp.post(write, a.mr.slice(4096, 8).unwrap(), PostFlags::FENCE).unwrap();
        a.cq.wait(&ticket, LIMIT).unwrap();
        leave(&[a.qp.dump(), b.qp.dump()], &"");
    }

    /// 64 bytes into a receive of 64: the 40 in front were forgotten.
    forty_bytes_forgotten => {
        let (mut a, mut b) = (member(0x1111_1111), member(0x1111_1111));
        b.qp.recv(b.mr.slice(0, 64).unwrap()).unwrap();
        let to = a.qp.destination(&b.here).unwrap();
        let sent = a.qp.send_to(a.mr.slice(0, 64).unwrap(), &to).unwrap();
        a.cq.wait(&sent, LIMIT).unwrap();
        match b.cq.wait_any(LIMIT).unwrap().unwrap().outcome {
            Err(failure) => {
                assert_eq!(failure.status, IBV_WC_LOC_LEN_ERR);
                leave(&[b.qp.dump(), a.qp.dump()], &"Failed status local length error (1) for wr_id 1");
            }
            Ok(done) => panic!("{done:?}"),
        }
    }

    /// A window on a region that may have none.
    a_window_without_the_right => {
        let (mut a, _b, _) = pair();
        let mut window = a.pd.window().unwrap();
        let part = a.mr.slice(0, 64).unwrap();
        let bind = a.qp.bind(&mut window, part, Access::REMOTE_WRITE, PostFlags::empty());
        let failed = match bind {
            Ok((ticket, _)) => a.cq.wait(&ticket, LIMIT).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        leave(&[a.qp.dump()], &failed);
        give_up()
    }

    /// A receive into a region that may not be written.
    a_receive_without_the_right => {
        let (mut a, mut b, _) = pair();
        let read_only = b.pd.register(Memory::zeroed(64), Access::empty()).unwrap();
        let receive = b.qp.recv(read_only.slice(0, 64).unwrap());
        if let Err(error) = receive {
            leave(&[b.qp.dump()], &error);
            give_up();
        }
        let ticket = a.qp.send(a.mr.slice(0, 8).unwrap()).unwrap();
        let Err(error) = a.cq.wait(&ticket, LIMIT) else { panic!("it arrived") };
        leave(&[b.qp.dump(), a.qp.dump()], &error);
        give_up()
    }
}
