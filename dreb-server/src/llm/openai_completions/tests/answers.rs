use std::collections::BTreeMap;
use std::time::Duration;

use pretty_assertions::assert_eq;

use super::*;
use crate::llm::ProviderErrorKind;
use crate::llm::http::loopback::{Answer, Server, client, open_stream, response, run, whole_stream};

fn calls(pieces: Value) -> Value {
    chunk(json!({"tool_calls": pieces}))
}

async fn answer(answer: Answer) -> (Vec<StreamEvent>, Result<StopReason, ProviderError>) {
    let server = Server::start(vec![answer]).await;
    run(&OpenAiCompletions::new(client()), request(model(server.url(), Value::Null))).await
}

/// The events of a whole answer, without the first two, `Opened` and the id.
async fn blocks(chunks: &[Value]) -> (Vec<StreamEvent>, Result<StopReason, ProviderError>) {
    let mut pieces = pieces(chunks);
    pieces.push("data: [DONE]\n\n".into());
    let (mut events, result) = answer(Answer::Bytes(whole_stream(&pieces))).await;
    let rest = events.split_off(2);
    assert_eq!(events, [StreamEvent::Opened, StreamEvent::ResponseId("c1".into())]);
    (rest, result)
}

fn hello() -> Vec<StreamEvent> {
    let usage = json!({
        "input": 600, "output": 25, "cacheRead": 400, "cacheWrite": 0, "totalTokens": 1025,
        "cost": {"input": 0.0012, "output": 0.00025, "cacheRead": 0.00019999999999999998, "cacheWrite": 0, "total": 0.00165}
    });
    vec![
        StreamEvent::Opened,
        StreamEvent::ResponseId("c1".into()),
        StreamEvent::TextStart { index: 0 },
        text(0, "Hé"),
        text(0, "llo"),
        StreamEvent::Usage(serde_json::from_value(usage).unwrap()),
        StreamEvent::TextEnd { index: 0, text: None, signature: None },
    ]
}

fn text(index: usize, delta: &str) -> StreamEvent {
    StreamEvent::TextDelta { index, delta: delta.into() }
}

fn start(index: usize, id: &str, name: &str) -> StreamEvent {
    StreamEvent::ToolCallStart { index, id: id.into(), name: name.into() }
}

fn delta(index: usize, delta: &str) -> StreamEvent {
    StreamEvent::ToolCallDelta { index, delta: delta.into() }
}

fn end(index: usize) -> StreamEvent {
    StreamEvent::ToolCallEnd { index, arguments: None, thought_signature: None }
}

#[tokio::test]
async fn a_text_answer_streams_with_usage_and_cost() {
    let bytes = whole_stream(&with_done(&text_chunks()));
    for answer_ in [Answer::Bytes(bytes.clone()), Answer::Slow(bytes)] {
        let (events, result) = answer(answer_).await;
        assert_eq!(events, hello());
        assert_eq!(result, Ok(StopReason::Stop));
    }
}

#[tokio::test]
async fn a_missing_done_and_a_connection_that_stays_open_are_fine() {
    let open = open_stream(&pieces(&text_chunks()));
    let with_done = open_stream(&with_done(&text_chunks()));
    for answer_ in [Answer::Bytes(open.clone()), Answer::Hold(open), Answer::Hold(with_done)] {
        let (events, result) = answer(answer_).await;
        assert_eq!((events, result), (hello(), Ok(StopReason::Stop)));
    }
}

#[tokio::test]
async fn a_stream_without_finish_reason_is_a_drop() {
    let dropped = ProviderError {
        message: "Stream ended without finish_reason — connection likely dropped".into(),
        kind: ProviderErrorKind::Dropped,
    };
    for stop in 0..3 {
        for bytes in [open_stream(&pieces(&text_chunks()[..stop])), whole_stream(&with_done(&text_chunks()[..stop]))] {
            let (_, result) = answer(Answer::Bytes(bytes)).await;
            assert_eq!(result, Err(dropped.clone()), "after {stop} chunks");
        }
    }
    let mut half = pieces(&text_chunks()[..3]);
    half.push("data: {\"choices\":[{\"finish_rea".into());
    let (events, result) = answer(Answer::Bytes(open_stream(&half))).await;
    assert_eq!(events, hello()[..5]);
    assert_eq!(result, Err(dropped));
}

