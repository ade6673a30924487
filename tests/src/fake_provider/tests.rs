//! The fake, seen by a real HTTP client.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Api, FakeProvider, GarbageServer, RefusedPort, Reply, Tokens};
use crate::Gate;

async fn connect(fake: &FakeProvider) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(fake.address).await.unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn post(sender: &mut SendRequest<Full<Bytes>>, path: &str) -> Response<Incoming> {
    let body = json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true }, "messages": [] });
    let request = Request::post(path).header("Host", "fake").header("X-Api-Key", "k");
    sender.send_request(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await.unwrap()
}

async fn body(response: Response<Incoming>) -> Result<String, hyper::Error> {
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

/// The events of a stream as (name, data).
fn events(text: &str) -> Vec<(String, Value)> {
    let split = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), serde_json::from_str(data).unwrap())
    };
    text.split_terminator("\n\n").map(split).collect()
}

const MESSAGES: &str = "/v1/messages";
const COMPLETIONS: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_message_stream_has_the_events_of_the_real_api() {
    let fake = FakeProvider::start().await;
    fake.push(
        Reply::new()
            .thinking(["hm"], "sig")
            .redacted("opaque")
            .text(["a", "b"])
            .tool_call_in("toolu_1", "bash", ["", "{\"command\":", "\"ls\"}"])
            .tokens(Tokens { input: 1, output: 2, cache_read: 3, cache_write: 4 }),
    );
    let response = post(&mut connect(&fake).await, MESSAGES).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let events = events(&body(response).await.unwrap());
    for (name, data) in &events {
        assert_eq!(data["type"], json!(name));
    }
    let data: Vec<Value> = events.into_iter().map(|(_, data)| data).filter(|data| data["type"] != "ping").collect();
    let start = |index: u32, block: Value| json!({"type":"content_block_start","index":index,"content_block":block});
    let delta = |index: u32, delta: Value| json!({"type":"content_block_delta","index":index,"delta":delta});
    let stop = |index: u32| json!({"type":"content_block_stop","index":index});
    let arguments = |text: &str| delta(3, json!({"type":"input_json_delta","partial_json":text}));
    assert_eq!(
        data,
        [
            json!({"type":"message_start","message":{
                "id":"msg_1","type":"message","role":"assistant","model":"m","content":[],
                "stop_reason":null,"stop_sequence":null,
                "usage":{"input_tokens":1,"cache_creation_input_tokens":4,"cache_read_input_tokens":3,"output_tokens":1},
            }}),
            start(0, json!({"type":"thinking","thinking":"","signature":""})),
            delta(0, json!({"type":"thinking_delta","thinking":"hm"})),
            delta(0, json!({"type":"signature_delta","signature":"sig"})),
            stop(0),
            start(1, json!({"type":"redacted_thinking","data":"opaque"})),
            stop(1),
            start(2, json!({"type":"text","text":""})),
            delta(2, json!({"type":"text_delta","text":"a"})),
            delta(2, json!({"type":"text_delta","text":"b"})),
            stop(2),
            start(3, json!({"type":"tool_use","id":"toolu_1","name":"bash","input":{}})),
            arguments(""),
            arguments("{\"command\":"),
            arguments("\"ls\"}"),
            stop(3),
            json!({"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},
                "usage":{"output_tokens":2}}),
            json!({"type":"message_stop"}),
        ]
    );
    let request = fake.request(1).await;
    assert_eq!((request.api, request.number), (Api::Anthropic, 1));
    assert_eq!(request.headers["x-api-key"], "k");
    assert_eq!(request.body["model"], "m");
    fake.assert_done();
}

