//! What only UD QPs have: they talk to whom they want, each datagram for itself.

use rdma_core_sys::rules;

use super::connect::{Connecting, Description};
use super::modify::Moves;
use super::transition::Global;
use super::{
    EndpointError, ModifyError, Path, PathOptions, PostError, PostFlags, Qp, ToInitUd, ToRtrUd,
    ToRtsUd, Transport, Ud, op,
};
use crate::ah::{self, AhError, Destination, DestinationError, Grh, GrhError};
use crate::cq::{Sender, Success, Ticket};
use crate::endpoint::Endpoint;
use crate::gid::{Gid, GidEntry};
use crate::mr::{Mr, MrSlice};
use crate::port::Port;
use crate::qkey::QKey;
use crate::raw::qp::QpHandle;

/// A UD QP could not be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActivateError {
    /// It could not be described.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A transition was refused.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

impl Qp<Ud> {
    /// Makes a fresh QP ready to receive and to send: RESET to INIT, RTR and RTS, on the port of `gid`, which is the address
    /// that it is reached by and sends from. Each step is checked, and told to `tracing`. What comes back is what others
    /// need to know of it; they give it to [`Qp::destination`].
    ///
    /// Only datagrams with its Q_Key get in. What arrives while no receive is posted is dropped, and nobody is told.
    ///
    /// ```
    /// use rdma_qp::{Access, Device, Grh, Memory, PathOptions, QKey};
    /// use std::time::Duration;
    /// let limit = Duration::from_secs(5);
    /// let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// let gid = device.port(1)?.best_gid()?;
    /// let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    /// let mr = pd.register(Memory::zeroed(4096), Access::LOCAL_WRITE)?;
    /// let (mut a, mut b) = (pd.ud(&cq).create()?, pd.ud(&cq).create()?);
    /// let key = QKey::random()?;
    /// a.activate(&gid, key, PathOptions::default())?;
    /// let of_b = b.activate(&gid, key, PathOptions::default())?;
    ///
    /// // 40 bytes more than the message, which begins behind them.
    /// let receive = b.recv(mr.slice(0, Grh::LEN + 5)?)?;
    /// mr.write_at(1000, b"hello")?;
    /// a.send_to(mr.slice(1000, 5)?, &a.destination(&of_b)?)?;
    /// let got = cq.wait(&receive, limit)?;
    /// assert_eq!((got.byte_len, got.sender.unwrap().qp_num), (5, a.qp_num()));
    ///
    /// // The answer needs no more than what came.
    /// let answer = a.recv(mr.slice(2000, Grh::LEN)?)?;
    /// let back = b.reply_to(&got, &mr, 0)?;
    /// b.send_to(rdma_qp::NOTHING, &back)?;
    /// assert_eq!(cq.wait(&answer, limit)?.sender.unwrap().qp_num, b.qp_num());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The port of the GID cannot be queried, an option is out of its range, or a step was refused: then the QP stays in the
    /// state that it has reached.
    pub fn activate(
        &mut self,
        gid: impl Into<GidEntry>,
        qkey: QKey,
        options: PathOptions,
    ) -> Result<Endpoint, ActivateError> {
        let here = self.activate_begin(gid.into(), qkey, options)?;
        self.activate_receiving()?;
        self.activate_sending()?;
        Ok(here)
    }

    /// [`Qp::activate`] as far as INIT, where receives can be posted.
    pub(crate) fn activate_begin(
        &mut self,
        gid: GidEntry,
        qkey: QKey,
        options: PathOptions,
    ) -> Result<Endpoint, ActivateError> {
        let mut here = self.describe(gid, options)?;
        here.qkey = Some(qkey);
        self.make(&ToInitUd {
            port: here.port,
            pkey_index: options.pkey_index,
            qkey: qkey.get(),
        })?;
        if let Some(told) = self.told() {
            told.set_here(here.clone());
        }
        Ok(here)
    }

    /// On to RTR.
    pub(crate) fn activate_receiving(&mut self) -> Result<(), ActivateError> {
        self.make(&ToRtrUd)?;
        Ok(())
    }

    /// On to RTS.
    pub(crate) fn activate_sending(&mut self) -> Result<(), ActivateError> {
        if let Some(sq_psn) = self.told().as_ref().map(|told| told.here().psn) {
            self.make(&ToRtsUd { sq_psn })?;
        }
        Ok(())
    }

    /// This QP's own Q_Key as its last modify has set it. It is named in requests, and not left to the device by the high bit:
    /// soft-RoCE does not know that rule and sends the bit (rxe_req.c, `init_req_packet`). `None` for a privileged one.
    fn own_qkey(&self) -> Option<QKey> {
        let qkey = self.info.path().qkey?;
        QKey::new(qkey).ok()
    }

    fn address(&self) -> Result<&Description, DestinationError> {
        self.told.as_ref().ok_or(DestinationError::NotActive)
    }

