//! A scripted peer in memory, and the lines it writes.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::time::Duration;

use dreb_client::{RpcClient, RpcClientOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

pub(crate) struct Peer {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
}

impl Peer {
    /// The next line of the client; panics at the end, or if none comes.
    pub(crate) async fn next(&mut self) -> Value {
        let next = tokio::time::timeout(Duration::from_secs(60), self.try_next()).await;
        next.expect("the client says nothing").expect("the client closed its side")
    }

    pub(crate) async fn try_next(&mut self) -> Option<Value> {
        let mut line = String::new();
        (self.reader.read_line(&mut line).await.unwrap() > 0).then(|| serde_json::from_str(&line).unwrap())
    }

    /// Takes a command of this type and returns it.
    pub(crate) async fn expect(&mut self, kind: &str) -> Value {
        let request = self.next().await;
        assert_eq!(request["type"], kind, "{request}");
        request
    }

    pub(crate) async fn send(&mut self, value: &Value) {
        self.send_bytes(format!("{value}\n").as_bytes()).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    /// Like [`send_bytes`](Self::send_bytes); `false` if the client has closed its side.
    pub(crate) async fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.writer.write_all(bytes).await.is_ok()
    }

    pub(crate) async fn answer(&mut self, request: &Value, data: Value) {
        self.send(&success(request, data)).await;
    }

    pub(crate) async fn ack(&mut self, request: &Value) {
        self.send(&json!({"id": request["id"], "type": "response", "command": request["type"], "success": true})).await;
    }

    pub(crate) async fn refuse(&mut self, request: &Value, error: &str) {
        let mut response = success(request, Value::Null);
        response["success"] = false.into();
        response["error"] = error.into();
        response.as_object_mut().unwrap().remove("data");
        self.send(&response).await;
    }
}

pub(crate) fn success(request: &Value, data: Value) -> Value {
    json!({"id": request["id"], "type": "response", "command": request["type"], "success": true, "data": data})
}

/// A client and its peer; the handshake is done.
pub(crate) async fn connect(options: RpcClientOptions) -> (RpcClient, Peer) {
    connect_to(options, json!({"version": "1.2.3"})).await
}

pub(crate) async fn connect_to(options: RpcClientOptions, version: Value) -> (RpcClient, Peer) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (client_reader, client_writer) = tokio::io::split(ours);
    let (reader, writer) = tokio::io::split(theirs);
    let mut peer = Peer { reader: BufReader::new(reader), writer };
    let handshake = async {
        let request = peer.expect("get_version").await;
        peer.answer(&request, version).await;
    };
    let (client, ()) = tokio::join!(RpcClient::from_streams(client_reader, client_writer, options), handshake);
    (client.unwrap(), peer)
}

pub(crate) fn usage(output: u64) -> Value {
    json!({"input": 1, "output": output, "cacheRead": 0, "cacheWrite": 0, "totalTokens": output + 1,
        "cost": {"input": 0, "output": 0.5, "cacheRead": 0, "cacheWrite": 0, "total": 0.5}})
}

pub(crate) fn answer_message(text: &str) -> Value {
    let content = if text.is_empty() { json!([]) } else { json!([{"type": "text", "text": text}]) };
    json!({"role": "assistant", "content": content, "api": "a", "provider": "p", "model": "m",
        "usage": usage(2), "stopReason": "stop", "timestamp": 1})
}

pub(crate) fn text_delta(text: &str) -> Value {
    json!({"type": "message_update", "assistantMessageEvent": {"type": "text_delta", "contentIndex": 0, "delta": text}})
}

pub(crate) fn text_start() -> Value {
    json!({"type": "message_update", "assistantMessageEvent": {"type": "text_start", "contentIndex": 0}})
}

pub(crate) fn agent_start() -> Value {
    json!({"type": "agent_start", "model": {"provider": "p", "id": "m"}, "thinkingLevel": "off"})
}

pub(crate) fn agent_end() -> Value {
    json!({"type": "agent_end", "messages": []})
}

pub(crate) fn message(kind: &str, message: &Value) -> Value {
    json!({"type": kind, "message": message})
}

pub(crate) fn state(streaming: bool, retrying: bool, compacting: bool) -> Value {
    json!({"scopedModels": [], "tasks": [], "usingSubscription": false, "thinkingLevel": "off",
        "isStreaming": streaming, "isRetrying": retrying, "retryAttempt": 0, "isCompacting": compacting,
        "steeringMode": "all", "followUpMode": "all", "sessionId": "s", "autoCompactionEnabled": true,
        "messageCount": 0, "pendingMessageCount": 0})
}
