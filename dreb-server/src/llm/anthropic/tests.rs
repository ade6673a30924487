use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pretty_assertions::assert_eq;
use protocol_schema::content::Content;
use protocol_schema::{
    AgentMessage, AssistantMessage, ContentBlock, ImageContent, Model, ThinkingContent, ThinkingLevel, ToolCall,
    ToolResultMessage, Usage, UserMessage,
};
use serde_json::json;

use super::*;
use crate::llm::http::loopback::{Answer, Received, Server, client, open_stream, response, run, whole_stream};
use crate::llm::{ProviderErrorKind, Secret, ToolDefinition};

fn model(base_url: &str) -> Model {
    Model {
        id: "claude-x".into(),
        api: API.into(),
        provider: "custom".into(),
        base_url: base_url.into(),
        reasoning: true,
        input: vec!["text".into(), "image".into()],
        context_window: 200_000,
        max_tokens: 64_000,
        cost: serde_json::from_value(json!({"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75})).unwrap(),
        ..Model::default()
    }
}

fn request(model: Model) -> ProviderRequest {
    ProviderRequest {
        model: Arc::new(model),
        system_prompt: "Be brief.".into(),
        messages: vec![user(vec![ContentBlock::text("hi")])],
        tools: Arc::new([]),
        thinking: ThinkingLevel::Off,
        max_tokens: 32_000,
        api_key: Some(Secret::new("sk-test-key")),
        session_id: Some("session".into()),
        thinking_budgets: BTreeMap::new(),
        thinking_display: None,
    }
}

fn user(content: Vec<ContentBlock>) -> AgentMessage {
    UserMessage::new(content, 1).into()
}

fn assistant(content: Vec<ContentBlock>) -> AgentMessage {
    AssistantMessage { content, ..AssistantMessage::empty(API, "custom", "claude-x", 2) }.into()
}

fn thinking(text: &str, signature: &str, redacted: Option<bool>) -> ContentBlock {
    ThinkingContent {
        thinking: text.into(),
        thinking_signature: Some(signature.into()),
        redacted,
        ..ThinkingContent::default()
    }
    .into()
}

fn image() -> ContentBlock {
    ImageContent::new("AAAA", "image/png").into()
}

fn body_of(request: ProviderRequest) -> Value {
    request::body(request, CacheRetention::Short)
}

fn events(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).collect()
}

fn text_answer() -> Vec<Value> {
    vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "usage": {
            "input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 200
        }}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "ping"}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hé"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "llo"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}}),
        json!({"type": "message_stop"}),
    ]
}

async fn answer(answer: Answer) -> (Vec<StreamEvent>, Result<StopReason, ProviderError>) {
    let server = Server::start(vec![answer]).await;
    run(&AnthropicMessages::new(client(), CacheRetention::Short), request(model(server.url()))).await
}

async fn answer_events(stream: &[Value]) -> (Vec<StreamEvent>, Result<StopReason, ProviderError>) {
    answer(Answer::Bytes(whole_stream(&events(stream)))).await
}

fn usage(output: u64, cost: Value) -> StreamEvent {
    let total = 1300 + output;
    StreamEvent::Usage(
        serde_json::from_value(json!({
            "input": 100, "output": output, "cacheRead": 1000, "cacheWrite": 200, "totalTokens": total, "cost": cost
        }))
        .unwrap(),
    )
}

fn hello() -> Vec<StreamEvent> {
    let cost = |output: f64, total: f64| json!({"input": 0.00030000000000000003, "output": output, "cacheRead": 0.0003, "cacheWrite": 0.00075, "total": total});
    vec![
        StreamEvent::Opened,
        StreamEvent::ResponseId("msg_1".into()),
        usage(1, cost(0.000015, 0.001365)),
        StreamEvent::TextStart { index: 0 },
        StreamEvent::TextDelta { index: 0, delta: "Hé".into() },
        StreamEvent::TextDelta { index: 0, delta: "llo".into() },
        StreamEvent::TextEnd { index: 0, text: None, signature: None },
        usage(20, cost(0.00030000000000000003, 0.00165)),
    ]
}

#[tokio::test]
async fn a_text_answer_streams_with_usage_and_cost() {
    let (events, result) = answer_events(&text_answer()).await;
    assert_eq!(events, hello());
    assert_eq!(result, Ok(StopReason::Stop));
}

