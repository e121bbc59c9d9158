//! Plain UDP between two processes: what the software device's link is compared with.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Instant;

use rdma_qp::exchange::tcp;

use crate::ends::{Patience, Result};

/// Bytes under way that nobody has said to have: all of it fits into the receiver's buffer.
const WINDOW: usize = 1 << 20;

/// Most datagrams of one call (linux/udp.h, UDP_MAX_SEGMENTS, was 64 when there was first one), and most bytes.
const RUN: (usize, usize) = (64, 65_000);

/// A connected socket that does not block.
pub struct Plain {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

/// Sets an option of a socket to a number; false if the system refuses.
fn set(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> bool {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is a live integer, of the length that is said.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            len,
        )
    };
    status == 0
}

impl Plain {
    /// A socket that is connected to one of the other process.
    pub fn connect(channel: &mut tcp::Channel) -> Result<Plain> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        for (force, name) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            let _ = set(&socket, libc::SOL_SOCKET, force, 8 << 20)
                || set(&socket, libc::SOL_SOCKET, name, 8 << 20);
        }
        if !set(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1) {
            return Err("the system knows no UDP_GRO".into());
        }
        channel.send(socket.local_addr()?.to_string().as_bytes())?;
        socket.connect(String::from_utf8(channel.recv()?)?)?;
        socket.set_nonblocking(true)?;
        Ok(Plain {
            socket,
            buffer: vec![7; 1 << 16],
        })
    }

    fn await_bytes(&mut self, patience: &mut Patience) -> Result<usize> {
        // So often in vain only where the other one has no processor: it may want this one.
        const VAIN: u32 = 1 << 9;
        for turn in 1_u32.. {
            match self.socket.recv(&mut self.buffer) {
                Ok(len) => return Ok(len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => patience.turn()?,
                Err(error) => return Err(error.into()),
            }
            if turn.is_multiple_of(VAIN) {
                std::thread::yield_now();
            }
        }
        Err("nothing came".into())
    }

    /// Sends datagrams and waits for each to come back; gives the seconds that it took.
    pub fn ping(&mut self, size: usize, count: u32) -> Result<f64> {
        let mut patience = Patience::new();
        let start = Instant::now();
        for _ in 0..count {
            self.socket.send(&self.buffer[..size])?;
            self.await_bytes(&mut patience)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Sends datagrams back.
    pub fn echo(&mut self, size: usize, count: u32) -> Result<()> {
        let mut patience = Patience::new();
        for _ in 0..count {
            self.await_bytes(&mut patience)?;
            self.socket.send(&self.buffer[..size])?;
        }
        Ok(())
    }

    /// Receives datagrams, as many as come with each call, and says now and then how many there were.
    pub fn take(&mut self, size: usize, count: u32) -> Result<()> {
        let mut patience = Patience::new();
        let (all, mut came, mut told) = (size * count as usize, 0, 0);
        while came < all {
            came += self.await_bytes(&mut patience)?;
            if came - told >= WINDOW / 8 || came >= all {
                self.socket.send(&came.to_ne_bytes())?;
                told = came;
            }
        }
        Ok(())
    }

    /// Sends datagrams, one or many with each call, and waits until all came; gives the seconds that it took.
    pub fn send(&mut self, size: usize, count: u32, many: bool) -> Result<f64> {
        let mut patience = Patience::new();
        let all = size * count as usize;
        let most = if many {
            RUN.0.min(RUN.1 / size) * size
        } else {
            size
        };
        let (mut sent, mut there) = (0, 0);
        let payload = vec![7; most];
        let start = Instant::now();
        while there < all {
            let len = most.min(all - sent);
            if len > 0 && sent + len - there <= WINDOW {
                if many {
                    self.send_run(&payload[..len], size)?;
                } else {
                    self.socket.send(&payload[..len])?;
                }
                sent += len;
            } else {
                while self.await_bytes(&mut patience)? != size_of::<usize>() {}
                let count = self.buffer.first_chunk().copied().unwrap_or_default();
                there = there.max(usize::from_ne_bytes(count));
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Hands datagrams of `size` bytes to the system with one call (udp(7), UDP_SEGMENT).
    fn send_run(&self, bytes: &[u8], size: usize) -> Result<()> {
        #[repr(C, align(8))]
        struct Control([MaybeUninit<u8>; 24]);
        let segment = u16::try_from(size)?;
        let mut control = Control([MaybeUninit::zeroed(); 24]);
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: all-zero bits are a header that names nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = (&raw mut control).cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute; there is room for a u16 in the 24 bytes: 16 of the header, and 8.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;
        // SAFETY: `message` names `control`, which is aligned and long enough for one header and a u16, so the first header
        // is inside it, and the data behind it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as usize;
            libc::CMSG_DATA(header)
                .cast::<u16>()
                .write_unaligned(segment);
        }
        // SAFETY: the message names `part` and `control`, which live; sendmsg(2) writes to neither.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &message, 0) };
        match usize::try_from(sent) {
            Ok(len) if len == bytes.len() => Ok(()),
            Ok(len) => Err(format!("{len} of {} bytes were sent", bytes.len()).into()),
            Err(_) => Err(std::io::Error::last_os_error().into()),
        }
    }
}
