//! Memory windows: rights of peers to a part of a region, given and taken by requests.

use std::ffi::c_int;

use rdma_qp::{Mr, NOTHING, Pd, PostFlags, Window, op};

use crate::export::{Out, export};
use crate::memory::{access, qp_mr, qp_pd};
use crate::pair::{Pair, connected, qp_pair};
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::qp_region;

/// A memory window of type 2: bound by a request, and of that request's Queue Pair from then on. One thread at a time may call
/// functions with it.
#[allow(non_camel_case_types)]
pub struct qp_window {
    _never: [u8; 0],
}

// SAFETY: no other type has this kind.
unsafe impl Object for Window {
    type C = qp_window;
    const KIND: Kind = Kind::Window;
}

export! {
    /// Makes a memory window.
    ///
    /// @param window  Where the handle goes; destroy it with qp_window_destroy().
    /// @return 0; EOPNOTSUPP: the device has none that a request can bind; or what the device said.
    fn qp_window_create(pd: *mut qp_pd as Held<Pd>, window: *mut *mut qp_window as Out<'_, *mut qp_window>) {
        window.set(insert(pd.window()?)?);
        Ok(())
    }

    /// Posts a request that binds a window to a range of a region, with rights for the peer of the Queue Pair, and says how the
    /// peer names it from then on. Each bind gives the window another key: what the peer was told before is void. A request of
    /// the peer's that comes before the bind has completed (operation QP_BIND) finds no such key: tell the peer afterwards.
    ///
    /// @param pair     The Queue Pair: RC, UC or XRC, in RTS.
    /// @param mr       The region, registered with IBV_ACCESS_MW_BIND (16), and with LOCAL_WRITE if the peer may write. It cannot
    ///                 be destroyed while the window is bound to it.
    /// @param offset   First byte, counted from the start of the region.
    /// @param len      Bytes.
    /// @param access   What the peer may do: bits of enum ibv_access_flags, as for qp_mr_create().
    /// @param context  The program's own: it comes back with the completion.
    /// @param region   Where the name for the peer goes.
    /// @return As qp_post_send().
    fn qp_window_bind(
        window: *mut qp_window as Alone<Window>,
        pair: *mut qp_pair as Alone<Pair>,
        mr: *mut qp_mr as Held<Mr>,
        offset: usize,
        len: usize,
        access: c_int,
        context: u64,
        region: *mut qp_region as Out<'_, qp_region>,
    ) {
        let (access, local, flags) = (self::access(access)?, mr.slice(offset, len)?, PostFlags::empty());
        let bound = connected!(&mut pair.qp, qp => {
            qp.bind_with(context, &mut window, local, access, flags).map_err(Into::into)
        });
        region.set(bound?.1.into());
        Ok(())
    }

    /// Posts a request that takes the key of a window away: no peer can use it afterwards, and its region can be destroyed when
    /// the request has completed (operation QP_LOCAL_INV).
    ///
    /// @param context  The program's own: it comes back with the completion.
    /// @return As qp_post_send().
    fn qp_window_unbind(
        window: *mut qp_window as Alone<Window>,
        pair: *mut qp_pair as Alone<Pair>,
        context: u64,
    ) {
        let (key, flags) = (op::LocalInv(window.rkey()), PostFlags::empty());
        connected!(&mut pair.qp, qp => {
            let posted = qp.post_with(context, key, NOTHING, flags);
            posted.and_then(|_| qp.ring()).map_err(Into::into)
        })
    }

    /// Ends a window, at once or when no request can name it any more. Its key is void when that is so.
    fn qp_window_destroy(window: *mut qp_window as Later<Window>) {
        window.destroy(|_| Ok(()))
    }
}