#[tokio::test]
async fn bytes_that_come_one_by_one_give_the_same() {
    let (events, result) = answer(Answer::Slow(whole_stream(&events(&text_answer())))).await;
    assert_eq!(events, hello());
    assert_eq!(result, Ok(StopReason::Stop));
}

#[tokio::test]
async fn a_missing_message_stop_is_fine_and_an_open_connection_after_it_too() {
    let mut stream = text_answer();
    stream.pop();
    for answer_ in [Answer::Bytes(open_stream(&events(&stream))), Answer::Hold(open_stream(&events(&stream)))] {
        let (events, result) = answer(answer_).await;
        assert_eq!((events, result), (hello(), Ok(StopReason::Stop)));
    }
    let (events, result) = answer(Answer::Hold(open_stream(&events(&text_answer())))).await;
    assert_eq!((events, result), (hello(), Ok(StopReason::Stop)));
}

#[tokio::test]
async fn a_stream_without_message_delta_is_a_drop() {
    let dropped = ProviderError {
        message: "Stream ended without message_delta — connection likely dropped".into(),
        kind: ProviderErrorKind::Dropped,
    };
    for stop in 0..6 {
        for bytes in [open_stream(&events(&text_answer()[..stop])), whole_stream(&events(&text_answer()[..stop]))] {
            let (_, result) = answer(Answer::Bytes(bytes)).await;
            assert_eq!(result, Err(dropped.clone()), "after {stop} events");
        }
    }
    let mut half = open_stream(&events(&text_answer()[..4]));
    half.extend(b"40\r\nevent: content_block_delta\ndata: {\"type\":\"content_bl");
    let (events, result) = answer(Answer::Bytes(half)).await;
    assert_eq!(events, hello()[..5]);
    assert_eq!(result, Err(dropped));
}

#[tokio::test]
async fn thinking_tools_and_hidden_thinking_stream_by_index() {
    let start =
        |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
    let json_delta = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
    let (events, result) = answer_events(&[
        json!({"type": "message_start", "message": {"id": "m", "usage": {}}}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "why"})),
        delta(0, json!({"type": "signature_delta", "signature": "si"})),
        delta(0, json!({"type": "signature_delta", "signature": "g"})),
        stop(0),
        start(1, json!({"type": "redacted_thinking", "data": "hidden"})),
        stop(1),
        start(2, json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})),
        delta(2, json_delta("{}")),
        stop(2),
        start(3, json!({"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}})),
        start(4, json!({"type": "tool_use", "id": "toolu_2", "name": "ls", "input": {"path": "/"}})),
        delta(3, json_delta("")),
        delta(4, json_delta("")),
        delta(3, json_delta("{\"path\"")),
        delta(3, json!({"type": "new_delta", "x": 1})),
        delta(9, json_delta("lost")),
        delta(3, json_delta(":\"a\"}")),
        stop(4),
        stop(3),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        json!({"type": "message_stop"}),
    ])
    .await;
    assert_eq!(result, Ok(StopReason::ToolUse));
    let call_delta = |index, delta: &str| StreamEvent::ToolCallDelta { index, delta: delta.into() };
    assert_eq!(
        events,
        [
            StreamEvent::Opened,
            StreamEvent::ResponseId("m".into()),
            StreamEvent::ThinkingStart { index: 0, signature: Some(String::new()) },
            StreamEvent::ThinkingDelta { index: 0, delta: "why".into() },
            StreamEvent::ThinkingEnd { index: 0, text: None, signature: Some("sig".into()) },
            StreamEvent::ThinkingRedacted { index: 1, data: "hidden".into() },
            StreamEvent::ToolCallStart { index: 2, id: "toolu_1".into(), name: "read".into() },
            StreamEvent::ToolCallStart { index: 3, id: "toolu_2".into(), name: "ls".into() },
            call_delta(2, ""),
            call_delta(3, ""),
            call_delta(2, "{\"path\""),
            call_delta(2, ":\"a\"}"),
            StreamEvent::ToolCallEnd { index: 3, arguments: Some("{\"path\":\"/\"}".into()), thought_signature: None },
            StreamEvent::ToolCallEnd { index: 2, arguments: None, thought_signature: None },
        ]
    );
}