#[tokio::test]
async fn finish_reasons() {
    for (reason, expected) in [
        ("stop", Ok(StopReason::Stop)),
        ("end", Ok(StopReason::Stop)),
        ("length", Ok(StopReason::Length)),
        ("tool_calls", Ok(StopReason::ToolUse)),
        ("function_call", Ok(StopReason::ToolUse)),
        ("content_filter", Err("Provider finish_reason: content_filter")),
    ] {
        let (_, result) = blocks(&[finish(reason)]).await;
        assert_eq!(result, expected.map_err(ProviderError::other));
    }
}

#[tokio::test]
async fn thinking_remembers_its_field_and_ends_where_text_begins() {
    for field in ["reasoning_content", "reasoning", "reasoning_text"] {
        let (events, result) = blocks(&[
            chunk(json!({"content": null, field: "w"})),
            chunk(json!({field: "hy"})),
            chunk(json!({field: "", "content": "so"})),
            chunk(json!({field: "more"})),
            finish("stop"),
        ])
        .await;
        assert_eq!(result, Ok(StopReason::Stop));
        let start = |index| StreamEvent::ThinkingStart { index, signature: Some(field.into()) };
        let thought = |index, delta: &str| StreamEvent::ThinkingDelta { index, delta: delta.into() };
        let end = |index| StreamEvent::ThinkingEnd { index, text: None, signature: None };
        assert_eq!(
            events,
            [
                start(0),
                thought(0, "w"),
                thought(0, "hy"),
                end(0),
                StreamEvent::TextStart { index: 1 },
                text(1, "so"),
                StreamEvent::TextEnd { index: 1, text: None, signature: None },
                start(2),
                thought(2, "more"),
                end(2),
            ]
        );
    }
}

#[tokio::test]
async fn calls_one_after_the_other_end_one_after_the_other() {
    let (events, result) = blocks(&[
        chunk(json!({"content": "t"})),
        calls(json!([{"index": 0, "id": "a", "function": {"name": "read", "arguments": ""}}])),
        calls(json!([{"index": 0, "function": {"arguments": "{\"x\""}}])),
        calls(json!([{"index": 0, "function": {"arguments": ":1}"}}])),
        calls(json!([{"index": 1, "id": "b", "function": {"name": "ls", "arguments": "{}"}}])),
        finish("tool_calls"),
    ])
    .await;
    assert_eq!(result, Ok(StopReason::ToolUse));
    assert_eq!(
        events,
        [
            StreamEvent::TextStart { index: 0 },
            text(0, "t"),
            StreamEvent::TextEnd { index: 0, text: None, signature: None },
            start(1, "a", "read"),
            delta(1, ""),
            delta(1, "{\"x\""),
            delta(1, ":1}"),
            end(1),
            start(2, "b", "ls"),
            delta(2, "{}"),
            end(2),
        ]
    );
}

#[tokio::test]
async fn interleaved_calls_are_told_apart_by_index_and_by_id() {
    let by_index = [
        calls(json!([{"index": 0, "id": "a", "function": {"name": "read", "arguments": "{\"x\""}},
                     {"index": 1, "id": "b", "function": {"name": "ls", "arguments": "{\"y\""}}])),
        calls(json!([{"index": 0, "function": {"arguments": ":1}"}}, {"index": 1, "function": {"arguments": ":2}"}}])),
        finish("tool_calls"),
    ];
    let by_id = [
        calls(json!([{"id": "a", "function": {"name": "read", "arguments": "{\"x\""}}])),
        calls(json!([{"id": "b", "function": {"name": "ls", "arguments": "{\"y\""}}])),
        calls(json!([{"id": "a", "function": {"arguments": ":1}"}}])),
        calls(json!([{"id": "b", "function": {"arguments": ":2}"}}])),
        finish("tool_calls"),
    ];
    let all_at_index_0 = [
        calls(json!([{"index": 0, "id": "a", "function": {"name": "read", "arguments": "{\"x\""}}])),
        calls(json!([{"index": 0, "id": "b", "function": {"name": "ls", "arguments": "{\"y\""}}])),
        calls(json!([{"index": 0, "id": "a", "function": {"arguments": ":1}"}}])),
        calls(json!([{"index": 0, "id": "b", "function": {"arguments": ":2}"}}])),
        finish("tool_calls"),
    ];
    for chunks in [&by_index[..], &by_id, &all_at_index_0] {
        let (events, result) = blocks(chunks).await;
        assert_eq!(result, Ok(StopReason::ToolUse));
        assert_eq!(
            events,
            [
                start(0, "a", "read"),
                delta(0, "{\"x\""),
                start(1, "b", "ls"),
                delta(1, "{\"y\""),
                delta(0, ":1}"),
                delta(1, ":2}"),
                end(0),
                end(1),
            ]
        );
    }
}

