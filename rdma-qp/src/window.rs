//! Memory windows: rights of peers to a part of a region, given and taken by requests rather than by calls into the
//! kernel.

use std::fmt;

use rdma_core_sys::{
    IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_MW_TYPE_2, ibv_access_flags,
    ibv_device_cap_flags, ops::ibv_inc_rkey,
};

use crate::cq::Ticket;
use crate::endpoint::RemoteRegion;
use crate::errno::Errno;
use crate::mr::MrSlice;
use crate::pd::{Access, Pd};
use crate::qp::{NOTHING, Op, PostError, PostFlags, Qp, Transport, op};
use crate::raw::mw::{Binding, OwnedWindow};

/// A memory window could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The device has none that a request can bind.
    #[error("{device} has no memory windows of type 2 (device capability flags {flags:#x})")]
    Unsupported {
        /// The device.
        device: String,
        /// Its capability flags.
        flags: u64,
    },
    /// The library refused.
    #[error("{device} did not make a memory window: {source}")]
    Refused {
        /// The device.
        device: String,
        /// What the library said.
        source: Errno,
    },
}

/// A memory window of type 2: bound by a request, and of that request's QP from then on.
///
/// A region with a bound window cannot be deregistered: drop the window, or invalidate its key, first. A dropped region
/// waits for that by itself.
pub struct Window {
    owned: OwnedWindow,
    /// The key that the last bind gave it.
    rkey: u32,
}

impl Pd {
    /// Makes a memory window (`ibv_alloc_mw(3)`).
    ///
    /// # Errors
    /// The device has none, or the library refused.
    pub fn window(&self) -> Result<Window, WindowError> {
        let flags =
            ibv_device_cap_flags::from_bits_retain(self.device_attr().device_cap_flags.into());
        let device = || self.device().to_owned();
        if !flags.intersects(IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B) {
            return Err(WindowError::Unsupported {
                device: device(),
                flags: flags.bits(),
            });
        }
        let owned = OwnedWindow::allocate(self.handle(), IBV_MW_TYPE_2);
        let owned = owned.map_err(|source| WindowError::Refused {
            device: device(),
            source,
        })?;
        Ok(Window {
            rkey: owned.rkey(),
            owned,
        })
    }
}

impl Window {
    /// The key that the last bind gave it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.owned.pd().context.name
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window(rkey {:#x} on {})", self.rkey, self.device())
    }
}

/// Binds a memory window, see [`Qp::bind`].
#[derive(Clone, Copy)]
pub struct BindWindow<'a>(Binding<'a>);

impl<'a> BindWindow<'a> {
    pub(crate) fn binding(&self) -> Binding<'a> {
        self.0
    }
}

impl<T: Transport> Qp<T> {
    /// Posts a request that binds `window` to a range of a region, with rights for the peer of this QP, and returns how the
    /// peer names it from then on. Each bind gives the window a new key, so what the peer was told before is void.
    ///
    /// It is handed to the device at once, with what waits for the doorbell.
    ///
    /// Requests of the peer that come before the bind has completed find no such key: tell the peer afterwards. The region
    /// must have been registered with [`Access::MW_BIND`], and with `LOCAL_WRITE` if the peer may write.
    ///
    /// ```
    /// # use rdma_qp::{Access, Device, Memory, Peer, PostFlags, Timing};
    /// # use std::time::Duration;
    /// # let limit = Duration::from_secs(5);
    /// # let device = Device::open_index(rdma_soft::verbs(), 0)?;
    /// # let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
    /// # let gid = device.port(1)?.best_gid()?.entry();
    /// # let (mut a, mut b) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
    /// # let (to_a, to_b) = (a.endpoint(gid)?, b.endpoint(gid)?);
    /// # let (of_a, of_b) = (Peer { endpoint: to_a, regions: vec![] }, Peer { endpoint: to_b, regions: vec![] });
    /// # let begun = (a.connect_begin(&of_b, Timing::default())?, b.connect_begin(&of_a, Timing::default())?);
    /// # a.connect_finish(begun.0, Timing::default())?;
    /// # b.connect_finish(begun.1, Timing::default())?;
    /// let mr = pd.register(Memory::zeroed(4096), Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mut window = pd.window()?;
    /// let (ticket, offered) =
    ///     a.bind(&mut window, mr.slice(1024, 64)?, Access::REMOTE_WRITE, PostFlags::empty())?;
    /// cq.wait(&ticket, limit)?;
    /// // The peer writes into the 64 bytes, and into nothing else.
    /// # let bytes = pd.register(Memory::copy_of(b"hello"), Access::empty())?;
    /// let written = b.write(bytes.all(), offered.at(0))?;
    /// cq.wait(&written, limit)?;
    /// let mut found = [0; 5];
    /// mr.read_at(1024, &mut found)?;
    /// assert_eq!(&found, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Qp::post`].
    pub fn bind<'a>(
        &mut self,
        window: &'a mut Window,
        to: MrSlice<'a>,
        access: Access,
        flags: PostFlags,
    ) -> Result<(Ticket, RemoteRegion), PostError>
    where
        BindWindow<'a>: Op<T>,
    {
        self.bind_with(0, window, to, access, flags)
    }

    /// The same, and keeps a number beside the request, as [`Qp::post_with`] does.
    ///
    /// # Errors
    /// As [`Qp::post`].
    pub fn bind_with<'a>(
        &mut self,
        context: u64,
        window: &'a mut Window,
        to: MrSlice<'a>,
        access: Access,
        flags: PostFlags,
    ) -> Result<(Ticket, RemoteRegion), PostError>
    where
        BindWindow<'a>: Op<T>,
    {
        let (addr, len) = (to.addr(), to.len() as u64);
        // The device demands another key than the last one; the low byte is the application's (ibv_bind_mw(3)).
        let rkey = ibv_inc_rkey(window.rkey);
        window.owned.set_rkey(window.rkey);
        let access = ibv_access_flags::from_bits_retain(access.bits());
        let op = BindWindow(window.owned.binding(Some(to.local()), access, rkey));
        let ticket = self.post_with(context, op, NOTHING, flags)?;
        self.ring()?;
        window.rkey = rkey;
        Ok((ticket, RemoteRegion { addr, len, rkey }))
    }

    /// Posts a request that takes the window's key away: no peer can use it afterwards. The region can be deregistered when
    /// it has completed.
    ///
    /// # Errors
    /// As [`Qp::post`].
    pub fn unbind(&mut self, window: &Window, flags: PostFlags) -> Result<Ticket, PostError>
    where
        op::LocalInv: Op<T>,
    {
        self.post(op::LocalInv(window.rkey), NOTHING, flags)
    }
}