    /// The path from this QP's address to a GID, with the options that it was activated with. On InfiniBand the LID is to be
    /// filled in.
    ///
    /// # Errors
    /// The QP is not active.
    pub fn path_to(&self, gid: Gid) -> Result<Path, DestinationError> {
        let told = self.address()?;
        let here = told.here();
        let mut path = Path::new(told.source(), gid);
        path.service_level = here.service_level;
        path.global = path.global.map(|global| Global {
            hop_limit: here.hop_limit,
            traffic_class: here.traffic_class,
            flow_label: here.flow_label,
            ..global
        });
        Ok(path)
    }

    fn at(
        &self,
        path: &Path,
        qp_num: u32,
        qkey: Option<QKey>,
    ) -> Result<Destination, DestinationError> {
        let ah = ah::find(self.handle.pd(), &self.device, path)?;
        Ok(Destination::new(ah, qp_num, qkey)?)
    }

    /// The way to another UD QP, from its record. The address handle is that of its PD's cache, see [`Pd::ah`](crate::Pd::ah).
    ///
    /// # Errors
    /// This QP is not active, the record is not that of a UD QP, or there is no address handle.
    pub fn destination(&self, there: &Endpoint) -> Result<Destination, DestinationError> {
        let Endpoint { qp_num, gid, .. } = *there;
        let qkey = there.qkey.ok_or(DestinationError::NoQkey { qp_num, gid })?;
        let mut path = self.path_to(gid)?;
        path.lid = there.lid;
        self.at(&path, qp_num, Some(qkey))
    }

    /// The way to all members of a multicast group, which are taken to have this QP's Q_Key. `lid` is the group's on
    /// InfiniBand, and 0 on Ethernet. A sender need not be a member.
    ///
    /// # Errors
    /// The GID is no multicast address, this QP is not active, or there is no address handle.
    pub fn group(&self, gid: Gid, lid: u16) -> Result<Destination, DestinationError> {
        let mut path = self.path_to(ah::group(gid)?)?;
        path.lid = lid;
        self.at(&path, Destination::GROUP, self.own_qkey())
    }

    /// The way back to who sent a datagram: `got` is its completion, and `offset` the place in `mr` at which its receive
    /// began. The sender is taken to have this QP's Q_Key: no datagram says what its sender's is.
    ///
    /// The answer leaves from the address that the datagram came to, in its traffic class and flow. To answer the same
    /// sender again costs a look into a table.
    ///
    /// # Errors
    /// The completion is none of a datagram, this QP is not active, there is no header at that place, or there is no address
    /// handle.
    pub fn reply_to(
        &self,
        got: &Success,
        mr: &Mr,
        offset: usize,
    ) -> Result<Destination, DestinationError> {
        let sender = got.sender.ok_or(DestinationError::NoSender)?;
        let grh = sender.has_grh.then(|| Grh::read(mr, offset)).transpose()?;
        self.reply_by(&sender, grh.as_ref())
    }

    /// The way back as [`Qp::reply_to`] finds it, where the header was read already: for receives that are scattered, or not
    /// in a region.
    ///
    /// # Errors
    /// As [`Qp::reply_to`].
    pub fn reply_by(
        &self,
        sender: &Sender,
        grh: Option<&Grh>,
    ) -> Result<Destination, DestinationError> {
        let mut from = self.address()?.source();
        if let Some(grh) = grh {
            let context = self.handle.pd().context.clone();
            let port =
                Port::new(context, from.port, self.device.phys_port_cnt).map_err(AhError::Port)?;
            from = ah::answer_from(&port, from, grh)?;
        } else if sender.has_grh {
            return Err(GrhError::NotGiven.into());
        }
        let path = ah::way_back(from, sender, grh);
        self.at(&path, sender.qp_num, self.own_qkey())
    }

    /// Posts a SEND of a datagram, of at most the port's active MTU. Success means that it has left: whether it arrives,
    /// nobody says.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn send_to<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        to: &Destination,
    ) -> Result<Ticket, PostError> {
        self.post(op::SendTo { to }, local, PostFlags::empty())
    }

    /// Posts a SEND as [`Qp::send_to`] does, with 32 bits of immediate data for the receiver's completion.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn send_to_with_imm<'m>(
        &mut self,
        local: impl AsRef<[MrSlice<'m>]>,
        to: &Destination,
        imm: u32,
    ) -> Result<Ticket, PostError> {
        self.post(op::SendToImm { to, imm }, local, PostFlags::empty())
    }

    pub(crate) fn handle(&self) -> &QpHandle {
        &self.handle
    }
}

impl<T: Transport> Qp<T> {
    /// The way to this QP itself, if it is a UD QP that was activated: for a request that shall go nowhere.
    pub(super) fn own_ah(&self) -> Option<Destination> {
        if T::RULES != rules::Transport::Ud {
            return None;
        }
        let source = self.told.as_ref()?.source();
        let path = Path::new(source, source.gid);
        let ah = ah::find(self.handle.pd(), &self.device, &path).ok()?;
        Destination::new(ah, self.qp_num(), None).ok()
    }
}