/// Names and arguments of the calls, after a check that their ids differ.
fn summary(events: &[StreamEvent]) -> Vec<(String, String)> {
    let mut ids = std::collections::HashSet::new();
    let mut calls = BTreeMap::new();
    let mut ended = 0;
    for event in events {
        match event {
            StreamEvent::ToolCallStart { index, id, name } => {
                assert!(!id.is_empty() && ids.insert(id.clone()), "{id}");
                calls.insert(*index, (name.clone(), String::new()));
            }
            StreamEvent::ToolCallDelta { index, delta } => calls.get_mut(index).unwrap().1.push_str(delta),
            StreamEvent::ToolCallEnd { .. } => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, calls.len());
    calls.into_values().collect()
}

#[tokio::test]
async fn servers_that_leave_out_ids_indices_or_both() {
    let f = |name: Value, arguments: Value| json!({"name": name, "arguments": arguments});
    let same_twice = vec![("ls", "{\"a\":1}"), ("ls", "{\"a\":2}")];
    for (what, pieces, expected) in [
        (
            "indices only",
            vec![
                json!([{"index": 0, "function": f("ls".into(), "{\"a\"".into())}]),
                json!([{"index": 1, "function": f("ls".into(), "{\"a\":2}".into())}]),
                json!([{"index": 0, "function": {"arguments": ":1}"}}]),
            ],
            same_twice.clone(),
        ),
        (
            "whole calls with neither",
            vec![json!([
                {"function": f("ls".into(), "{\"a\":1}".into())},
                {"function": f("ls".into(), "{\"a\":2}".into())},
            ])],
            same_twice.clone(),
        ),
        (
            "whole calls, all at index 0, no ids",
            vec![
                json!([{"index": 0, "function": f("ls".into(), "{\"a\":1}".into())}]),
                json!([{"index": 0, "function": f("ls".into(), "{\"a\":2}".into())}]),
            ],
            same_twice.clone(),
        ),
        (
            "whole calls, all at index 0, own ids",
            vec![
                json!([{"index": 0, "id": "a", "function": f("ls".into(), "{\"a\":1}".into())}]),
                json!([{"index": 0, "id": "b", "function": f("ls".into(), "{\"a\":2}".into())}]),
            ],
            same_twice.clone(),
        ),
        (
            "pieces with neither",
            vec![
                json!([{"function": f("ls".into(), "".into())}]),
                json!([{"function": {"arguments": "{\"a\":1"}}]),
                json!([{"function": {"arguments": "}"}}]),
                json!([{"function": f("rm".into(), Value::Null)}]),
            ],
            vec![("ls", "{\"a\":1}"), ("rm", "")],
        ),
        (
            "id and name in every piece",
            vec![
                json!([{"index": 0, "id": "a", "function": f("ls".into(), "{\"a\"".into())}]),
                json!([{"index": 0, "id": "a", "function": f("ls".into(), ":1}".into())}]),
                json!([{"index": 0, "id": "a", "function": f("ls".into(), "".into())}]),
            ],
            vec![("ls", "{\"a\":1}")],
        ),
        (
            "a new id in every piece",
            vec![
                json!([{"index": 0, "id": "a", "function": f("ls".into(), "{\"a\"".into())}]),
                json!([{"index": 0, "id": "b", "function": {"arguments": ":1}"}}]),
            ],
            vec![("ls", "{\"a\":1}")],
        ),
        (
            "a late name",
            vec![
                json!([{"index": 0, "id": "a", "function": {"arguments": "{\"a\""}}]),
                json!([{"index": 0, "function": f("ls".into(), ":1}".into())}]),
            ],
            vec![("ls", "{\"a\":1}")],
        ),
        ("no name at all", vec![json!([{"index": 0, "id": "a", "function": {"arguments": "{}"}}])], vec![("", "{}")]),
        (
            "arguments as an object",
            vec![json!([{"index": 0, "id": "a", "function": f("ls".into(), json!({"a": 1}))}])],
            vec![("ls", "{\"a\":1}")],
        ),
        ("an empty piece", vec![json!([{"index": 0, "function": {}}]), json!([{}])], vec![]),
    ] {
        let mut chunks: Vec<Value> = pieces.into_iter().map(calls).collect();
        chunks.push(finish("tool_calls"));
        let (events, _) = blocks(&chunks).await;
        let expected: Vec<(String, String)> = expected.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
        assert_eq!(summary(&events), expected, "{what}");
    }
}

#[tokio::test]
async fn encrypted_reasoning_goes_with_its_call() {
    let detail = json!({"type": "reasoning.encrypted", "id": "a", "data": "xyz"});
    let (events, _) = blocks(&[
        chunk(json!({"reasoning_details": [{"type": "reasoning.text", "text": "t"}]})),
        calls(json!([{"index": 0, "id": "a", "function": {"name": "ls", "arguments": "{}"}}])),
        calls(json!([{"index": 1, "id": "b", "function": {"name": "ls", "arguments": "{}"}}])),
        chunk(json!({"reasoning_details": [detail]})),
        finish("tool_calls"),
    ])
    .await;
    let ends: Vec<_> = events.iter().filter(|event| matches!(event, StreamEvent::ToolCallEnd { .. })).collect();
    let thought_signature = Some(detail.to_string());
    assert_eq!(ends, [&StreamEvent::ToolCallEnd { index: 0, arguments: None, thought_signature }, &end(1)]);
}

#[tokio::test]
async fn usage_may_stand_in_the_choice_or_in_every_chunk() {
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1});
    let (events, _) = blocks(&[
        json!({"id": "c1", "usage": null, "choices": [{"delta": {}, "usage": usage}]}),
        json!({"choices": [], "usage": usage}),
        finish("stop"),
    ])
    .await;
    let [StreamEvent::Usage(usage)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((usage.input, usage.output, usage.total_tokens), (5, 1, Some(6)));
}

