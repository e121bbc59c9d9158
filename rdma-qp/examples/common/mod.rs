//! What the examples have in common: their options, the device, and who plays which part.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use rdma_core_sys::Verbs;
use rdma_qp::Device;
use rdma_qp::exchange::tcp;

/// If nothing else is said, any error, also of another thread.
pub type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Longer than anything here takes. Nothing waits without a limit, so a peer that is gone is an error and not a hang.
pub const LIMIT: Duration = Duration::from_secs(20);

/// What every example understands:
///
/// * `--device NAME`: that device of the system's libibverbs, rather than the software device;
/// * `--listen ADDRESS` or `--connect ADDRESS`: only that end of it, so that the other may be another process or host.
///   Without them, both ends run in this process.
pub struct Options(Vec<(String, String)>);

impl Options {
    /// Takes pairs of `--name value`; those of the example itself are named by `own`.
    pub fn parse(arguments: impl IntoIterator<Item = String>, own: &[&str]) -> Result<Options> {
        let mut pairs = Vec::new();
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let known = ["--device", "--listen", "--connect"];
            if !known.iter().chain(own).any(|known| *known == name) {
                return Err(format!("{name} is none of {known:?} and {own:?}").into());
            }
            let value = arguments.next();
            let value = value.ok_or_else(|| format!("{name} needs a value"))?;
            pairs.push((name, value));
        }
        Ok(Options(pairs))
    }

    /// The value of an option, if it was given.
    pub fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(given, _)| given == name)?;
        Some(&pair.1)
    }

    /// The device that was asked for. An adapter is driven through libibverbs, which is opened here, at run time; the
    /// software device has the same table of functions.
    pub fn device(&self) -> Result<Device> {
        Ok(match self.get("--device") {
            Some(name) => Device::open(&Verbs::open()?, name)?,
            None => Device::open_index(rdma_soft::verbs(), 0)?,
        })
    }

    /// Plays the part that was asked for, or both, each in a thread. The two ends meet over TCP.
    pub fn play(
        &self,
        listening: impl FnOnce(&Device, &tcp::Listener) -> Result + Send,
        connecting: impl FnOnce(&Device, SocketAddr) -> Result,
    ) -> Result {
        let device = self.device()?;
        if let Some(address) = self.get("--connect") {
            return connecting(&device, address.parse()?);
        }
        let address = self.get("--listen").unwrap_or("127.0.0.1:0");
        let listener = tcp::listen(address)?;
        if self.get("--listen").is_some() {
            println!("listening on {}", listener.local_addr()?);
            return listening(&device, &listener);
        }
        let address = listener.local_addr()?;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| listening(&device, &listener));
            let result = connecting(&device, address);
            // Both have something to say if it goes wrong; the first to fail says more.
            other
                .join()
                .map_err(|_| "the listening end panicked")?
                .and(result)
        })
    }
}
