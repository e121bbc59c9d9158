//! Numbers that make no sense: whatever a program in C writes into arguments and structs, the device answers,
//! and goes on. Pointers are those of live objects, or null: nobody can check more of them.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::*;
use rdma_soft::verbs;

use crate::common::*;

/// Numbers that a seed gives again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number that programs write, or one that they should not.
    fn word(&mut self) -> u32 {
        let bits = self.next();
        let value = (bits >> 32) as u32;
        match bits % 8 {
            0 => 0,
            1..=3 => value % 8,
            4 => value % 70_000,
            5 => 1 << (value % 32),
            6 => u32::MAX - value % 3,
            _ => value,
        }
    }

    fn int(&mut self) -> c_int {
        self.word() as c_int
    }

    fn wide(&mut self) -> u64 {
        u64::from(self.word()) << (self.next() % 33) | u64::from(self.word())
    }

    fn flip(&mut self) -> bool {
        self.next() >> 20 & 1 == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() >> 16) as usize % of.len()]
    }
}

/// Integers that are not checked for being one of an enumeration's.
macro_rules! fill {
    ($random:expr, $struct:expr, $($($field:ident).+),+ $(,)?) => {
        $( $struct.$($field).+ = $random.word() as _; )+
    };
}

fn path(r: &mut Random, gid: ibv_gid) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr::zeroed();
    fill!(
        r,
        attr,
        dlid,
        sl,
        src_path_bits,
        static_rate,
        is_global,
        port_num
    );
    fill!(
        r,
        attr,
        grh.flow_label,
        grh.sgid_index,
        grh.hop_limit,
        grh.traffic_class
    );
    attr.grh.dgid = gid;
    if r.flip() {
        attr.grh.dgid.raw[(r.next() % 16) as usize] = r.word() as u8;
    }
    if r.flip() {
        (attr.is_global, attr.port_num, attr.grh.sgid_index) = (1, 1, 0);
    }
    attr
}

/// A transition, often to the state that comes after `now`.
fn transition(
    r: &mut Random,
    gid: ibv_gid,
    (own, kind, now): (u32, ibv_qp_type, ibv_qp_state),
) -> (ibv_qp_attr, ibv_qp_attr_mask) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = match now {
        IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR => ibv_qp_state(now.0 + 1),
        IBV_QPS_ERR => IBV_QPS_RESET,
        _ => ibv_qp_state(r.word() % 9),
    };
    attr.cur_qp_state = ibv_qp_state(r.word());
    attr.path_mtu = ibv_mtu(r.word());
    attr.path_mig_state = ibv_mig_state(r.word());
    fill!(
        r,
        attr,
        qkey,
        rq_psn,
        sq_psn,
        dest_qp_num,
        qp_access_flags,
        pkey_index,
        alt_pkey_index
    );
    fill!(
        r,
        attr,
        en_sqd_async_notify,
        sq_draining,
        max_rd_atomic,
        max_dest_rd_atomic
    );
    fill!(
        r,
        attr,
        min_rnr_timer,
        port_num,
        timeout,
        retry_cnt,
        rnr_retry,
        alt_port_num,
        alt_timeout
    );
    fill!(r, attr, rate_limit, cap.max_send_wr, cap.max_recv_wr);
    (attr.ah_attr, attr.alt_ah_attr) = (path(r, gid), path(r, gid));
    let of = Transport::from_qp_type(kind).expect("a transport");
    let required = rules::required(of, now, attr.qp_state).unwrap_or_default();
    let optional = rules::optional(of, now, attr.qp_state).unwrap_or_default();
    let mut mask = (IBV_QP_STATE | required).bits() | optional.bits() & r.word();
    if r.flip() && r.flip() {
        mask ^= r.word();
    }
    if r.flip() {
        // Values that a move needs; its own number makes it its own peer.
        (attr.dest_qp_num, attr.rq_psn, attr.sq_psn) = (own, 7, 7);
        (attr.port_num, attr.pkey_index, attr.path_mtu) = (1, 0, ibv_mtu::IBV_MTU_1024);
        attr.qp_access_flags &= ALL_ACCESS;
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (1, 1);
        (
            attr.timeout,
            attr.retry_cnt,
            attr.rnr_retry,
            attr.min_rnr_timer,
        ) = (1, 1, 1, 1);
    }
    (attr, ibv_qp_attr_mask::from_bits_retain(mask))
}

/// Entries of which most are of the buffer.
fn entries(r: &mut Random, buf: &Buf) -> [ibv_sge; 4] {
    std::array::from_fn(|_| match r.next() % 8 {
        0 => ibv_sge {
            addr: r.wide(),
            length: r.word(),
            lkey: r.word(),
        },
        1 => ibv_sge {
            addr: buf.at(0),
            length: r.word(),
            lkey: buf.lkey(),
        },
        _ => buf.sge(0, (r.next() % 4096) as usize),
    })
}

