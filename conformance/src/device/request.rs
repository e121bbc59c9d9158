//! Send requests, and the form in which verbs take them.

use std::ffi::c_int;
use std::rc::Rc;

use rdma_core_sys::*;

use super::{Ah, Buffer, Window};

/// A send request.
#[derive(Clone, Debug)]
pub struct Send {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: ibv_wr_opcode,
    /// How it is carried out. `IBV_SEND_INLINE` is for [`inline`](Send::inline) to set.
    pub flags: ibv_send_flags,
    /// Immediate data in host byte order, for operations that carry any.
    pub imm: u32,
    /// Where the bytes are, or go to.
    pub sges: Vec<ibv_sge>,
    /// The bytes themselves, in pieces, instead of [`sges`](Send::sges): inline data.
    pub inline: Option<Vec<Vec<u8>>>,
    /// Address and rkey at the peer, for operations that name its memory.
    pub remote: (u64, u32),
    /// What an atomic compares with or adds, and what it swaps in.
    pub operands: (u64, u64),
    /// The peer of a datagram.
    pub to: Option<To>,
    /// The peer's SRQ, on XRC.
    pub srq: u32,
    /// The key that ends with the message, or by a local invalidate.
    pub invalidate: u32,
    /// The binding of a memory window.
    pub bind: Option<Bind>,
}

impl Default for Send {
    /// A SEND of nothing, unsignaled.
    fn default() -> Send {
        Send {
            wr_id: 0,
            opcode: IBV_WR_SEND,
            flags: ibv_send_flags::empty(),
            imm: 0,
            sges: Vec::new(),
            inline: None,
            remote: (0, 0),
            operands: (0, 0),
            to: None,
            srq: 0,
            invalidate: 0,
            bind: None,
        }
    }
}

/// The peer of a datagram.
#[derive(Clone, Debug)]
pub struct To {
    /// Where it is.
    pub ah: Rc<Ah>,
    /// Its QP.
    pub qp_num: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

/// What a memory window is bound to.
#[derive(Clone, Debug)]
pub struct Bind {
    /// The window.
    pub window: Rc<Window>,
    /// Its new key (windows of type 2).
    pub rkey: u32,
    /// The memory.
    pub buffer: Rc<Buffer>,
    /// The first byte, by its offset.
    pub offset: usize,
    /// Bytes.
    pub len: u64,
    /// What peers may do there.
    pub access: ibv_access_flags,
}

impl Bind {
    /// The form that verbs take. The region is null where it has been deregistered.
    pub(super) fn info(&self) -> ibv_mw_bind_info {
        let mut info = ibv_mw_bind_info::zeroed();
        info.mr = self.buffer.mr().unwrap_or(std::ptr::null_mut());
        info.addr = self.buffer.address(self.offset);
        info.length = self.len;
        info.mw_access_flags = self.access.bits();
        info
    }
}

/// A request in the form that verbs take, with what it points to.
pub(super) struct Raw {
    pub(super) wr: ibv_send_wr,
    sges: Vec<ibv_sge>,
    /// Keeps inline data where `sges` say that it is.
    _inline: Option<Vec<Vec<u8>>>,
    header: Vec<u8>,
}

impl Send {
    /// The flags, inline data counted in.
    pub(super) fn send_flags(&self) -> ibv_send_flags {
        assert!(
            !self.flags.contains(IBV_SEND_INLINE),
            "inline data goes into `inline`"
        );
        match self.inline {
            Some(_) => self.flags | IBV_SEND_INLINE,
            None => self.flags,
        }
    }

    pub(super) fn raw(&self) -> Raw {
        let inline = self.inline.clone();
        let sges = match &inline {
            Some(pieces) => pieces.iter().map(|piece| local(piece)).collect(),
            None => self.sges.clone(),
        };
        let mut raw = Raw {
            wr: ibv_send_wr::zeroed(),
            sges,
            _inline: inline,
            header: vec![0; 64],
        };
        let wr = &mut raw.wr;
        wr.wr_id = self.wr_id;
        wr.sg_list = raw.sges.as_mut_ptr();
        wr.num_sge = raw.sges.len() as c_int;
        wr.opcode = self.opcode;
        wr.send_flags = self.send_flags().bits();
        let (remote_addr, rkey) = self.remote;
        match self.opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let (compare_add, swap) = self.operands;
                wr.wr.atomic = ibv_send_wr_atomic {
                    remote_addr,
                    compare_add,
                    swap,
                    rkey,
                };
            }
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => {
                if let Some(to) = &self.to {
                    wr.wr.ud = ibv_send_wr_ud {
                        ah: to.ah.ah(),
                        remote_qpn: to.qp_num,
                        remote_qkey: to.qkey,
                    };
                }
            }
            _ => wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey },
        }
        match self.opcode {
            IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND_WITH_IMM => wr.set_imm_data(self.imm),
            IBV_WR_SEND_WITH_INV | IBV_WR_LOCAL_INV => wr.imm.invalidate_rkey = self.invalidate,
            IBV_WR_TSO => {
                wr.ext.tso = ibv_send_wr_tso {
                    hdr: raw.header.as_mut_ptr().cast(),
                    hdr_sz: raw.header.len() as u16,
                    mss: 1024,
                };
            }
            _ => {}
        }
        if let Some(bind) = &self.bind {
            wr.ext.bind_mw = ibv_send_wr_bind_mw {
                mw: bind.window.mw(),
                rkey: bind.rkey,
                bind_info: bind.info(),
            };
        }
        wr.qp_type.xrc.remote_srqn = self.srq;
        raw
    }
}

/// An entry for memory that no key covers: inline data.
fn local(piece: &[u8]) -> ibv_sge {
    ibv_sge {
        addr: piece.as_ptr() as u64,
        length: piece.len() as u32,
        lkey: 0,
    }
}
