//! Stage a: the program keeps everything, and calls qp_modify() where it called ibv_modify_qp().

use std::ffi::{c_char, c_int};

use rdma_core_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use crate::export::{In, Out, Raw, Room, export, put_text};
use crate::fault::Fault;
use crate::verbs::borrow;

/// The mask as C has it. Bits that nobody knows are kept: the rules name them.
pub(crate) fn mask_of(mask: c_int) -> ibv_qp_attr_mask {
    ibv_qp_attr_mask::from_bits_retain(mask as u32)
}

export! {
    /// Modifies a Queue Pair of the program's, as ibv_modify_qp(3) does, after looking at the call.
    ///
    /// The real state is asked of the device, because that in the struct may be stale. Then the mask is checked against the
    /// transition rules, and the values against their ranges and what device and port allow. A call that cannot succeed is
    /// not made, and qp_last_error() says everything that is wrong with it. The move is logged.
    ///
    /// @param qp         A Queue Pair that is alive, with its PD, CQs and context; any type, of any device.
    /// @param attr       The attributes; those without a bit in the mask are not looked at.
    /// @param attr_mask  Bits of enum ibv_qp_attr_mask.
    /// @return 0, or an errno (and errno is set): EINVAL, or EPERM for a privileged Q_Key, where the call was not made
    ///         (QP_CODE_REFUSED); else what the device said (QP_CODE_SYSTEM). Either way nothing was changed.
    ///
    /// Threads: any, but nobody else modifies the same Queue Pair at the same time.
    fn qp_modify(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        attr: *const ibv_qp_attr as In<'_, ibv_qp_attr>,
        attr_mask: c_int,
    ) {
        // SAFETY: the header asks the caller for what `borrow` needs.
        unsafe { borrow(qp.0) }?.modify(attr.0, mask_of(attr_mask))?;
        Ok(())
    }

    /// Looks at a modify as qp_modify() does, and does not make it.
    ///
    /// @param ignored  Where the bits of the mask go that would be ignored, because they mean nothing on this transport;
    ///                 may be NULL.
    /// @return 0: nothing is wrong with it. Else as qp_modify().
    fn qp_check(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        attr: *const ibv_qp_attr as In<'_, ibv_qp_attr>,
        attr_mask: c_int,
        ignored: *mut c_int as Option<Out<'_, c_int>>,
    ) {
        // SAFETY: the header asks the caller for what `borrow` needs.
        let bits = unsafe { borrow(qp.0) }?.check(attr.0, mask_of(attr_mask))?;
        if let Some(mut ignored) = ignored {
            ignored.set(bits.bits() as c_int);
        }
        Ok(())
    }

    /// Asks the device for the state of a Queue Pair of the program's.
    ///
    /// @param state  Where it goes: one of enum ibv_qp_state.
    fn qp_state(qp: *mut ibv_qp as Raw<ibv_qp>, state: *mut c_int as Out<'_, c_int>) {
        // SAFETY: the header asks the caller for what `borrow` needs.
        let ibv_qp_state(now) = unsafe { borrow(qp.0) }?.state()?;
        state.set(now as c_int);
        Ok(())
    }

    /// Describes a Queue Pair of the program's for people: all its attributes, asked of the device, several lines.
    ///
    /// @param text    Where the text goes, with its end; NULL only if size is 0.
    /// @param size    Bytes there.
    /// @param needed  Where the length of the whole text goes, its end included; may be NULL.
    /// @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): the text was cut off; or what the device said.
    fn qp_query_text(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        // SAFETY: the header asks the caller for what `borrow` needs.
        let snapshot = unsafe { borrow(qp.0) }?.query()?;
        put_text(&snapshot.to_string(), &mut places, needed)
    }

    /// Describes a Queue Pair of the program's for programs: one JSON document of the device, its ports and GIDs, and the
    /// attributes of the Queue Pair. It is what `qp doctor` reads. Arguments and result as qp_query_text().
    fn qp_query_json(
        qp: *mut ibv_qp as Raw<ibv_qp>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        // SAFETY: the header asks the caller for what `borrow` needs.
        let dump = unsafe { borrow(qp.0) }?.dump();
        put_text(&dump.to_json(), &mut places, needed)
    }
}

/// A number that C gives as an int, and that has a smaller type.
pub(crate) fn narrow<T: TryFrom<i64>>(name: &str, value: i64, max: i64) -> Result<T, Fault> {
    match T::try_from(value) {
        Ok(narrow) if (0..=max).contains(&value) => Ok(narrow),
        _ => Err(Fault::range(format!(
            "{name} is {value}, but must be in 0..={max}"
        ))),
    }
}
