//! Finds the rule of a transition by questions to [`rules::check`] alone.

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{IBV_QP_STATE, ibv_qp_attr_mask, ibv_qp_state};

/// What the answers say about one transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: ibv_qp_state,
    /// The state after.
    pub to: ibv_qp_state,
    /// Attributes without which it is refused.
    pub required: ibv_qp_attr_mask,
    /// Attributes with which it is accepted too, and which mean something there.
    pub optional: ibv_qp_attr_mask,
}

/// Every bit that a mask can have, but the state itself.
fn bits() -> impl Iterator<Item = ibv_qp_attr_mask> {
    (0..32)
        .map(|n| ibv_qp_attr_mask::from_bits_retain(1 << n))
        .filter(|&bit| bit != IBV_QP_STATE)
}

/// The rule of `from` to `to`, or `None` where there is no such transition.
///
/// A bit is required if the mask of all others is refused for want of it. It is optional if the required ones and
/// it together are accepted, and it is not one of those that are dropped unread.
pub fn ask(transport: Transport, from: ibv_qp_state, to: ibv_qp_state) -> Option<Transition> {
    let all = ibv_qp_attr_mask::from_bits_retain(u32::MAX);
    if let Err(refusal) = rules::check(transport, from, to, IBV_QP_STATE)
        && !refusal.is_transition
    {
        return None;
    }
    let missed = |bit: &ibv_qp_attr_mask| {
        let without = all.difference(*bit);
        rules::check(transport, from, to, without)
            .is_err_and(|refusal| refusal.missing.contains(*bit))
    };
    let required = bits()
        .filter(missed)
        .fold(IBV_QP_STATE, ibv_qp_attr_mask::union);
    let accepted = |bit: &ibv_qp_attr_mask| {
        rules::check(transport, from, to, required.union(*bit))
            .is_ok_and(|verdict| !verdict.ignored.contains(*bit))
    };
    let optional = bits()
        .filter(|bit| !required.contains(*bit))
        .filter(accepted)
        .fold(ibv_qp_attr_mask::empty(), ibv_qp_attr_mask::union);
    Some(Transition {
        from,
        to,
        required: required.difference(IBV_QP_STATE),
        optional,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::*;

    #[test]
    fn what_is_no_transition_has_no_rule() {
        assert_eq!(ask(Transport::Rc, IBV_QPS_RESET, IBV_QPS_RTS), None);
        assert_eq!(ask(Transport::Rc, ibv_qp_state(7), IBV_QPS_RESET), None);
    }

    /// From `ibv_modify_qp(3)`.
    #[test]
    fn the_manual_agrees_on_init_to_rtr() {
        let rule = ask(Transport::Rc, IBV_QPS_INIT, IBV_QPS_RTR).unwrap();
        let required = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        assert_eq!(rule.required, required);
        assert_eq!(
            rule.optional,
            IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX
        );
    }

    #[test]
    fn what_is_dropped_unread_is_not_optional() {
        let rule = ask(Transport::XrcIni, IBV_QPS_RTS, IBV_QPS_RTS).unwrap();
        assert!(!rule.optional.contains(IBV_QP_MIN_RNR_TIMER));
    }
}
