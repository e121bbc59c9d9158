//! Queries write all of what they are given: a program that was compiled with newer headers than the library's reads
//! nothing that was there before.

use std::fmt;

use super::{Arm, Check, Done, Outcome, PORT, Side, expect};
use crate::device::Failed;

/// Two values that are different in every bit.
const BEFORE: [u8; 2] = [0xa5, 0x5a];

pub(super) fn checks() -> Vec<Check> {
    fn rule<T: fmt::Debug + 'static>(
        call: &str,
        query: fn(&Arm, u8) -> Result<T, Failed>,
    ) -> Check {
        Check::rule(format!("queries/{call}-writes-every-field"), move |arm| {
            whole(query(arm, BEFORE[0])?, query(arm, BEFORE[1])?)
        })
    }
    fn side(arm: &Arm) -> &Side {
        &arm.sides[0]
    }
    vec![
        rule("ibv_query_device", |arm, byte| {
            side(arm).device.device_over(byte)
        }),
        rule("ibv_query_device_ex", |arm, byte| {
            side(arm).device.device_ex_over(byte)
        }),
        rule("ibv_query_port", |arm, byte| {
            side(arm).device.port_over(PORT, byte)
        }),
        rule("ibv_query_gid_ex", |arm, byte| {
            side(arm).device.gid_over(PORT, side(arm).gid_index, byte)
        }),
    ]
}

/// Two answers to the same question: what is left of what was there before is different in them.
fn whole<T: fmt::Debug>(one: T, other: T) -> Outcome {
    expect("the answer", format!("{one:?}"), format!("{other:?}"))?;
    Ok(Done::Passed)
}
