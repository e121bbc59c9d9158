//! A modify that is refused.

use rdma_core_sys::*;
use rdma_qp::Device;

use super::*;

const INIT: ibv_qp_attr_mask = IBV_QP_STATE
    .union(IBV_QP_PKEY_INDEX)
    .union(IBV_QP_PORT)
    .union(IBV_QP_ACCESS_FLAGS);
const RTR: ibv_qp_attr_mask = IBV_QP_STATE
    .union(IBV_QP_AV)
    .union(IBV_QP_PATH_MTU)
    .union(IBV_QP_DEST_QPN)
    .union(IBV_QP_RQ_PSN)
    .union(IBV_QP_MAX_DEST_RD_ATOMIC)
    .union(IBV_QP_MIN_RNR_TIMER);
const RTS: ibv_qp_attr_mask = IBV_QP_STATE
    .union(IBV_QP_SQ_PSN)
    .union(IBV_QP_TIMEOUT)
    .union(IBV_QP_RETRY_CNT)
    .union(IBV_QP_RNR_RETRY)
    .union(IBV_QP_MAX_QP_RD_ATOMIC);

fn init() -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 1);
    attr
}

/// Towards the own QP.
fn rtr(device: &Device, end: &End) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::zeroed();
    (attr.qp_state, attr.path_mtu, attr.dest_qp_num) = (IBV_QPS_RTR, IBV_MTU_1024, end.qp.qp_num());
    (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 12);
    (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
    let gid = device.port(1).unwrap().best_gid();
    attr.ah_attr.grh.dgid.raw = gid
        .map(|choice| choice.entry().gid)
        .unwrap_or_default()
        .bytes();
    attr
}

fn rts() -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::zeroed();
    (
        attr.qp_state,
        attr.timeout,
        attr.retry_cnt,
        attr.rnr_retry,
        attr.max_rd_atomic,
    ) = (IBV_QPS_RTS, 14, 7, 7, 1);
    attr
}

/// Makes the call as a program in C does, which must be refused, and then through the library, whose dump and words are left.
fn refused(mut end: End, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> ! {
    assert_eq!(modify(&end.qp, &mut attr, mask), 22);
    let error = end.qp.modify(&attr, mask).unwrap_err();
    assert_eq!(error.errno().raw_os_error(), 22);
    leave(&[end.qp.dump()], &error);
    give_up()
}

fn refused_at_init(spoil: impl FnOnce(&mut ibv_qp_attr, &mut ibv_qp_attr_mask)) -> ! {
    let (end, mut attr, mut mask) = (end(&device()), init(), INIT);
    spoil(&mut attr, &mut mask);
    refused(end, attr, mask)
}

fn refused_at_rtr(spoil: impl FnOnce(&mut ibv_qp_attr, &mut ibv_qp_attr_mask)) -> ! {
    let device = device();
    let end = end(&device);
    assert_eq!(modify(&end.qp, &mut init(), INIT), 0);
    let (mut attr, mut mask) = (rtr(&device, &end), RTR);
    spoil(&mut attr, &mut mask);
    refused(end, attr, mask)
}

fn refused_at_rts(spoil: impl FnOnce(&mut ibv_qp_attr, &mut ibv_qp_attr_mask)) -> ! {
    let device = device();
    let end = end(&device);
    assert_eq!(modify(&end.qp, &mut init(), INIT), 0);
    assert_eq!(modify(&end.qp, &mut rtr(&device, &end), RTR), 0);
    let (mut attr, mut mask) = (rts(), RTS);
    spoil(&mut attr, &mut mask);
    refused(end, attr, mask)
}

programs! {
    retry_cnt_out_of_range => { refused_at_rts(|attr, _| attr.retry_cnt = 20) }
    /// One more than max_qp_init_rd_atom of the device, which the row sets.
    reads_above_the_device => { refused_at_rts(|attr, _| attr.max_rd_atomic = 5) }
    /// The same of the other direction.
    served_reads_above_the_device => { refused_at_rtr(|attr, _| attr.max_dest_rd_atomic = 5) }
    min_rnr_timer_missing => { refused_at_rtr(|_, mask| *mask -= IBV_QP_MIN_RNR_TIMER) }
    timeout_not_allowed => { refused_at_rtr(|_, mask| *mask |= IBV_QP_TIMEOUT) }
    path_mtu_over_the_port => { refused_at_rtr(|attr, _| attr.path_mtu = IBV_MTU_4096) }
    is_global_zero => { refused_at_rtr(|attr, _| (attr.ah_attr.is_global, attr.ah_attr.dlid) = (0, 1)) }
    sgid_index_forgotten => { refused_at_rtr(|_, _| {}) }
    sgid_index_empty => { refused_at_rtr(|attr, _| attr.ah_attr.grh.sgid_index = 1) }
    dgid_zero => { refused_at_rtr(|attr, _| attr.ah_attr.grh.dgid.raw = [0; 16]) }
    port_of_the_path_differs => { refused_at_rtr(|attr, _| attr.ah_attr.port_num = 2) }
    port_beyond_the_last => { refused_at_init(|attr, _| attr.port_num = 3) }
    pkey_index_beyond_the_table => { refused_at_init(|attr, _| attr.pkey_index = 7) }
    pkey_index_empty => { refused_at_init(|attr, _| attr.pkey_index = 1) }
    /// INIT -> RTS, as if RTR were not there.
    a_state_left_out => {
        let end = end(&device());
        assert_eq!(modify(&end.qp, &mut init(), INIT), 0);
        refused(end, rts(), RTS)
    }
    /// Also of the port that was assumed: its table is empty.
    gid_zero_of_the_first_port => { refused_at_rtr(|_, _| {}) }

    qkey_missing => {
        let device = device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let qp = pd.ud(&cq).create().unwrap();
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        // SAFETY: the QP is live, the attributes are whole.
        let errno = unsafe { verbs().modify_qp(qp.as_ptr(), &mut init(), mask.bits() as _) };
        assert_eq!(errno, 22);
        leave(&[], &"modify QP to INIT: Invalid argument");
        give_up()
    }
}
