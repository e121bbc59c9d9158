//! How two ends tell each other of themselves: over TCP, through shared memory, or by functions of the program's.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rdma_qp::exchange::{ExchangeError, MAX_MESSAGE, shm, tcp};
use rdma_qp::{Endpoint, Peer, RemoteRegion};

use crate::endpoint::qp_endpoint;
use crate::export::{Array, In, Out, Places, Room, Text, export, put_text};
use crate::fault::*;
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::{limit, qp_region};

/// Sends bytes to the peer and receives what the peer sends in the same step. Both ends call it.
///
/// @param context    What was given to qp_exchange_from().
/// @param mine       The bytes to send.
/// @param len        Their number, at most 65536.
/// @param theirs     Where the peer's bytes go.
/// @param room       Room there.
/// @param their_len  Where their number goes.
/// @return 0, or an errno.
#[allow(non_camel_case_types)]
pub type qp_swap_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        mine: *const c_void,
        len: usize,
        theirs: *mut c_void,
        room: usize,
        their_len: *mut usize,
    ) -> c_int,
>;

/// Waits until the peer has called it too.
///
/// @param context  What was given to qp_exchange_from().
/// @return 0, or an errno.
#[allow(non_camel_case_types)]
pub type qp_barrier_fn = Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>;

/// A channel to one peer. One thread at a time may call functions with it.
#[allow(non_camel_case_types)]
pub struct qp_exchange {
    _never: [u8; 0],
}

/// A socket that waits for peers. Any thread may call functions with it.
#[allow(non_camel_case_types)]
pub struct qp_listener {
    _never: [u8; 0],
}

/// What C has a `qp_exchange *` of.
pub(crate) enum Exchange {
    Tcp(tcp::Channel),
    Shm(shm::Channel),
    Program(Program),
}

// SAFETY: no other type has this kind.
unsafe impl Object for Exchange {
    type C = qp_exchange;
    const KIND: Kind = Kind::Exchange;
}

// SAFETY: no other type has this kind.
unsafe impl Object for tcp::Listener {
    type C = qp_listener;
    const KIND: Kind = Kind::Listener;
}

/// The two functions of the program's.
pub(crate) struct Program {
    swap: unsafe extern "C" fn(
        *mut c_void,
        *const c_void,
        usize,
        *mut c_void,
        usize,
        *mut usize,
    ) -> c_int,
    barrier: unsafe extern "C" fn(*mut c_void) -> c_int,
    context: *mut c_void,
}

// SAFETY: the pointer is the program's and never looked at here; the header says that the functions are called by whichever
// thread calls the library.
unsafe impl Send for Program {}

/// A function of the program's returned an error.
#[derive(Debug)]
pub(crate) struct Said {
    function: &'static str,
    returned: c_int,
}

impl Said {
    /// The errno that it returned; EIO for what is none.
    pub(crate) fn errno(&self) -> c_int {
        if self.returned > 0 {
            self.returned
        } else {
            libc::EIO
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the program's {} function returned {}",
            self.function, self.returned
        )
    }
}

impl std::error::Error for Said {}

pub(crate) fn said(function: &'static str, returned: c_int) -> Result<(), ExchangeError> {
    match returned {
        0 => Ok(()),
        returned => Err(ExchangeError::Other(Box::new(Said { function, returned }))),
    }
}

impl rdma_qp::exchange::Exchange for Program {
    fn swap_bytes(&mut self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        if mine.len() > MAX_MESSAGE {
            let (len, max) = (mine.len(), MAX_MESSAGE);
            return Err(ExchangeError::TooLong { len, max });
        }
        let mut theirs = vec![0u8; MAX_MESSAGE];
        let mut len = 0;
        // SAFETY: the program's function, with pointers to that many bytes, valid during the call, as its type says.
        let returned = unsafe {
            (self.swap)(
                self.context,
                mine.as_ptr().cast(),
                mine.len(),
                theirs.as_mut_ptr().cast(),
                theirs.len(),
                &mut len,
            )
        };
        said("swap", returned)?;
        if len > theirs.len() {
            let max = theirs.len();
            return Err(ExchangeError::TooLong { len, max });
        }
        theirs.truncate(len);
        Ok(theirs)
    }

    fn barrier(&mut self) -> Result<(), ExchangeError> {
        // SAFETY: the program's function, with its own pointer.
        said("barrier", unsafe { (self.barrier)(self.context) })
    }
}

impl Exchange {
    /// The channel.
    pub(crate) fn any(&mut self) -> &mut dyn rdma_qp::exchange::Exchange {
        match self {
            Exchange::Tcp(channel) => channel,
            Exchange::Shm(channel) => channel,
            Exchange::Program(program) => program,
        }
    }

