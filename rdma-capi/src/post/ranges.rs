//! The local side of requests with several ranges, or none.

use rdma_qp::{Mr, MrSlice};

use super::qp_range;
use crate::fault::{Fault, QP_CODE_NULL};
use crate::slots::Held;

/// Most ranges that one request can have here.
const MOST_RANGES: usize = 32;

/// Ranges of regions that a call uses.
pub(crate) struct Ranges {
    held: [Option<(Held<Mr>, usize, usize)>; MOST_RANGES],
    count: usize,
}

impl Ranges {
    pub(crate) fn enter(ranges: &[qp_range]) -> Result<Ranges, Fault> {
        if ranges.len() > MOST_RANGES {
            let text = format!(
                "{} ranges: one request can have {MOST_RANGES}",
                ranges.len()
            );
            return Err(Fault::range(text));
        }
        let mut held = [const { None }; MOST_RANGES];
        for (place, range) in held.iter_mut().zip(ranges) {
            *place = Some((Held::of(range.mr, "ranges->mr")?, range.offset, range.len));
        }
        let count = ranges.len();
        Ok(Ranges { held, count })
    }

    /// Calls `f` with the ranges, if each is inside its region.
    pub(crate) fn lend<R>(&self, f: impl FnOnce(&[MrSlice<'_>]) -> R) -> Result<R, Fault> {
        let slice = |place: usize| match &self.held[place] {
            Some((mr, offset, len)) => Ok(mr.slice(*offset, *len)?),
            None => Err(Fault::range("no such range")),
        };
        if self.count == 0 {
            return Ok(f(&[]));
        }
        let mut slices = [slice(0)?; MOST_RANGES];
        for (place, kept) in slices.iter_mut().enumerate().take(self.count) {
            *kept = slice(place)?;
        }
        Ok(f(&slices[..self.count]))
    }
}

/// What a request without a region says of its length.
pub(crate) fn nothing(len: usize, name: &str) -> Result<(), Fault> {
    if len != 0 {
        return Err(Fault::new(
            QP_CODE_NULL,
            libc::EINVAL,
            format!("{name}->mr is NULL, but {name}->len is {len}"),
        ));
    }
    Ok(())
}