#[tokio::test]
async fn blocks_left_open_are_ended_and_a_call_without_id_gets_one() {
    let (events, result) = answer_events(&[
        json!({"type": "content_block_start", "index": 5, "content_block": {"type": "tool_use", "name": "ls"}}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "x"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": null}, "usage": {"output_tokens": null}}),
    ])
    .await;
    assert_eq!(result, Ok(StopReason::Stop));
    let StreamEvent::ToolCallStart { index: 0, id, name } = &events[1] else { panic!("{events:?}") };
    assert!(id.starts_with("toolu_") && id.len() == 38 && name == "ls");
    assert_eq!(
        events[2..],
        [
            StreamEvent::TextStart { index: 1 },
            StreamEvent::TextDelta { index: 1, delta: "x".into() },
            StreamEvent::ToolCallEnd { index: 0, arguments: None, thought_signature: None },
            StreamEvent::TextEnd { index: 1, text: None, signature: None },
        ]
    );
}

#[tokio::test]
async fn stop_reasons() {
    for (reason, expected) in [
        ("end_turn", Ok(StopReason::Stop)),
        ("pause_turn", Ok(StopReason::Stop)),
        ("stop_sequence", Ok(StopReason::Stop)),
        ("max_tokens", Ok(StopReason::Length)),
        ("tool_use", Ok(StopReason::ToolUse)),
        ("refusal", Err("An unknown error occurred")),
        ("sensitive", Err("An unknown error occurred")),
        ("brand_new", Err("Unhandled stop reason: brand_new")),
    ] {
        let stream =
            [json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}})];
        let (events, result) = answer_events(&stream).await;
        assert!(matches!(&events[1], StreamEvent::Usage(Usage { output: 3, .. })), "{events:?}");
        assert_eq!(result, expected.map_err(ProviderError::other));
    }
}

#[tokio::test]
async fn failures_of_the_provider() {
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let (events, result) = answer(response(529, "retry-after: 7\r\n", body)).await;
    // The answer begins with the request, also one that is refused.
    assert_eq!(events, [StreamEvent::Opened]);
    let retry_after = Some(Duration::from_secs(7));
    let kind = ProviderErrorKind::Http { status: 529, retry_after };
    assert_eq!(result, Err(ProviderError { message: format!("529 {body}"), kind }));

    let (events, result) = answer_events(&[text_answer().remove(0), serde_json::from_str(body).unwrap()]).await;
    assert_eq!(events.len(), 3);
    assert_eq!(result, Err(ProviderError::other(body)));

    let (_, result) = answer(Answer::Bytes(whole_stream(&["data: {\"type\":\"mess\n\n".into()]))).await;
    let message = result.unwrap_err().message;
    assert!(
        message.starts_with("Malformed stream of 127.0.0.1:") && message.ends_with("{\"type\":\"mess"),
        "{message}"
    );

    let (_, result) = answer_events(&[json!({"type": "content_block_delta", "index": "x", "delta": {}})]).await;
    assert!(result.unwrap_err().message.starts_with("Malformed stream of 127.0.0.1:"));

    let mut keyless = request(model("http://127.0.0.1:1"));
    keyless.api_key = None;
    let (_, result) = run(&AnthropicMessages::new(client(), CacheRetention::Short), keyless).await;
    assert_eq!(result, Err(ProviderError::other("No API key for provider: custom")));
}

#[tokio::test]
async fn dropping_the_request_closes_the_connection_and_so_does_a_listener_that_leaves() {
    let server = Server::start(vec![
        Answer::Hold(open_stream(&events(&text_answer()[..4]))),
        Answer::Hold(open_stream(&events(&text_answer()[..4]))),
    ])
    .await;
    let provider = AnthropicMessages::new(client(), CacheRetention::Short);

    let (sender, mut receiver) = mpsc::channel(1);
    let task = tokio::spawn(provider.stream(request(model(server.url())), sender));
    assert_eq!(receiver.recv().await, Some(StreamEvent::Opened));
    assert_eq!(receiver.recv().await, Some(StreamEvent::ResponseId("msg_1".into())));
    task.abort();
    server.closed_by_peer().await;

    let (sender, mut receiver) = mpsc::channel(1);
    let task = tokio::spawn(provider.stream(request(model(server.url())), sender));
    assert_eq!(receiver.recv().await, Some(StreamEvent::Opened));
    assert_eq!(receiver.recv().await, Some(StreamEvent::ResponseId("msg_1".into())));
    drop(receiver);
    assert_eq!(task.await.unwrap(), Err(ProviderError::other("Request was aborted")));
    server.closed_by_peer().await;
}

