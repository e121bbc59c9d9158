//! Captures for Wireshark and its like.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::IpFields;
use crate::core::time::Instant;
use crate::verbs::sys;
use crate::wire::icrc::{Flow, explained_ip_id};

/// A capture file: pcapng with one interface, times in nanoseconds, and each frame with its
/// direction and with the IP and UDP headers that it travels with (link type "raw IP").
///
/// ```
/// use rdma_soft::core::time::Instant;
/// use rdma_soft::link::{Direction, IpFields, Pcap};
///
/// let mut file = Vec::new();
/// let mut pcap = Pcap::new(&mut file, "127.0.0.2")?;
/// let src = "127.0.0.2:4791".parse().unwrap();
/// let dst = "127.0.0.3:4791".parse().unwrap();
/// pcap.record(Instant::ZERO, Direction::Outbound, src, dst, IpFields::default(), &[0; 20])?;
/// pcap.flush()?;
/// assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Pcap<W: Write> {
    out: W,
}

/// Which way a recorded frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It was received.
    Inbound,
    /// It was sent.
    Outbound,
}

/// Why a capture file cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the capture file {}: {source}", path.display())]
pub struct PcapError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// What a capture is written to: a file, or a pipe or a terminal, where somebody watches.
#[derive(Debug)]
pub struct CaptureFile {
    file: File,
    /// How long to wait for who watches; `None` for a file.
    patience: Option<Timespec>,
}

const fn millis(millis: i64) -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: millis * 1_000_000,
    }
}

impl CaptureFile {
    /// Who watches and takes nothing for so long has stopped: whoever writes holds up all others, and peers do not wait for ever.
    const PATIENCE: Timespec = millis(200);

    fn create(path: &Path) -> io::Result<CaptureFile> {
        let file = File::create(path)?;
        let is_watched = !file.metadata()?.is_file();
        if is_watched {
            fcntl_setfl(&file, OFlags::NONBLOCK)?;
        }
        let patience = is_watched.then_some(CaptureFile::PATIENCE);
        Ok(CaptureFile { file, patience })
    }
}

