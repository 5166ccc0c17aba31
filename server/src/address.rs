//! Address on which the server listens.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Address on which the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path".to_owned());
            }
            return Ok(Self::Unix(path.into()));
        }
        let text = text.replace("localhost:", "127.0.0.1:");
        text.parse().map(Self::Tcp).map_err(|_| {
            "expected ADDRESS:PORT, such as 127.0.0.1:4040 or [::1]:4040, or unix:PATH".to_owned()
        })
    }
}
