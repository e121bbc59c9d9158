//! The symbol `ibv_query_port` fills only the old part of the port's attributes: the rest was uninitialised in one program
//! and always zero in another, and 800 Gb/s links looked slow.
//!
//! That every byte is written, by providers of both kinds, `rdma-core-sys` tests (tests/ops.rs): it owns the call.

use std::ffi::c_int;

use crate::fake::{self, Fake};
use rdma_core_sys::*;
use rdma_qp::Device;

/// On a provider that has the old call only, what it cannot fill is zero, whatever it keeps behind it.
#[test]
fn what_the_old_call_cannot_fill_is_zero() {
    let fake = Fake::new();
    {
        let mut state = fake.state();
        let port = &mut state.ports[0];
        (
            port.active_speed,
            port.active_speed_ex,
            port.port_cap_flags2,
        ) = (128, 256, 3);
    }
    let device = Device::open(&fake::verbs(), "fake0").unwrap();
    for _ in 0..3 {
        let raw = device.port(1).unwrap().query().unwrap().raw;
        assert_eq!((raw.active_speed, raw.max_msg_sz), (128, 1 << 20));
        assert_eq!((raw.active_speed_ex, raw.port_cap_flags2), (0, 0));
    }
}

/// The exported symbol, refusing.
unsafe extern "C" fn exported(_: *mut ibv_context, _: u8, _: *mut _compat_ibv_port_attr) -> c_int {
    5
}

/// Where a provider has the new call, the exported symbol is not used.
#[test]
fn the_new_call_is_taken_where_there_is_one() {
    let functions = Functions {
        query_port_compat: exported,
        ..**rdma_soft::verbs()
    };
    // SAFETY: the functions are those of the software device, which lives as long as the process, and one that touches
    // nothing.
    let verbs = unsafe { Verbs::new(functions) };
    let name = rdma_soft::add_device(rdma_soft::Profile::default()).unwrap();
    let device = Device::open(&verbs, &name).unwrap();
    assert!(device.port(1).unwrap().query().unwrap().is_active());
}
