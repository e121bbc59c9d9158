//! Captures for Wireshark and its like.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::core::time::Instant;

/// A capture file: classic pcap with times in nanoseconds, each frame with the IP and UDP headers
/// that it goes out with (link type "raw IP").
///
/// ```
/// use rdma_soft::core::time::Instant;
/// use rdma_soft::link::Pcap;
///
/// let mut file = Vec::new();
/// let mut pcap = Pcap::new(&mut file)?;
/// let src = "127.0.0.2:4791".parse().unwrap();
/// let dst = "127.0.0.3:4791".parse().unwrap();
/// pcap.record(Instant::ZERO, src, dst, &[0; 20])?;
/// pcap.flush()?;
/// drop(pcap);
/// assert_eq!(file.len(), 24 + 16 + 20 + 8 + 20);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Pcap<W: Write> {
    out: W,
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

impl Pcap<BufWriter<File>> {
    /// Begins a capture in a new file at `path`; one that is there is overwritten.
    ///
    /// # Errors
    /// [`PcapError`], naming the file.
    pub fn create(path: &Path) -> Result<Self, PcapError> {
        File::create(path)
            .and_then(|file| Pcap::new(BufWriter::new(file)))
            .map_err(|source| PcapError {
                path: path.to_owned(),
                source,
            })
    }
}

impl<W: Write> Pcap<W> {
    /// Begins a capture that goes to `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<Pcap<W>> {
        const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
        const LINKTYPE_RAW: u32 = 101;
        out.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        out.write_all(&2u16.to_le_bytes())?;
        out.write_all(&4u16.to_le_bytes())?;
        out.write_all(&[0; 8])?;
        out.write_all(&u32::from(u16::MAX).to_le_bytes())?;
        out.write_all(&LINKTYPE_RAW.to_le_bytes())?;
        Ok(Pcap { out })
    }

    /// Records a datagram from `src` to `dst` at the time `now`.
    ///
    /// # Errors
    /// Those of the output.
    pub fn record(
        &mut self,
        now: Instant,
        src: SocketAddr,
        dst: SocketAddr,
        datagram: &[u8],
    ) -> io::Result<()> {
        let mut head = [0; 48];
        let head = headers(&mut head, src, dst, datagram);
        let len = (head.len() + datagram.len()) as u32;
        let nanos = now.as_nanos();
        self.out
            .write_all(&((nanos / 1_000_000_000) as u32).to_le_bytes())?;
        self.out
            .write_all(&((nanos % 1_000_000_000) as u32).to_le_bytes())?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(head)?;
        self.out.write_all(datagram)
    }

    /// Hands everything recorded to the output's far side.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// IP and UDP headers of a datagram as an unconnected socket that does not fragment sends it.
fn headers<'a>(
    head: &'a mut [u8; 48],
    src: SocketAddr,
    dst: SocketAddr,
    datagram: &[u8],
) -> &'a [u8] {
    const UDP: u8 = 17;
    const HOPS: u8 = 64;
    let udp_len = (8 + datagram.len()) as u16;
    let ip_len = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            head[0] = 0x45;
            head[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            head[6] = 0x40;
            head[8] = HOPS;
            head[9] = UDP;
            head[12..16].copy_from_slice(&src.octets());
            head[16..20].copy_from_slice(&dst.octets());
            let sum = !ones_complement(0, &head[..20]);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            20
        }
        (src, dst) => {
            head[0] = 0x60;
            head[4..6].copy_from_slice(&udp_len.to_be_bytes());
            head[6] = UDP;
            head[7] = HOPS;
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
