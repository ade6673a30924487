//! The samples of the protocol document decode into their types and re-encode to equal JSON.
//!
//! `data/examples.jsonl` holds every JSON sample of the document, one a line. Parts that the document
//! elides (`$elided`) are completed here with its own samples of those parts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

use pretty_assertions::assert_eq;
use protocol_schema::envelope::{RequestFrame, ResponseFrame, encode_request};
use protocol_schema::registry::{Command, ResponseData};
use protocol_schema::{AgentMessage, COMMANDS, Event, Model, Request};
use serde::Serialize;
use serde_json::{Value, json};

fn samples() -> Vec<(u64, Value)> {
    include_str!("data/examples.jsonl")
        .lines()
        .map(|line| {
            let mut sample: Value = serde_json::from_str(line).unwrap();
            (sample["line"].as_u64().unwrap(), sample["value"].take())
        })
        .collect()
}

/// The document's sample with this value under `key`.
fn sample_with(key: &str, value: &str) -> Value {
    samples().into_iter().map(|(_, sample)| sample).find(|sample| sample[key] == value).unwrap()
}

/// Fills elided parts by what stands under their key.
fn complete(key: &str, value: &mut Value) {
    let assistant = || sample_with("role", "assistant");
    let model = || sample_with("id", "claude-sonnet-4-20250514");
    let elided = value.get("$elided").is_some();
    match value {
        Value::Array(items) if items.first() == Some(&json!("$elided")) => {
            *items = match key {
                "messages" => {
                    ["user", "assistant", "toolResult", "bashExecution"].map(|role| sample_with("role", role)).into()
                }
                "models" => vec![model()],
                "toolResults" => vec![sample_with("role", "toolResult")],
                other => panic!("elided list under {other}"),
            };
        }
        Value::Object(_) if elided => {
            *value = match key {
                "model" | "data" => model(),
                "message" | "partial" => assistant(),
                "details" => json!({ "truncation": null }),
                other => panic!("elided object under {other}"),
            };
        }
        Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| complete(key, value)),
        Value::Array(items) => items.iter_mut().for_each(|item| complete(key, item)),
        _ => {}
    }
}

/// Equal JSON, where `3` and `3.0` are one number.
fn same(line: u64, encoded: &impl Serialize, sample: &Value) {
    assert_eq!(plain(serde_json::to_value(encoded).unwrap()), plain(sample.clone()), "line {line}");
}

fn plain(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.into_iter().map(plain).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, plain(value))).collect(),
        other => other,
    }
}

/// Encodes a decoded command again, with the id of the sample.
fn encode(request: &Request, id: Option<&str>) -> Value {
    fn with<C: Command>(command: &C, id: Option<&str>) -> Value {
        let line = encode_request(id.unwrap_or_default(), command).unwrap();
        let mut value: Value = serde_json::from_slice(&line).unwrap();
        if id.is_none() {
            value.as_object_mut().unwrap().shift_remove("id");
        }
        value
    }
    macro_rules! each {
        ($($command:ident),*) => { match request { $( Request::$command(command) => with(command, id), )* } };
    }
    each!(
        Prompt,
        Steer,
        FollowUp,
        Abort,
        GetState,
        GetMessages,
        SetModel,
        GetAvailableModels,
        SetThinkingLevel,
        SetSteeringMode,
        SetFollowUpMode,
        GetPendingMessages,
        ClearPendingMessages,
        Bash,
        AbortBash,
        GetLastAssistantText,
        GetVersion
    )
}

/// Decodes the data of a response by the command it answers and encodes it again.
fn response_data(command: &str, data: Option<&str>) -> Option<Value> {
    fn through<T: ResponseData>(data: Option<&str>) -> Option<Value> {
        let decoded: T = serde_json::from_str(data.unwrap_or("null")).unwrap();
        T::HAS_DATA.then(|| serde_json::to_value(decoded).unwrap())
    }
    use protocol_schema::{Ack, model, queue, session, shell};
    match command {
        "get_state" => through::<session::SessionState>(data),
        "get_messages" => through::<session::Messages>(data),
        "set_model" => through::<Model>(data),
        "get_available_models" => through::<model::AvailableModels>(data),
        "get_pending_messages" | "clear_pending_messages" => through::<queue::PendingMessages>(data),
        "bash" => through::<shell::BashResult>(data),
        "get_last_assistant_text" => through::<session::LastAssistantText>(data),
        "get_version" => through::<session::Version>(data),
        _ => through::<Ack>(data),
    }
}

#[test]
fn every_sample_of_a_known_kind_survives_decoding_and_encoding() {
    let known = |name: &Value| COMMANDS.iter().any(|command| name == command.name);
    let (mut commands, mut responses, mut events, mut messages) = (0, 0, 0, 0);
    for (line, mut sample) in samples() {
        let kind = sample["type"].clone();
        if known(&kind) {
            let text = sample.to_string();
            let frame = RequestFrame::decode(&text).unwrap();
            let id = frame.id.map(|id| serde_json::from_str::<String>(id.get()).unwrap());
            same(line, &encode(&frame.request, id.as_deref()), &sample);
            commands += 1;
        } else if kind == "response" && known(&sample["command"]) {
            complete("", &mut sample);
            let text = sample.to_string();
            let frame: ResponseFrame<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(frame.command.as_deref(), sample["command"].as_str());
            if frame.success {
                let data = frame.data.map(|data| data.get());
                same(line, &response_data(frame.command.as_deref().unwrap(), data), &sample["data"]);
            } else {
                assert_eq!(frame.error.as_deref(), sample["error"].as_str());
            }
            responses += 1;
        } else if Event::KINDS.iter().any(|known| kind == *known) {
            complete("", &mut sample);
            let event = Event::from_json(&sample.to_string()).unwrap();
            assert!(!matches!(event, Event::Unknown(_)), "line {line}");
            same(line, &event, &sample);
            events += 1;
        } else if sample["role"].is_string() {
            let message = AgentMessage::from_json(&sample.to_string()).unwrap();
            assert!(!matches!(message, AgentMessage::Unknown(_)), "line {line}");
            same(line, &message, &sample);
            messages += 1;
        } else if sample["contextWindow"].is_number() {
            let model: Model = serde_json::from_value(sample.clone()).unwrap();
            same(line, &model, &sample);
        } else if kind.is_string() {
            // Kinds that this version has no type for travel unharmed.
            let event = Event::from_json(&sample.to_string()).unwrap();
            same(line, &event, &sample);
        }
    }
    assert_eq!((commands, responses, events, messages), (22, 19, 18, 4));
}

#[test]
fn a_malformed_known_event_is_an_error_and_an_unknown_one_is_kept() {
    assert!(Event::from_json(r#"{"type":"agent_start"}"#).is_err());
    let text = r#"{"type":"brand_new","payload":{"a":[1,2.5,null]}}"#;
    let event = Event::from_json(text).unwrap();
    assert_eq!(event.kind(), "brand_new");
    assert_eq!(serde_json::to_string(&event).unwrap(), text);
}

#[test]
fn unknown_fields_and_words_survive() {
    let text = r#"{"role":"assistant","content":[{"type":"text","text":"a","new":1},{"type":"video","url":"x"}],"api":"a","provider":"p","model":"m","usage":{"input":1,"output":2,"cacheRead":0,"cacheWrite":0,"totalTokens":3,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}},"stopReason":"paused","timestamp":1,"later":{"z":1,"a":2}}"#;
    let message = AgentMessage::from_json(text).unwrap();
    assert_eq!(serde_json::to_string(&message).unwrap(), text);
}
