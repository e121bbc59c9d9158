//! HOST:PORT, as options take it.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::failure::Failure;

/// The addresses of a HOST:PORT.
///
/// # Errors
/// It is none, or the host has no address.
pub fn resolve(text: &str) -> Result<Vec<SocketAddr>, Failure> {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    let host = text.rsplit_once(':').map_or("", |(host, _)| host);
    // An IPv6 address without brackets would be cut where it has its last colon.
    let is_whole = !host.is_empty() && (!host.contains(':') || host.starts_with('['));
    if !(matches!(port, Some(Ok(_))) && is_whole) {
        return Err(Failure::Usage(format!(
            "{text} is no HOST:PORT: write it as 192.0.2.7:7472, [2001:db8::7]:7472 or name:7472"
        )));
    }
    let found = text.to_socket_addrs().map(Iterator::collect);
    let found: Vec<SocketAddr> =
        found.map_err(|error| Failure::told(format!("cannot find the host of {text}: {error}")))?;
    match found.is_empty() {
        true => Err(Failure::told(format!("the host of {text} has no address"))),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_told_before_it_is_tried() {
        for text in [
            "host",
            "host:",
            ":1",
            "host:70000",
            "::1",
            "fe80::1:7472",
            "1.2.3.4",
        ] {
            let told = resolve(text).unwrap_err();
            assert!(
                matches!(&told, Failure::Usage(why) if why.starts_with(text) && why.contains("HOST:PORT")),
                "{told}"
            );
        }
        let of = |text| resolve(text).unwrap()[0].to_string();
        assert_eq!(of("127.0.0.1:7472"), "127.0.0.1:7472");
        assert_eq!(of("[::1]:0"), "[::1]:0");
    }
}