/// A request, of a UD QP if there is an address handle.
fn send(r: &mut Random, sges: &mut [ibv_sge], buf: &Buf, ah: *mut ibv_ah) -> ibv_send_wr {
    let mut wr = wr(ibv_wr_opcode(r.word() % 16), r.wide(), sges);
    wr.num_sge = if r.flip() { r.int().min(4) } else { 1 };
    // Inline data is read where the entries say, which must be memory: it is tried elsewhere.
    wr.send_flags = r.word() & !IBV_SEND_INLINE.bits();
    wr.imm.imm_data = r.word();
    let (remote_addr, rkey) = if r.flip() {
        (buf.at(4096), buf.rkey())
    } else {
        (r.wide(), r.word())
    };
    if ah.is_null() {
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
    } else {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = r.word();
        wr.wr.ud.remote_qkey = r.word();
    }
    wr.qp_type.xrc.remote_srqn = r.word();
    wr
}

#[test]
fn no_number_ends_the_process() {
    let mut r = Random(0x1dea_5eed);
    let a = Device::plain();
    let end = End::new(&a, Options::default());
    let buf = Buf::new(&end, 8192);
    let gid = a.gid();
    let mut qps = vec![end.qp];
    for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
        let mut attr = end.init_attr();
        attr.qp_type = kind;
        // SAFETY: PD and CQs are live, `attr` is a whole struct.
        let qp = unsafe { verbs().create_qp(end.pd, &mut attr) };
        assert!(!qp.is_null());
        qps.push(qp);
    }
    let mut srq_attr = ibv_srq_init_attr::zeroed();
    (srq_attr.attr.max_wr, srq_attr.attr.max_sge) = (8, 2);
    let mut ah_attr = ibv_ah_attr::zeroed();
    (ah_attr.is_global, ah_attr.port_num, ah_attr.grh.dgid) = (1, 1, gid);
    // SAFETY: the PD is live, the structs are whole.
    let (srq, ah) = unsafe {
        (
            verbs().create_srq(end.pd, &mut srq_attr),
            verbs().create_ah(end.pd, &mut ah_attr),
        )
    };
    assert!(!srq.is_null() && !ah.is_null());
    let (mut posted, mut moved) = (0, 0);
    for _ in 0..60_000 {
        let qp = r.pick(&qps);
        let mut sges = entries(&mut r, &buf);
        // SAFETY: all objects are live, all structs are whole, places have room for what is written there,
        // and what is made is destroyed at once.
        unsafe {
            match r.next() % 16 {
                0..=2 => {
                    let (mut attr, mask) = transition(
                        &mut r,
                        gid,
                        ((*qp).qp_num, (*qp).qp_type, query(qp).0.qp_state),
                    );
                    moved += u32::from(modify(qp, &mut attr, mask) == 0);
                }
                3..=5 => {
                    let to = if (*qp).qp_type == IBV_QPT_UD {
                        ah
                    } else {
                        null_mut()
                    };
                    let mut wr = send(&mut r, &mut sges, &buf, to);
                    posted += u32::from(post_send(qp, &mut wr) == 0);
                }
                6 => {
                    let (mut wr, mut bad) = (ibv_recv_wr::zeroed(), null_mut());
                    (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), r.int().min(4));
                    ops::ibv_post_recv(qp, &mut wr, &mut bad);
                    ops::ibv_post_srq_recv(srq, &mut wr, &mut bad);
                }
                7 => {
                    let mut wcs = [ibv_wc::zeroed(); 4];
                    ops::ibv_poll_cq(end.scq, r.int().min(4), wcs.as_mut_ptr());
                    for cq in [end.scq, end.rcq] {
                        while ops::ibv_poll_cq(cq, 4, wcs.as_mut_ptr()) > 0 {}
                    }
                    ops::ibv_req_notify_cq(end.rcq, r.int());
                    let mut grh = std::mem::zeroed::<ibv_grh>();
                    fill!(r, grh, version_tclass_flow, paylen, next_hdr, hop_limit);
                    let mut attr = ibv_ah_attr::zeroed();
                    let port = r.word() as u8;
                    verbs().init_ah_from_wc(a.ctx, port, &mut wcs[0], &mut grh, &mut attr);
                }
                8 => {
                    let mut attr = ibv_cq_init_attr_ex::zeroed();
                    fill!(r, attr, cqe, comp_vector, wc_flags, flags);
                    attr.comp_mask = r.word() & !IBV_CQ_INIT_ATTR_MASK_PD.bits();
                    let cq: *mut ibv_cq = ops::ibv_create_cq_ex(a.ctx, &mut attr).cast();
                    if !cq.is_null() {
                        verbs().resize_cq(cq, r.int());
                        assert_eq!(verbs().destroy_cq(cq), 0);
                    }
                }
                9 => {
                    let mut attr = end.init_attr_ex(ibv_qp_type(r.word() % 12));
                    fill!(r, attr, cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge);
                    fill!(r, attr, cap.max_recv_sge, cap.max_inline_data, sq_sig_all);
                    if r.flip() {
                        attr.comp_mask = r.word() & !IBV_QP_INIT_ATTR_RX_HASH.bits();
                        fill!(r, attr, create_flags, send_ops_flags);
                    }
                    let qp = ops::ibv_create_qp_ex(verbs(), a.ctx, &mut attr);
                    if !qp.is_null() {
                        assert_eq!(verbs().destroy_qp(qp), 0);
                    }
                }
                10 => {
                    let mut attr = ibv_srq_attr::zeroed();
                    fill!(r, attr, max_wr, max_sge, srq_limit);
                    verbs().modify_srq(srq, &mut attr, r.int());
                    assert_eq!(verbs().query_srq(srq, &mut attr), 0);
                    let mut init = ibv_srq_init_attr::zeroed();
                    fill!(r, init, attr.max_wr, attr.max_sge, attr.srq_limit);
                    let made = verbs().create_srq(end.pd, &mut init);
                    if !made.is_null() {
                        assert_eq!(verbs().destroy_srq(made), 0);
                    }
                }
                11 => {
                    let mut attr = path(&mut r, gid);
                    let made = verbs().create_ah(end.pd, &mut attr);
                    if !made.is_null() {
                        assert_eq!(verbs().destroy_ah(made), 0);
                    }
                }
                12 => {
                    // Only lengths that the buffer has: what is registered, peers may write.
                    let length = (r.next() % 8192) as usize;
                    let access = r.int();
                    let iova = r.wide();
                    let mr =
                        verbs().reg_mr_iova2(end.pd, buf.addr.cast(), length, iova, access as u32);
                    if !mr.is_null() {
                        let (pd, addr) = (end.pd, buf.addr.cast());
                        verbs().rereg_mr(mr, r.int(), pd, addr, length, r.int());
                        assert_eq!(verbs().dereg_mr(mr), 0);
                    }
                }
                13 => {
                    let mw = ops::ibv_alloc_mw(end.pd, ibv_mw_type(r.word() % 4));
                    if !mw.is_null() {
                        let mut bind = ibv_mw_bind::zeroed();
                        fill!(r, bind, wr_id, send_flags, bind_info.mw_access_flags);
                        bind.bind_info.mr = if r.flip() { buf.mr } else { null_mut() };
                        bind.bind_info.addr = buf.at(0).wrapping_add(r.wide());
                        bind.bind_info.length = r.wide();
                        ops::ibv_bind_mw(qp, mw, &mut bind);
                        assert_eq!(ops::ibv_dealloc_mw(mw), 0);
                    }
                }
                14 => {
                    let mut group = gid;
                    (group.raw[0], group.raw[1]) = (r.word() as u8, r.word() as u8);
                    if verbs().attach_mcast(qp, &group, r.word() as u16) == 0 {
                        assert_eq!(verbs().detach_mcast(qp, &group, 0), 0);
                    }
                    assert_ne!(verbs().detach_mcast(qp, &group, 0), 0);
                }
                _ => {
                    let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
                    verbs().query_qp(qp, &mut attr, r.int(), &mut init);
                    let (mut found, mut entry) = (ibv_gid::zeroed(), ibv_gid_entry::zeroed());
                    let (port, index) = (r.word(), r.int());
                    verbs().query_gid(a.ctx, port as u8, index, &mut found);
                    let mut pkey = 0;
                    verbs().query_pkey(a.ctx, port as u8, index, &mut pkey);
                    ops::ibv_query_gid_ex(verbs(), a.ctx, port, index as u32, &mut entry, r.word());
                    let mut all = ibv_port_attr::zeroed();
                    ops::ibv_query_port(verbs(), a.ctx, port as u8, &mut all);
                }
            }
        }
    }
    // The numbers were not so wrong that nothing happened.
    assert!(posted > 200 && moved > 1000, "{posted} {moved}");
    // SAFETY: made above, destroyed here only.
    unsafe {
        for qp in qps.drain(1..) {
            assert_eq!(verbs().destroy_qp(qp), 0);
        }
        assert_eq!(verbs().destroy_srq(srq), 0);
        assert_eq!(verbs().destroy_ah(ah), 0);
    }
}