#[tokio::test]
async fn completion_chunks_have_the_fields_of_the_real_api() {
    let fake = FakeProvider::start().await;
    fake.push(Reply::new().thinking(["hm"], "").text(["a"]).tool_call_in("call_1", "ls", ["{", "}"]).tool_call(
        "call_2",
        "read",
        &json!({}),
    ));
    let text = body(post(&mut connect(&fake).await, COMPLETIONS).await).await.unwrap();
    let mut lines: Vec<&str> = text.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap()).collect();
    assert_eq!(lines.pop(), Some("[DONE]"));
    let mut chunks: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let usage = chunks.pop().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["prompt_tokens"], 150);
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 30);
    assert_eq!((&usage["usage"]["completion_tokens"], &usage["usage"]["total_tokens"]), (&json!(7), &json!(157)));
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == "chatcmpl-1"));
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let begin = |index: u32, id: &str, name: &str| {
        let function = json!({"name":name,"arguments":""});
        json!({"tool_calls":[{"index":index,"id":id,"type":"function","function":function}]})
    };
    let more = |index: u32, text: &str| json!({"tool_calls":[{"index":index,"function":{"arguments":text}}]});
    assert_eq!(
        deltas,
        [
            &json!({"role":"assistant","content":"","refusal":null}),
            &json!({"reasoning_content":"hm"}),
            &json!({"content":"a"}),
            &begin(0, "call_1", "ls"),
            &more(0, "{"),
            &more(0, "}"),
            &begin(1, "call_2", "read"),
            &more(1, "{}"),
            &json!({}),
        ]
    );
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn connections_are_kept_and_replies_taken_in_order() {
    let fake = FakeProvider::start().await;
    fake.script([Reply::error(529, "overloaded_error", "Overloaded").header("retry-after", "7"), Reply::say("x")]);
    let mut sender = connect(&fake).await;
    let response = post(&mut sender, MESSAGES).await;
    assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (529, &"7".parse().unwrap()));
    assert_eq!(
        body(response).await.unwrap(),
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#
    );
    assert!(body(post(&mut sender, COMPLETIONS).await).await.unwrap().contains(r#""content":"x""#));
    fake.assert_done();
    assert_eq!(post(&mut sender, MESSAGES).await.status(), 400, "the script is used up");
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fake.assert_done())).is_err());
}

#[tokio::test]
async fn a_gate_holds_the_answer_and_the_end_of_the_client_is_seen() {
    let fake = FakeProvider::start().await;
    let (before, inside, never) = (Gate::new(), Gate::new(), Gate::new());
    fake.push(
        Reply::new().gate_before(&before).text_start().text_deltas(["a"]).gate(&inside).text_deltas(["b"]).gate(&never),
    );
    let mut sender = connect(&fake).await;
    let asked = tokio::spawn(async move { (post(&mut sender, MESSAGES).await, sender) });
    before.reached().await;
    assert!(!asked.is_finished());
    before.release();
    let (response, sender) = asked.await.unwrap();
    let mut stream = response.into_body();
    let mut text = String::new();
    while !text.contains(r#""text":"a""#) {
        text += std::str::from_utf8(&stream.frame().await.unwrap().unwrap().into_data().unwrap()).unwrap();
    }
    inside.reached().await;
    inside.release();
    while !text.contains(r#""text":"b""#) {
        text += std::str::from_utf8(&stream.frame().await.unwrap().unwrap().into_data().unwrap()).unwrap();
    }
    never.reached().await;
    drop((stream, sender));
    fake.closed(1).await;
}

#[tokio::test]
async fn faults_are_what_they_say() {
    let fake = FakeProvider::start().await;
    let cut = || Reply::new().text_start().text_deltas(["a"]);
    fake.script([cut().drop_connection(), cut().reset_connection(), cut().raw("zz\r\n")]);
    for _ in 0..3 {
        let response = post(&mut connect(&fake).await, MESSAGES).await;
        assert_eq!(response.status(), 200);
        body(response).await.unwrap_err();
    }
    fake.script([Reply::say("slow").byte_by_byte(), Reply::say("fast").in_one_write(), Reply::new().without_stop()]);
    assert!(body(post(&mut connect(&fake).await, MESSAGES).await).await.unwrap().contains("slow"));
    assert!(body(post(&mut connect(&fake).await, MESSAGES).await).await.unwrap().contains("fast"));
    assert_eq!(body(post(&mut connect(&fake).await, MESSAGES).await).await.unwrap(), "");
    let refused = RefusedPort::take();
    let error = TcpStream::connect(refused.url().trim_start_matches("http://")).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let garbage = GarbageServer::start().await;
    let mut stream = TcpStream::connect(garbage.tls_url().trim_start_matches("https://")).await.unwrap();
    stream.write_all(&[22, 3, 1, 0, 0]).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer[..2], [0, 0xff]);
}
