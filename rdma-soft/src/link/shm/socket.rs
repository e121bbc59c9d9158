//! How two nodes of one host meet: a socket of a name that derives from the address.
//!
//! The name is one of Linux's abstract ones (unix(7)), which belong to the network namespace as addresses do. Who
//! wants to send connects to the receiver's name and says [`Hello`], with the file of the ring attached; the
//! receiver answers, or closes the connection. From then on a byte that either sends is the bell, and the end of
//! the connection is the end of whoever is at the other side.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use super::ring;

pub(super) const MAGIC: [u8; 8] = *b"rdmasoft";
/// Of this protocol: who speaks another one is spoken to by UDP.
const VERSION: u32 = 2;
/// What a sender makes use of and its receiver must know: nothing yet.
const FEATURES: u32 = 0;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// What a sender says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Its address.
    pub(super) src: IpAddr,
    /// The receiver's address.
    pub(super) dst: IpAddr,
}

impl Hello {
    const LEN: usize = 56;

    pub(super) fn emit(&self) -> [u8; Hello::LEN] {
        let mut bytes = [0; Hello::LEN];
        bytes[..16].copy_from_slice(&about());
        bytes[16..20].copy_from_slice(&(ring::LEN as u32).to_le_bytes());
        bytes[24..40].copy_from_slice(&octets(self.src));
        bytes[40..].copy_from_slice(&octets(self.dst));
        bytes
    }

    /// `None` for what this version does not understand.
    pub(super) fn parse(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; Hello::LEN] = bytes.try_into().ok()?;
        let len = u32::from_le_bytes(*bytes[16..].first_chunk()?);
        let address = |at: usize| {
            let octets: [u8; 16] = *bytes[at..].first_chunk()?;
            Some(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical())
        };
        let understood = bytes[..16] == about() && len as usize == ring::LEN;
        let (src, dst) = (address(24)?, address(40)?);
        understood.then_some(Hello { src, dst })
    }
}

/// What both say of themselves.
fn about() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..].copy_from_slice(&FEATURES.to_le_bytes());
    bytes
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

fn name(address: IpAddr) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("rdma-soft/{}", address.to_canonical()).as_bytes())
}

fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Is met at `address` from now on.
pub(super) fn listen(address: IpAddr) -> Result<OwnedFd, Errno> {
    let socket = open()?;
    rustix::net::bind(&socket, &name(address)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Meets whoever is at `address`, at once or not at all.
///
/// # Errors
/// `ECONNREFUSED` if nobody is, `EPERM` if it is another user, or what the system refused.
pub(super) fn connect(address: IpAddr) -> Result<OwnedFd, Errno> {
    let socket = open()?;
    rustix::net::connect(&socket, &name(address)?)?;
    of_own_user(&socket)?;
    Ok(socket)
}

/// The next one who wants to send.
///
/// # Errors
/// `EAGAIN` if there is none, `EPERM` if it is another user, or what the system refused.
pub(super) fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(listener, flags)?;
    of_own_user(&socket)?;
    Ok(socket)
}

fn of_own_user(socket: &OwnedFd) -> Result<(), Errno> {
    match sockopt::socket_peercred(socket)?.uid == rustix::process::geteuid() {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Says something, such as [`Hello`], with the file of the ring.
pub(super) fn say(socket: &OwnedFd, bytes: &[u8], file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Answers: the ring is in use.
pub(super) fn say_yes(socket: &OwnedFd) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, &about(), flags)?;
    Ok(())
}

/// True if that is the answer of a receiver of this version.
pub(super) fn is_yes(bytes: &[u8]) -> bool {
    bytes == about()
}

/// Wakes the other one up. If there is no room for one more bell, it has not heard the others yet; and if it is
/// gone, nobody needs to hear.
pub(super) fn ring_the_bell(socket: &OwnedFd) {
    let _ = rustix::net::send(socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// Nothing more at the moment.
    Nothing,
    /// A message of so many bytes, and the file that came with it.
    Message(usize, Option<OwnedFd>),
    /// The other one is gone.
    End,
}

/// Hears the next message; longer ones than `buffer` are cut.
pub(super) fn hear(socket: &OwnedFd, buffer: &mut [u8]) -> Heard {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let heard = rustix::net::recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        flags,
    );
    match heard {
        Ok(message) if message.bytes > 0 => {
            // Files beyond the first are closed here.
            let mut files = control.drain().filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            });
            let file = files.next().and_then(|mut files| files.next());
            Heard::Message(message.bytes, file)
        }
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        Ok(_) | Err(_) => Heard::End,
    }
}
