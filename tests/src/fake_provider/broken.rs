//! Addresses where no provider can be reached.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

/// A port where connections are refused as long as this value lives.
#[derive(Debug)]
pub struct RefusedPort {
    address: SocketAddr,
    /// Bound but not listening, so nobody else can have the port.
    _socket: TcpSocket,
}

impl RefusedPort {
    /// Takes a free port.
    ///
    /// # Panics
    ///
    /// No port can be had.
    #[must_use]
    pub fn take() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket can be made");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a loopback port is free");
        let address = socket.local_addr().expect("a bound socket has an address");
        Self { address, _socket: socket }
    }

    /// `http://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A server that answers whatever it is sent with nonsense, also to a TLS client hello.
#[derive(Debug)]
pub struct GarbageServer {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl GarbageServer {
    /// Starts listening on a free port.
    ///
    /// # Panics
    ///
    /// No port can be had.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let accepting = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut hello = [0; 4096];
                if stream.read(&mut hello).await.is_ok() {
                    let _ = stream.write_all(b"\x00\xffthis is not the protocol you wanted\r\n\r\n").await;
                }
            }
        });
        Self { address, accepting }
    }

    /// `https://127.0.0.1:<port>`.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("https://{}", self.address)
    }
}

impl Drop for GarbageServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
