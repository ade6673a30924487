//! The API against a server on loopback: `answers` are read, `requests` are written.

mod answers;
mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol_schema::{AgentMessage, ContentBlock, Model, ThinkingLevel, UserMessage};
use serde_json::json;

use super::*;
use crate::llm::Secret;

fn model(base_url: &str, compat: Value) -> Model {
    Model {
        id: "m".into(),
        api: API.into(),
        provider: "custom".into(),
        base_url: base_url.into(),
        input: vec!["text".into(), "image".into()],
        max_tokens: 64_000,
        cost: serde_json::from_value(json!({"input": 2, "output": 10, "cacheRead": 0.5, "cacheWrite": 0})).unwrap(),
        compat: Some(compat),
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

fn chunk(delta: Value) -> Value {
    json!({"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn finish(reason: &str) -> Value {
    json!({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn pieces(chunks: &[Value]) -> Vec<String> {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

fn text_chunks() -> Vec<Value> {
    vec![
        chunk(json!({"role": "assistant", "content": ""})),
        chunk(json!({"content": "Hé"})),
        chunk(json!({"content": "llo"})),
        finish("stop"),
        json!({"id": "c1", "choices": [], "usage": {
            "prompt_tokens": 1000, "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 400},
            "completion_tokens_details": {"reasoning_tokens": 5},
        }}),
    ]
}

fn with_done(chunks: &[Value]) -> Vec<String> {
    let mut pieces = vec![": keep alive\n\n".to_owned()];
    pieces.extend(self::pieces(chunks));
    pieces.push("data: [DONE]\n\n".into());
    pieces
}
