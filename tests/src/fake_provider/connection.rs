//! One connection: requests in, scripted answers out.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::reply::{Kind, Reply, Step};
use super::{Api, Request, Shared, anthropic, openai};
use crate::sync::Gate;

/// What is written, in order.
pub(super) enum Frame {
    /// A piece of the body.
    Body(String),
    /// Bytes as they are.
    Raw(Vec<u8>),
    Gate(Gate),
    Hang,
    Drop,
    Reset,
}

/// How an answer ended.
enum End {
    KeepAlive,
    Close,
    Reset,
}

pub(super) async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    // Each write shall be a packet of its own.
    let _ = stream.set_nodelay(true);
    let mut served = Vec::new();
    let end = exchange(&mut stream, &shared, &mut served).await;
    match end {
        Ok(End::Reset) => {
            let _ = stream.set_zero_linger();
        }
        Ok(End::Close) => {}
        // The client has gone.
        Ok(End::KeepAlive) | Err(_) => shared.closed(&served),
    }
}

async fn exchange(stream: &mut TcpStream, shared: &Shared, served: &mut Vec<usize>) -> io::Result<End> {
    let (mut reader, mut writer) = stream.split();
    let mut buffer = Vec::new();
    while let Some((api, headers, body)) = read_request(&mut reader, &mut buffer).await? {
        let Some(api) = api else {
            write_http(&mut writer, 404, &[], "text/plain", b"not found").await?;
            continue;
        };
        let (request, reply) = shared.take(api, headers, body);
        served.push(request.number);
        let end = tokio::select! {
            end = answer(&mut writer, &request, reply) => end?,
            // Clients do not send ahead, so anything to read now is the end of the connection.
            read = reader.read_buf(&mut buffer) => match read? {
                0 => return Ok(End::KeepAlive),
                _ => return Err(io::Error::other("a request before the answer to the last one")),
            },
        };
        if !matches!(end, End::KeepAlive) {
            return Ok(end);
        }
    }
    Ok(End::KeepAlive)
}

type Parsed = (Option<Api>, BTreeMap<String, String>, Value);

/// The next request; `None` when the client has closed the connection.
async fn read_request(reader: &mut ReadHalf<'_>, buffer: &mut Vec<u8>) -> io::Result<Option<Parsed>> {
    let (head, api, headers) = loop {
        let mut slots = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut slots);
        if let httparse::Status::Complete(head) = parsed.parse(buffer).map_err(io::Error::other)? {
            let path = parsed.path.unwrap_or_default();
            let api = match (parsed.method, path.split('?').next().unwrap_or_default()) {
                (Some("POST"), "/v1/messages") => Some(Api::Anthropic),
                (Some("POST"), "/v1/chat/completions") => Some(Api::OpenAi),
                _ => None,
            };
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            let headers: BTreeMap<_, _> =
                parsed.headers.iter().map(|header| (header.name.to_ascii_lowercase(), text(header.value))).collect();
            break (head, api, headers);
        }
        if reader.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    // All clients know the length of what they send.
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0_usize);
    while buffer.len() < head + length {
        if reader.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = serde_json::from_slice(&buffer[head..head + length]).unwrap_or(Value::Null);
    buffer.drain(..head + length);
    Ok(Some((api, headers, body)))
}

async fn answer(writer: &mut WriteHalf<'_>, request: &Request, reply: Reply) -> io::Result<End> {
    if let Some(gate) = &reply.before {
        gate.pass().await;
    }
    let stream = match &reply.kind {
        Kind::Http { status, headers, body } => {
            let (content_type, bytes) = body.render(request.api);
            write_http(writer, *status, headers, content_type, &bytes).await?;
            return Ok(End::KeepAlive);
        }
        Kind::Stream(stream) => stream,
    };
    let frames = match request.api {
        Api::Anthropic => anthropic::render(stream, request),
        Api::OpenAi => openai::render(stream, request),
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut out = Output { writer, slow: reply.slow, at_once: reply.at_once, held: Vec::new() };
    // The head goes out by itself: a hanging answer has begun.
    out.writer.write_all(head.as_bytes()).await?;
    for frame in frames {
        match frame {
            Frame::Body(text) => {
                let mut chunk = format!("{:x}\r\n", text.len()).into_bytes();
                chunk.extend_from_slice(text.as_bytes());
                chunk.extend_from_slice(b"\r\n");
                out.write(chunk).await?;
            }
            Frame::Raw(bytes) => out.write(bytes).await?,
            Frame::Gate(gate) => {
                out.flush().await?;
                gate.pass().await;
            }
            Frame::Hang => {
                out.flush().await?;
                std::future::pending::<()>().await;
            }
            Frame::Drop => {
                out.flush().await?;
                return Ok(End::Close);
            }
            Frame::Reset => {
                out.flush().await?;
                return Ok(End::Reset);
            }
        }
    }
    out.write(b"0\r\n\r\n".to_vec()).await?;
    out.flush().await?;
    Ok(End::KeepAlive)
}

struct Output<'a, 'b> {
    writer: &'a mut WriteHalf<'b>,
    slow: bool,
    at_once: bool,
    held: Vec<u8>,
}

impl Output<'_, '_> {
    async fn write(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.held.extend_from_slice(&bytes);
        if self.at_once { Ok(()) } else { self.flush().await }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        if !self.slow {
            return self.writer.write_all(&held).await;
        }
        for byte in held {
            self.writer.write_all(&[byte]).await?;
            // Lets the reader see the byte alone, if it cares to.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

async fn write_http(
    writer: &mut WriteHalf<'_>,
    status: u16,
    headers: &[(String, String)],
    content_type: &str,
    body: &[u8],
) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Scripted\r\ncontent-type: {content_type}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    writer.write_all(&bytes).await
}

/// The frame of a step that is the same in every API.
pub(super) fn common(step: &Step) -> Option<Frame> {
    Some(match step {
        Step::Sse(text) => Frame::Body(text.clone()),
        Step::Raw(bytes) => Frame::Raw(bytes.clone()),
        Step::Gate(gate) => Frame::Gate(gate.clone()),
        Step::Hang => Frame::Hang,
        Step::Drop => Frame::Drop,
        Step::Reset => Frame::Reset,
        _ => return None,
    })
}
