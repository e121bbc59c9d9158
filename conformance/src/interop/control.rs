//! The channel over which two ends keep step: lines over TCP.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The channel over which two ends keep step.
#[derive(Debug)]
pub struct Control {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

/// How long an end waits for the other one. Longer than any case takes.
const PATIENCE: Duration = Duration::from_secs(60);

impl Control {
    fn new(stream: TcpStream) -> std::io::Result<Control> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Control {
            reader,
            writer: stream,
        })
    }

    /// Takes one connection at `address`; says `listening on ADDRESS` when it is ready.
    ///
    /// # Errors
    /// A text that names the address.
    pub fn listen(address: SocketAddr) -> Result<Control, String> {
        let text = |e: std::io::Error| format!("{address}: {e}");
        let listener = TcpListener::bind(address).map_err(text)?;
        println!("listening on {}", listener.local_addr().map_err(text)?);
        listener.set_nonblocking(true).map_err(text)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(text)?;
                    return Control::new(stream).map_err(text);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(e) => return Err(text(e)),
            }
        }
    }

    /// Connects to `address`, which may take a moment to be there.
    ///
    /// # Errors
    /// A text that names the address.
    pub fn connect(address: SocketAddr) -> Result<Control, String> {
        let text = |e: std::io::Error| format!("{address}: {e}");
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                Ok(stream) => return Control::new(stream).map_err(text),
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
                Err(e) => return Err(text(e)),
            }
        }
    }

    /// Sends a line.
    ///
    /// # Errors
    /// A text.
    pub fn send(&mut self, line: &str) -> Result<(), String> {
        self.writer
            .write_all(format!("{line}\n").as_bytes())
            .map_err(|e| format!("the other end: {e}"))
    }

    /// Takes a line.
    ///
    /// # Errors
    /// A text.
    pub fn recv(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Err("the other end went away".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(e) => Err(format!("the other end: {e}")),
        }
    }

    /// Sends a line and takes one: neither end goes on before the other has come so far.
    ///
    /// # Errors
    /// A text.
    pub fn swap(&mut self, line: &str) -> Result<String, String> {
        self.send(line)?;
        self.recv()
    }
}