async fn received(request: ProviderRequest) -> Received {
    let url = request.model.base_url.clone();
    assert_eq!(url, "", "the address is the server's");
    let server = Server::start(vec![Answer::Bytes(whole_stream(&events(&text_answer())))]).await;
    let model = Model { base_url: format!("{}/", server.url()), ..(*request.model).clone() };
    let request = ProviderRequest { model: Arc::new(model), ..request };
    let (_, result) = run(&AnthropicMessages::new(client(), CacheRetention::Short), request).await;
    assert_eq!(result, Ok(StopReason::Stop));
    server.requests().remove(0)
}

#[tokio::test]
async fn a_third_party_gets_the_key_and_no_headers_of_anthropic() {
    let received = received(request(model(""))).await;
    assert_eq!(received.path, "/v1/messages");
    for (name, value) in [
        ("x-api-key", Some("sk-test-key")),
        ("anthropic-version", Some("2023-06-01")),
        ("accept", Some("application/json")),
        ("authorization", None),
        ("anthropic-beta", None),
        ("anthropic-dangerous-direct-browser-access", None),
    ] {
        assert_eq!(received.header(name), value, "{name}");
    }
    assert_eq!(
        received.body,
        json!({
            "model": "claude-x",
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
            ]}],
            "max_tokens": 32000,
            "stream": true,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "thinking": {"type": "disabled"},
        })
    );
}

#[tokio::test]
async fn bearer_mode_replaces_the_key_and_a_stored_token() {
    let headers = serde_json::from_value(json!({"Authorization": "Bearer old", "x-team": "t"})).unwrap();
    let model = Model { auth_mode: Some("bearer".into()), headers: Some(headers), ..model("") };
    let received = received(request(model)).await;
    assert_eq!(received.header("authorization"), Some("Bearer sk-test-key"));
    assert_eq!(received.header("x-api-key"), None);
    assert_eq!(received.header("x-team"), Some("t"));
}

fn headers(base_url: &str, provider: &str, id: &str, key: &str) -> reqwest::header::HeaderMap {
    let model = Model { provider: provider.into(), id: id.into(), ..model(base_url) };
    let request = ProviderRequest { api_key: Some(Secret::new(key)), ..request(model) };
    request::post(request, CacheRetention::Short).unwrap().headers
}

#[test]
fn the_first_party_gets_betas_and_takes_oauth_tokens_as_a_bearer() {
    let own = headers("https://api.anthropic.com", "anthropic", "claude-sonnet-4-5", "sk-ant-api03-x");
    assert_eq!(own["x-api-key"], "sk-ant-api03-x");
    assert_eq!(own["anthropic-dangerous-direct-browser-access"], "true");
    assert_eq!(own["anthropic-beta"], "fine-grained-tool-streaming-2025-05-14,interleaved-thinking-2025-05-14");
    let adaptive = headers("https://api.anthropic.com", "anthropic", "claude-opus-4-6", "sk-ant-api03-x");
    assert_eq!(adaptive["anthropic-beta"], "fine-grained-tool-streaming-2025-05-14");
    let oauth = headers("https://api.anthropic.com", "anthropic", "claude-opus-4-6", "sk-ant-oat01-x");
    assert_eq!(oauth["authorization"], "Bearer sk-ant-oat01-x");
    assert_eq!(oauth["anthropic-beta"], "fine-grained-tool-streaming-2025-05-14,oauth-2025-04-20");
    for name in ["x-api-key", "x-app", "user-agent"] {
        assert!(!oauth.contains_key(name), "{name}");
    }
    let elsewhere = headers("https://proxy.example", "anthropic", "claude-opus-4-6", "sk-ant-oat01-x");
    assert_eq!(elsewhere["x-api-key"], "sk-ant-oat01-x");
}

