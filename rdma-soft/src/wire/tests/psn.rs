use proptest::prelude::*;

use crate::wire::Psn;

#[test]
fn numbers_wrap_at_24_bits() {
    assert_eq!(Psn::new(0xff_ffff).next().value(), 0);
    assert_eq!(Psn::new(0x0100_0005).value(), 5);
    assert_eq!(Psn::new(0xff_fff0).plus(0x20).value(), 0x10);
    assert_eq!(Psn::new(0x10).minus(0x20).value(), 0xff_fff0);
    assert_eq!(Psn::new(0).minus(1).value(), 0xff_ffff);
    assert_eq!(Psn::new(3).plus(1 << 24), Psn::new(3));
    assert_eq!(Psn::new(7).plus(u32::MAX), Psn::new(6));
    assert_eq!(Psn::new(0xab_cdef).to_string(), "0xabcdef");
}

#[test]
fn distance_at_the_wrap_and_at_half_the_window() {
    let d = |from, to| Psn::distance(Psn::new(from), Psn::new(to));
    assert_eq!(d(5, 5), 0);
    assert_eq!(d(0xff_ffff, 0), 1);
    assert_eq!(d(0, 0xff_ffff), -1);
    assert_eq!(d(0xff_fffe, 3), 5);
    assert_eq!(d(0, 0x7f_ffff), 0x7f_ffff);
    assert_eq!(d(0, 0x80_0000), -0x80_0000);
    assert_eq!(d(0x80_0000, 0), -0x80_0000);
    assert_eq!(d(0, 0x80_0001), -0x7f_ffff);
    assert_eq!(d(0xc0_0000, 0x3f_ffff), 0x7f_ffff);
}

proptest! {
    #[test]
    fn distance_undoes_plus(from in any::<u32>(), n in 0..0x80_0000u32) {
        let from = Psn::new(from);
        prop_assert_eq!(Psn::distance(from, from.plus(n)), n as i32);
        prop_assert_eq!(Psn::distance(from, from.minus(n)), -(n as i32));
        prop_assert_eq!(from.plus(n).minus(n), from);
    }
}
