//! A provider on loopback for tests: records requests and answers with bytes written by hand.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::{HttpClient, HttpOptions};
use crate::llm::{Provider, ProviderError, ProviderRequest, StreamEvent};
use protocol_schema::StopReason;

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// What is done on one connection after its request has been read.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Writes the bytes and closes.
    Bytes(Vec<u8>),
    /// Writes the bytes one by one.
    Slow(Vec<u8>),
    /// Writes the bytes and keeps the connection open until the peer closes it.
    Hold(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct Server {
    address: String,
    requests: Arc<Mutex<Vec<Received>>>,
    closed_by_peer: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Serves one connection for each answer, in order.
    pub(crate) async fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let closed_by_peer = Arc::new(Notify::new());
        let task = tokio::spawn({
            let (requests, closed) = (requests.clone(), closed_by_peer.clone());
            async move {
                for answer in answers {
                    let (stream, _) = listener.accept().await.unwrap();
                    // A peer that goes away early is part of some tests.
                    let _ = serve(stream, answer, &requests, &closed).await;
                }
            }
        });
        Self { address, requests, closed_by_peer, task }
    }

    pub(crate) fn url(&self) -> &str {
        &self.address
    }

    pub(crate) fn requests(&self) -> Vec<Received> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until a client has closed a held connection.
    pub(crate) async fn closed_by_peer(&self) {
        self.closed_by_peer.notified().await;
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: Answer,
    requests: &Mutex<Vec<Received>>,
    closed: &Notify,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let request = read_request(&mut stream).await?;
    requests.lock().unwrap().push(request);
    match answer {
        Answer::Bytes(bytes) => stream.write_all(&bytes).await,
        Answer::Slow(bytes) => {
            for byte in bytes {
                stream.write_all(&[byte]).await?;
                tokio::task::yield_now().await;
            }
            Ok(())
        }
        Answer::Hold(bytes) => {
            stream.write_all(&bytes).await?;
            let mut rest = [0; 64];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
            closed.notify_one();
            Ok(())
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> io::Result<Received> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Received { path, headers, body: serde_json::from_slice(&body).unwrap() })
}

/// A complete answer with these extra header lines (each ending in CR LF).
pub(crate) fn response(status: u16, headers: &str, body: &str) -> Answer {
    Answer::Bytes(format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

/// The bytes of a chunked event stream, one chunk for each piece, without the last chunk.
pub(crate) fn open_stream(pieces: &[String]) -> Vec<u8> {
    let mut bytes =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in pieces {
        bytes.extend(format!("{:x}\r\n{piece}\r\n", piece.len()).into_bytes());
    }
    bytes
}

/// The bytes of a complete chunked event stream.
pub(crate) fn whole_stream(pieces: &[String]) -> Vec<u8> {
    let mut bytes = open_stream(pieces);
    bytes.extend(b"0\r\n\r\n");
    bytes
}

/// A client for loopback with short limits for what a test waits out.
pub(crate) fn client() -> HttpClient {
    HttpClient::new(HttpOptions {
        proxies: false,
        trailer_timeout: Duration::from_millis(200),
        ..HttpOptions::default()
    })
}

/// Sends one request and collects what comes.
pub(crate) async fn run(
    provider: &dyn Provider,
    request: ProviderRequest,
) -> (Vec<StreamEvent>, Result<StopReason, ProviderError>) {
    let (sender, mut receiver) = mpsc::channel(1);
    let stream = provider.stream(request, sender);
    let collect = async {
        let mut events = Vec::new();
        while let Some(event) = receiver.recv().await {
            events.push(event);
        }
        events
    };
    let (result, events) = tokio::join!(stream, collect);
    (events, result)
}