#[test]
fn copilot_gets_a_bearer_and_its_own_headers() {
    let headers = headers("https://api.individual.githubcopilot.com", "github-copilot", "claude-sonnet-4", "tid=1");
    for (name, value) in [
        ("authorization", "Bearer tid=1"),
        ("x-initiator", "user"),
        ("openai-intent", "conversation-edits"),
        ("anthropic-beta", "interleaved-thinking-2025-05-14"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    assert!(!headers.contains_key("copilot-vision-request"));
    assert!(!headers.contains_key("x-api-key"));
}

#[test]
fn thinking_follows_the_level_and_the_kind_of_model() {
    let body = |id: &str, reasoning: bool, level: &str, max_tokens: u64| {
        let model = Model { id: id.into(), reasoning, max_tokens, ..model("") };
        let request = ProviderRequest { thinking: level.into(), max_tokens: max_tokens.min(32_000), ..request(model) };
        let body = body_of(request);
        (body["thinking"].clone(), body["output_config"].clone(), body["max_tokens"].as_u64().unwrap())
    };
    let enabled = |budget: u64| json!({"type": "enabled", "budget_tokens": budget});
    let adaptive = || json!({"type": "adaptive", "display": "summarized"});
    let effort = |word: &str| json!({"effort": word});
    for (id, reasoning, level, limit, expected) in [
        ("claude-x", false, "high", 64_000, (Value::Null, Value::Null, 32_000)),
        ("claude-x", true, "off", 64_000, (json!({"type": "disabled"}), Value::Null, 32_000)),
        ("claude-x", true, "minimal", 64_000, (enabled(1024), Value::Null, 33_024)),
        ("claude-x", true, "low", 64_000, (enabled(2048), Value::Null, 34_048)),
        ("claude-x", true, "medium", 64_000, (enabled(8192), Value::Null, 40_192)),
        ("claude-x", true, "high", 64_000, (enabled(16_384), Value::Null, 48_384)),
        ("claude-x", true, "xhigh", 64_000, (enabled(16_384), Value::Null, 48_384)),
        ("claude-x", true, "high", 16_384, (enabled(12_288), Value::Null, 16_384)),
        ("claude-x", true, "high", 1024, (json!({"type": "disabled"}), Value::Null, 1024)),
        ("claude-opus-4-6", true, "minimal", 64_000, (adaptive(), effort("low"), 32_000)),
        ("claude-opus-4-6", true, "medium", 64_000, (adaptive(), effort("medium"), 32_000)),
        ("claude-opus-4-6", true, "xhigh", 64_000, (adaptive(), effort("max"), 32_000)),
        ("claude-sonnet-4-6", true, "xhigh", 64_000, (adaptive(), effort("high"), 32_000)),
        ("claude-sonnet-4-6", true, "off", 64_000, (json!({"type": "disabled"}), Value::Null, 32_000)),
    ] {
        assert_eq!(body(id, reasoning, level, limit), expected, "{id} {level} of {limit}");
    }
    let mut request = request(Model { id: "claude-opus-5".into(), ..model("") });
    request.thinking = ThinkingLevel::Low;
    request.thinking_display = Some("omitted".into());
    assert_eq!(body_of(request)["thinking"], json!({"type": "adaptive", "display": "omitted"}));
}

#[test]
fn budgets_of_the_user_win() {
    let mut request = request(model(""));
    request.thinking = ThinkingLevel::Xhigh;
    request.thinking_budgets = BTreeMap::from([("high".to_owned(), 20_000)]);
    let body = body_of(request);
    assert_eq!(body["thinking"]["budget_tokens"], 20_000);
    assert_eq!(body["max_tokens"], 52_000);
}

#[test]
fn a_conversation_is_converted() {
    let mut request = request(model(""));
    request.system_prompt = "".into();
    let call = |id: &str| ToolCall {
        id: id.into(),
        name: "read".into(),
        arguments: json!({"path": "a"}).as_object().unwrap().clone(),
        ..ToolCall::default()
    };
    let result = |id: &str, content, is_error| ToolResultMessage::new(id, "read", content, None, is_error, 3).into();
    request.messages = vec![
        user(vec![ContentBlock::text(" "), ContentBlock::text("look\0"), image()]),
        assistant(vec![
            thinking("why", "sig", None),
            thinking("[Reasoning redacted]", "data", Some(true)),
            thinking("cut off", "", None),
            ContentBlock::text("so"),
            call("a").into(),
            call("b").into(),
        ]),
        result("a", vec![ContentBlock::text("1"), ContentBlock::text("2")], false),
        result("b", vec![image()], true),
        user(vec![ContentBlock::text("and?")]),
        assistant(vec![thinking("only", "sig", None)]),
        user(vec![ContentBlock::text(" ")]),
        AgentMessage::User(UserMessage { content: Content::Text("plain".into()), ..UserMessage::new(vec![], 1) }),
    ];
    request.tools = Arc::new([ToolDefinition {
        name: "read".into(),
        description: "Reads.".into(),
        parameters: json!({"type": "object", "properties": {"path": {}}, "required": ["path"], "$schema": "x"}),
    }]);
    let body = body_of(request);
    assert_eq!(body.get("system"), None);
    assert_eq!(
        body["tools"],
        json!([{"name": "read", "description": "Reads.", "input_schema": {
            "type": "object", "properties": {"path": {}}, "required": ["path"]
        }}])
    );
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "why", "signature": "sig"},
                {"type": "redacted_thinking", "data": "data"},
                {"type": "text", "text": "cut off"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {"path": "a"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "1\n2", "is_error": false},
                {"type": "tool_result", "tool_use_id": "b", "content": [
                    {"type": "text", "text": "(see attached image)"}, picture
                ], "is_error": true},
            ]},
            {"role": "user", "content": [{"type": "text", "text": "and?"}]},
            {"role": "user", "content": [
                {"type": "text", "text": "plain", "cache_control": {"type": "ephemeral"}}
            ]},
        ])
    );
}