    /// Tells the peer of this end, and what it offers; gives what the peer told.
    pub(crate) fn swap(
        &mut self,
        here: &Endpoint,
        offered: &[RemoteRegion],
    ) -> Result<Peer, Fault> {
        let mine = Peer {
            endpoint: here.clone(),
            regions: offered.to_vec(),
        }
        .encode()?;
        Ok(Peer::decode(&self.any().swap_bytes(&mine)?)?)
    }

    /// Waits for the peer.
    pub(crate) fn barrier(&mut self) -> Result<(), Fault> {
        Ok(self.any().barrier()?)
    }
}

/// The pause before it is looked again whether a peer listens.
const PAUSE: Duration = Duration::from_millis(20);

/// Connects to a peer that listens, or will within the limit.
fn connect(address: &str, limit: Duration) -> Result<tcp::Channel, ExchangeError> {
    let begin = Instant::now();
    loop {
        match tcp::connect(address, limit.saturating_sub(begin.elapsed())) {
            Ok(mut channel) => {
                channel.set_limit(limit);
                return Ok(channel);
            }
            Err(ExchangeError::Address { source, .. })
                if source.kind() == ErrorKind::ConnectionRefused
                    && begin.elapsed() + PAUSE < limit => {}
            Err(error) => return Err(error),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Regions that C gave.
fn offered(regions: &[qp_region]) -> Vec<RemoteRegion> {
    regions.iter().map(qp_region::region).collect()
}

/// Puts regions into the caller's array; `count` gets their number.
pub(crate) fn put_regions(
    found: &[RemoteRegion],
    regions: &mut Places<'_, qp_region>,
    count: Option<Out<'_, usize>>,
) -> Result<(), Fault> {
    for (place, region) in found.iter().enumerate() {
        regions.set(place, (*region).into());
    }
    if let Some(mut count) = count {
        count.set(found.len());
    }
    if found.len() > regions.len() {
        let text = format!(
            "the peer offers {} regions; there is room for {}",
            found.len(),
            regions.len()
        );
        return Err(Fault::new(QP_CODE_SHORT_BUFFER, libc::ENOSPC, text));
    }
    Ok(())
}

export! {
    /// Listens for peers on a TCP address.
    ///
    /// @param address   "host:port"; port 0 takes a free one.
    /// @param listener  Where the handle goes; destroy it with qp_listener_destroy().
    fn qp_listen(
        address: *const c_char as Text<'_>,
        listener: *mut *mut qp_listener as Out<'_, *mut qp_listener>,
    ) {
        listener.set(insert(tcp::listen(address.0)?)?);
        Ok(())
    }

    /// Tells the address that a listener has, such as "127.0.0.1:38765". Arguments and result as qp_query_text().
    fn qp_listener_address(
        listener: *mut qp_listener as Held<tcp::Listener>,
        text: *mut c_char as Room<'_, c_char>,
        size: usize,
        needed: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `size` is the length of `text`, says the header.
        let mut places = unsafe { text.of(size) }?;
        let address = listener.local_addr().map_err(|error| {
            Fault::new(QP_CODE_SYSTEM, error.raw_os_error().unwrap_or(libc::EIO), error.to_string())
        })?;
        put_text(&address.to_string(), &mut places, needed)
    }

    /// Takes the next peer of a listener.
    ///
    /// @param timeout_ms  Bounds this call and every later step of the channel, in milliseconds; below 0: no bound.
    /// @param exchange    Where the handle goes; destroy it with qp_exchange_destroy().
    /// @return 0, ETIMEDOUT, or what the system said.
    fn qp_accept(
        listener: *mut qp_listener as Held<tcp::Listener>,
        timeout_ms: i64,
        exchange: *mut *mut qp_exchange as Out<'_, *mut qp_exchange>,
    ) {
        exchange.set(insert(Exchange::Tcp(listener.accept(limit(timeout_ms))?))?);
        Ok(())
    }

    /// Ends a listener. What it accepted goes on.
    fn qp_listener_destroy(listener: *mut qp_listener as Later<tcp::Listener>) {
        listener.destroy(|_| Ok(()))
    }

    /// Connects to a peer that listens, repeating until it does.
    ///
    /// @param address     "host:port".
    /// @param timeout_ms  Bounds this call and every later step of the channel, in milliseconds; below 0: no bound.
    /// @param exchange    Where the handle goes; destroy it with qp_exchange_destroy().
    /// @return 0; ECONNREFUSED: nobody listened there in that time; or what the system said.
    fn qp_exchange_tcp(
        address: *const c_char as Text<'_>,
        timeout_ms: i64,
        exchange: *mut *mut qp_exchange as Out<'_, *mut qp_exchange>,
    ) {
        exchange.set(insert(Exchange::Tcp(connect(address.0, limit(timeout_ms))?))?);
        Ok(())
    }

    /// Meets one other process of this host through shared memory: both give the same name, and nobody else does.
    ///
    /// @param name        A name, or a path.
    /// @param timeout_ms  As for qp_exchange_tcp().
    fn qp_exchange_shm(
        name: *const c_char as Text<'_>,
        timeout_ms: i64,
        exchange: *mut *mut qp_exchange as Out<'_, *mut qp_exchange>,
    ) {
        exchange.set(insert(Exchange::Shm(shm::meet(name.0, limit(timeout_ms))?))?);
        Ok(())
    }

    /// Makes a channel of two functions of the program's: for MPI, PMIx, sockets, files.
    ///
    /// The functions are called within calls that get the channel, by the thread of the call. They must return (no longjmp,
    /// no C++ exception). They may call the library, but not with the objects of that call.
    ///
    /// @param swap      Swaps bytes with the peer.
    /// @param barrier   Waits for the peer.
    /// @param context   Handed to both, never looked at; it must stay usable until the channel is destroyed.
    /// @param exchange  Where the handle goes; destroy it with qp_exchange_destroy().
    fn qp_exchange_from(
        swap: qp_swap_fn,
        barrier: qp_barrier_fn,
        context: *mut c_void,
        exchange: *mut *mut qp_exchange as Out<'_, *mut qp_exchange>,
    ) {
        let (Some(swap), Some(barrier)) = (swap, barrier) else {
            let name = if swap.is_none() { "swap" } else { "barrier" };
            return Err(Fault::new(QP_CODE_NULL, libc::EINVAL, format!("{name} is NULL")));
        };
        exchange.set(insert(Exchange::Program(Program { swap, barrier, context }))?);
        Ok(())
    }

    /// Tells the peer of this end, and gets what the peer tells. The peer calls it at the same step.
    ///
    /// @param here     This end, of qp_endpoint_of() or qp_pair_endpoint().
    /// @param offered  Regions that the peer may reach; NULL if count is 0.
    /// @param count    Their number, at most 1024.
    /// @param there    Where the peer's end goes.
    /// @param regions  Where the peer's regions go, in its order; NULL if room is 0.
    /// @param room     Room there.
    /// @param found    Where the number of regions that the peer offers goes; may be NULL.
    /// @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): the peer offers more regions than there is room for, all else is done;
    ///         or why the exchange failed.
    fn qp_exchange_swap(
        exchange: *mut qp_exchange as Alone<Exchange>,
        here: *const qp_endpoint as In<'_, qp_endpoint>,
        offered: *const qp_region as Array<'_, qp_region>,
        count: usize,
        there: *mut qp_endpoint as Out<'_, qp_endpoint>,
        regions: *mut qp_region as Room<'_, qp_region>,
        room: usize,
        found: *mut usize as Option<Out<'_, usize>>,
    ) {
        // SAFETY: `count` is the length of `offered`, and `room` that of `regions`, says the header.
        let (given, mut places) = unsafe { (offered.of(count)?, regions.of(room)?) };
        let peer = exchange.swap(&here.0.endpoint()?, &self::offered(given))?;
        there.set(qp_endpoint::of_peer(&peer.endpoint)?);
        put_regions(&peer.regions, &mut places, found)
    }

    /// Swaps bytes of the program's with the peer, which calls it at the same step.
    ///
    /// @param mine       Bytes to send; NULL if len is 0.
    /// @param len        Their number, at most 65536.
    /// @param theirs     Where the peer's bytes go; NULL if room is 0.
    /// @param room       Room there.
    /// @param their_len  Where their number goes.
    /// @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): there were more, and what did not fit is gone; or why it failed.
    fn qp_exchange_swap_bytes(
        exchange: *mut qp_exchange as Alone<Exchange>,
        mine: *const u8 as Array<'_, u8>,
        len: usize,
        theirs: *mut u8 as Room<'_, u8>,
        room: usize,
        their_len: *mut usize as Out<'_, usize>,
    ) {
        // SAFETY: `len` is the length of `mine`, and `room` that of `theirs`, says the header.
        let (mine, mut places) = unsafe { (mine.of(len)?, theirs.of(room)?) };
        let bytes = exchange.any().swap_bytes(mine)?;
        their_len.set(bytes.len());
        places.fill(&bytes);
        if bytes.len() > places.len() {
            let text = format!("the peer sent {} bytes; there is room for {}", bytes.len(), places.len());
            return Err(Fault::new(QP_CODE_SHORT_BUFFER, libc::ENOSPC, text));
        }
        Ok(())
    }

    /// Waits until the peer has called this too.
    fn qp_exchange_barrier(exchange: *mut qp_exchange as Alone<Exchange>) {
        exchange.barrier()
    }

    /// Ends a channel. The peer's next step fails with ECONNRESET.
    fn qp_exchange_destroy(exchange: *mut qp_exchange as Later<Exchange>) {
        exchange.destroy(|_| Ok(()))
    }
}