impl Write for CaptureFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = || rustix::io::write(&self.file, bytes);
        let Some(patience) = self.patience else {
            return Ok(write()?);
        };
        let in_time = || match write() {
            Err(Errno::AGAIN) => {
                // If there is no room even then, the second attempt says so.
                let _ = poll(
                    &mut [PollFd::new(&self.file, PollFlags::OUT)],
                    Some(&patience),
                );
                write()
            }
            done => done,
        };
        // Signals would end the waiting early; and that of a pipe that nobody reads, the process.
        let written = sys::with_signals_blocked(|| sys::without_sigpipe(in_time));
        if written == Err(Errno::AGAIN) {
            // Nor is it waited for what is still buffered.
            self.patience = Some(millis(0));
        }
        Ok(written?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Pcap<BufWriter<CaptureFile>> {
    /// Begins a capture in a new file at `path`; one that is there is overwritten. `interface` is
    /// the name that readers show as the interface's.
    ///
    /// A named pipe waits here for its reader. One that ends, or takes nothing for 200 ms, is an error for whoever writes
    /// next, and no more than that; so it is with a terminal.
    ///
    /// # Errors
    /// [`PcapError`], naming the file.
    pub fn create(path: &Path, interface: &str) -> Result<Self, PcapError> {
        CaptureFile::create(path)
            .and_then(|file| Pcap::new(BufWriter::new(file), interface))
            .map_err(|source| PcapError {
                path: path.to_owned(),
                source,
            })
    }
}

/// The blocks that are written here, each by its type, and options in them (the IETF's draft
/// "PCAP Now Generic (pcapng) Capture File Format", sections 4.1 to 4.3).
mod block {
    pub(super) const SECTION: u32 = 0x0a0d_0d0a;
    pub(super) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
    pub(super) const USER_APPLICATION: u16 = 4;
    pub(super) const INTERFACE: u32 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const TIME_RESOLUTION: u16 = 9;
    pub(super) const PACKET: u32 = 6;
    pub(super) const FLAGS: u16 = 2;
}

impl<W: Write> Pcap<W> {
    /// Begins a capture that goes to `out`, with the name that readers show as the interface's.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, interface: &str) -> io::Result<Pcap<W>> {
        const LINKTYPE_RAW: u16 = 101;
        const NANOSECONDS: u8 = 9;
        let mut pcap = Pcap { out };
        let mut body = block::BYTE_ORDER.to_le_bytes().to_vec();
        body.extend(1u16.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        body.extend(u64::MAX.to_le_bytes());
        let writer = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
        option(&mut body, block::USER_APPLICATION, writer.as_bytes());
        pcap.block(block::SECTION, body)?;

        let mut body = LINKTYPE_RAW.to_le_bytes().to_vec();
        body.extend(0u16.to_le_bytes());
        body.extend(u32::from(u16::MAX).to_le_bytes());
        option(&mut body, block::NAME, interface.as_bytes());
        option(&mut body, block::TIME_RESOLUTION, &[NANOSECONDS]);
        pcap.block(block::INTERFACE, body)?;
        Ok(pcap)
    }

    /// Writes a block with options at its end, which this ends.
    fn block(&mut self, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
        body.extend([0; 4]);
        let len = (body.len() as u32 + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&body)?;
        self.out.write_all(&len)
    }

    /// Records a datagram from `src` to `dst` at the time `now`.
    ///
    /// # Errors
    /// Those of the output.
    pub fn record(
        &mut self,
        now: Instant,
        direction: Direction,
        src: SocketAddr,
        dst: SocketAddr,
        ip: IpFields,
        datagram: &[u8],
    ) -> io::Result<()> {
        /// Kind, length, interface, time, two lengths.
        const HEAD: usize = 28;
        /// The flags, the end of the options, the length again.
        const TAIL: usize = 8 + 4 + 4;
        let mut headers = [0; 48];
        let headers = self::headers(&mut headers, src, dst, ip, datagram);
        let len = headers.len() + datagram.len();
        let padded = len.next_multiple_of(4);
        let block_len = ((HEAD + padded + TAIL) as u32).to_le_bytes();
        let len = (len as u32).to_le_bytes();
        let nanos = now.as_nanos();

        let mut head = [[0; 4]; HEAD / 4];
        head[0] = block::PACKET.to_le_bytes();
        head[1] = block_len;
        head[3] = ((nanos >> 32) as u32).to_le_bytes();
        head[4] = (nanos as u32).to_le_bytes();
        (head[5], head[6]) = (len, len);
        self.out.write_all(head.as_flattened())?;
        self.out.write_all(headers)?;
        self.out.write_all(datagram)?;

        // Bits 0 and 1 say the direction, bits 2 to 4 how it was addressed.
        let direction: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        let addressed = if dst.ip().is_multicast() { 2 } else { 1 };
        let mut tail = [[0; 4]; TAIL / 4];
        tail[0] = [block::FLAGS as u8, 0, 4, 0];
        tail[1] = (direction | addressed << 2).to_le_bytes();
        tail[3] = block_len;
        self.out
            .write_all(&[0; 3][..padded - (headers.len() + datagram.len())])?;
        self.out.write_all(tail.as_flattened())
    }

    /// Hands everything recorded to the output's far side.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Adds an option of a block. Values beyond 16 bits of length are cut.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    body.extend(code.to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(&value[..usize::from(len)]);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The IPv4 identification that a datagram was made with, which sockets do not show but the ICRC covers; 0
/// if that is wrong anyway.
fn identification(flow: Flow, datagram: &[u8]) -> u16 {
    let explained = (datagram.split_last_chunk())
        .and_then(|(packet, icrc)| explained_ip_id(&flow, packet, u32::from_le_bytes(*icrc)));
    explained.unwrap_or(0)
}

/// IP and UDP headers of a datagram as an unconnected socket that does not fragment sends it.
fn headers<'a>(
    head: &'a mut [u8; 48],
    src: SocketAddr,
    dst: SocketAddr,
    ip: IpFields,
    datagram: &[u8],
) -> &'a [u8] {
    const UDP: u8 = 17;
    let udp_len = (8 + datagram.len()) as u16;
    let flow = Flow::new(src, dst);
    let ip_len = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            head[0] = 0x45;
            head[1] = ip.traffic_class;
            head[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            head[4..6].copy_from_slice(&identification(flow, datagram).to_be_bytes());
            head[6] = 0x40;
            head[8] = ip.hop_limit;
            head[9] = UDP;
            head[12..16].copy_from_slice(&src.octets());
            head[16..20].copy_from_slice(&dst.octets());
            let sum = !ones_complement(0, &head[..20]);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            20
        }
        (src, dst) => {
            let label = ip.flow_label & 0xf_ffff;
            let first = 6 << 28 | u32::from(ip.traffic_class) << 20 | label;
            head[0..4].copy_from_slice(&first.to_be_bytes());
            head[4..6].copy_from_slice(&udp_len.to_be_bytes());
            head[6] = UDP;
            head[7] = ip.hop_limit;
            head[8..24].copy_from_slice(&v6(src));
            head[24..40].copy_from_slice(&v6(dst));
            40
        }
    };
    let udp = &mut head[ip_len..ip_len + 8];
    udp[0..2].copy_from_slice(&src.port().to_be_bytes());
    udp[2..4].copy_from_slice(&dst.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    // The pseudo header: both addresses, the protocol, the UDP length.
    let addresses = if ip_len == 20 { 12..20 } else { 8..40 };
    let mut sum = ones_complement(0, &head[addresses]);
    sum = ones_complement(sum, &[0, UDP]);
    sum = ones_complement(sum, &udp_len.to_be_bytes());
    sum = ones_complement(sum, &head[ip_len..ip_len + 8]);
    // 0 would say "no checksum".
    let sum = match !ones_complement(sum, datagram) {
        0 => 0xffff,
        sum => sum,
    };
    head[ip_len + 6..ip_len + 8].copy_from_slice(&sum.to_be_bytes());
    &head[..ip_len + 8]
}

fn v6(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// The Internet checksum's sum of `bytes`, continued from `sum`.
fn ones_complement(sum: u16, bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        let word = u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}