#[test]
fn a_model_without_images_gets_none() {
    let mut request = request(Model { input: vec!["text".into()], ..model("") });
    let result = ToolResultMessage::new("a", "read", vec![image(), ContentBlock::text("t")], None, false, 3);
    let call = ToolCall { id: "a".into(), name: "read".into(), ..ToolCall::default() };
    request.messages = vec![user(vec![image()]), assistant(vec![call.into()]), result.into()];
    assert_eq!(
        body_of(request)["messages"],
        json!([
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read", "input": {}}]},
            {"role": "user", "content": [{
                "type": "tool_result", "tool_use_id": "a", "content": "t", "is_error": false,
                "cache_control": {"type": "ephemeral"}
            }]},
        ])
    );
}

#[test]
fn cache_marks_follow_the_retention() {
    let marks = |base_url: &str, retention| {
        let body = request::body(request(model(base_url)), retention);
        (body["system"][0]["cache_control"].clone(), body["messages"][0]["content"][0]["cache_control"].clone())
    };
    let both = |mark: Value| (mark.clone(), mark);
    assert_eq!(marks("https://api.anthropic.com", CacheRetention::None), both(Value::Null));
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    assert_eq!(marks("https://api.anthropic.com", CacheRetention::Long), both(hour));
    assert_eq!(marks("https://other.example", CacheRetention::Long), both(json!({"type": "ephemeral"})));

    let mut request = request(model(""));
    request.messages.push(assistant(vec![ContentBlock::text("x")]));
    let messages = body_of(request)["messages"].to_string();
    assert!(!messages.contains("cache_control"), "{messages}");
}

#[test]
fn what_the_catalog_says_of_a_model_is_heeded() {
    let body = |map: Value, level: &str| {
        let mut model = Model { compat: Some(json!({"forceAdaptiveThinking": true})), ..model("") };
        model.extra.insert("thinkingLevelMap".into(), map);
        let body = body_of(ProviderRequest { thinking: level.into(), ..request(model) });
        (body["thinking"]["type"].clone(), body["output_config"]["effort"].clone())
    };
    let map = || json!({"off": null, "minimal": null, "low": "lo", "xhigh": "xhigh", "max": "max"});
    assert_eq!(body(map(), "off"), (Value::Null, Value::Null));
    assert_eq!(body(map(), "minimal"), ("adaptive".into(), "lo".into()));
    assert_eq!(body(map(), "medium"), ("adaptive".into(), "medium".into()));
    assert_eq!(body(map(), "xhigh"), ("adaptive".into(), "max".into()));
    assert_eq!(body(json!({"xhigh": "xhigh"}), "xhigh"), ("adaptive".into(), "xhigh".into()));
    assert_eq!(body(json!({}), "xhigh"), ("adaptive".into(), "high".into()));

    let compat = json!({"allowEmptySignature": true, "sendSessionAffinityHeaders": true});
    let mut request = request(Model { compat: Some(compat), ..model("http://x") });
    request.messages = vec![assistant(vec![thinking("why", "", None), ContentBlock::text("so")])];
    let post = request::post(request.clone(), CacheRetention::Short).unwrap();
    assert_eq!(post.headers["x-session-affinity"], "session");
    assert_eq!(
        body_of(request)["messages"][0]["content"][0],
        json!({"type": "thinking", "thinking": "why", "signature": ""})
    );
}