#[tokio::test]
async fn failures_of_the_provider() {
    let body = r#"{"error":{"message":"Incorrect API key provided: sk-test-key"}}"#;
    let (events, result) = answer(response(401, "", body)).await;
    assert_eq!(events, []);
    let kind = ProviderErrorKind::Http { status: 401, retry_after: None };
    let message = "401 Incorrect API key provided: <redacted>".to_owned();
    assert_eq!(result, Err(ProviderError { message, kind }));

    let (_, result) = answer(response(429, "retry-after: 2\r\n", "")).await;
    let kind = ProviderErrorKind::Http { status: 429, retry_after: Some(Duration::from_secs(2)) };
    assert_eq!(result, Err(ProviderError { message: "429 status code (no body)".into(), kind }));

    let error = json!({"error": {"message": "Provider returned error", "code": 502, "metadata": {"raw": "boom"}}});
    let (events, result) = blocks(&[text_chunks().remove(1), error]).await;
    assert_eq!(events, [StreamEvent::TextStart { index: 0 }, text(0, "Hé")]);
    assert_eq!(result, Err(ProviderError::other("Provider returned error\nboom")));

    let event = "event: error\ndata: {\"message\":\"bad\"}\n\n".to_owned();
    let (_, result) = answer(Answer::Bytes(whole_stream(&[event]))).await;
    assert_eq!(result, Err(ProviderError::other("bad")));

    let (_, result) = answer(Answer::Bytes(whole_stream(&["data: {\"id\":\n\n".into()]))).await;
    let message = result.unwrap_err().message;
    assert!(message.starts_with("Malformed stream of 127.0.0.1:"), "{message}");

    let mut keyless = request(model("http://127.0.0.1:1", Value::Null));
    keyless.api_key = None;
    let (_, result) = run(&OpenAiCompletions::new(client()), keyless).await;
    assert_eq!(result, Err(ProviderError::other("No API key for provider: custom")));
}
