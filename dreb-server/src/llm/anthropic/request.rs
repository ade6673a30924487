//! The request: address, headers and body.

use protocol_schema::content::{Content, ImageContent};
use protocol_schema::{
    AgentMessage, AssistantMessage, ContentBlock, Model, ThinkingLevel, ToolResultMessage, UserMessage,
};
use reqwest::Url;
use serde_json::{Map, Value, json};

use crate::llm::cache_retention::CacheRetention;
use crate::llm::effort::{self, Effort};
use crate::llm::history::{self, Target, clean, is_blank, sanitized_id};
use crate::llm::http::{ErrorStyle, Headers, Post};
use crate::llm::{ProviderError, ProviderRequest, ToolDefinition, copilot, thinking};

/// Streams tool arguments as they are written, without waiting for whole values.
const BETA_TOOL_STREAMING: &str = "fine-grained-tool-streaming-2025-05-14";
/// Lets models with a thinking budget think between tool calls.
const BETA_INTERLEAVED_THINKING: &str = "interleaved-thinking-2025-05-14";
/// Makes the API take an OAuth token.
const BETA_OAUTH: &str = "oauth-2025-04-20";

/// The smallest thinking budget the API takes, in tokens.
const MIN_BUDGET: u64 = 1024;
/// Longest tool call id the API takes.
const MAX_ID: usize = 64;

/// Builds the request.
pub(super) fn post(request: ProviderRequest, retention: CacheRetention) -> Result<Post, ProviderError> {
    let ProviderRequest { model, messages, .. } = &request;
    let headers = headers(model, messages, &request)?;
    let (headers, secrets) = headers.into_parts();
    let url = format!("{}/v1/messages", model.base_url.trim_end_matches('/'));
    let body = body(request, retention).to_string().into_bytes();
    Ok(Post { url, headers, body, errors: ErrorStyle::Anthropic, secrets })
}

fn headers(model: &Model, messages: &[AgentMessage], request: &ProviderRequest) -> Result<Headers, ProviderError> {
    let mut headers = Headers::new(&model.provider);
    headers.set("accept", "application/json")?;
    headers.set("anthropic-version", "2023-06-01")?;
    let key = request.api_key.as_ref();
    let first_party = is_first_party(&model.base_url);
    let is_oauth =
        first_party && model.auth_mode.is_none() && key.is_some_and(|key| key.expose().contains("sk-ant-oat"));
    let is_bearer = is_oauth || model.auth_mode.as_deref() == Some("bearer") || copilot::is_copilot(model);
    let mut betas = Vec::new();
    if first_party {
        headers.set("anthropic-dangerous-direct-browser-access", "true")?;
        betas.push(BETA_TOOL_STREAMING);
    }
    if (first_party || copilot::is_copilot(model)) && !thinking::is_adaptive(model) {
        betas.push(BETA_INTERLEAVED_THINKING);
    }
    if is_oauth {
        betas.push(BETA_OAUTH);
    }
    if !betas.is_empty() {
        headers.set("anthropic-beta", &betas.join(","))?;
    }
    if let (Some(key), false) = (key, is_bearer) {
        headers.set_key("x-api-key", key)?;
    }
    if let (Some(session), true) = (&request.session_id, compat_flag(model, "sendSessionAffinityHeaders")) {
        headers.set("x-session-affinity", session)?;
    }
    headers.add_model(model)?;
    if let (Some(key), true) = (key, is_bearer) {
        // After the model's headers: one stored there may be of an older token.
        headers.set_key("authorization", key)?;
    }
    if copilot::is_copilot(model) {
        copilot::add_headers(&mut headers, messages)?;
    }
    if !headers.has("authorization") && !headers.has("x-api-key") {
        return Err(ProviderError::other(format!("No API key for provider: {}", model.provider)));
    }
    Ok(headers)
}

fn is_first_party(base_url: &str) -> bool {
    let url = Url::parse(base_url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    host == "api.anthropic.com" || host.ends_with(".api.anthropic.com")
}

pub(super) fn body(request: ProviderRequest, retention: CacheRetention) -> Value {
    let model = request.model.clone();
    let cache_control = cache_control(&model, retention);
    let Thinking { max_tokens, thinking, effort } = Thinking::of(&request);
    let form = Form {
        images: model.input.iter().any(|kind| kind == "image"),
        unsigned_thinking: compat_flag(&model, "allowEmptySignature"),
    };
    let history = history::prepare(request.messages, &model, &AnthropicTarget);
    let mut body = json!({
        "model": model.wire_model_id.as_ref().unwrap_or(&model.id),
        "messages": messages(history, form, cache_control.as_ref()),
        "max_tokens": max_tokens,
        "stream": true,
    });
    let system = clean(&request.system_prompt);
    if !is_blank(&system) {
        let mut block = json!({"type": "text", "text": system});
        mark(&mut block, cache_control.as_ref());
        body["system"] = json!([block]);
    }
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    if let Some(thinking) = thinking {
        body["thinking"] = thinking;
    }
    if let Some(effort) = effort {
        body["output_config"] = json!({"effort": effort});
    }
    body
}

struct AnthropicTarget;

impl Target for AnthropicTarget {
    fn foreign_id(&self, id: &str, _: &AssistantMessage) -> String {
        sanitized_id(id, MAX_ID)
    }

    fn id_limit(&self) -> usize {
        MAX_ID
    }
}

fn cache_control(model: &Model, retention: CacheRetention) -> Option<Value> {
    match retention {
        CacheRetention::None => None,
        CacheRetention::Long if model.base_url.contains("api.anthropic.com") => {
            Some(json!({"type": "ephemeral", "ttl": "1h"}))
        }
        _ => Some(json!({"type": "ephemeral"})),
    }
}

fn mark(block: &mut Value, cache_control: Option<&Value>) {
    if let Some(cache_control) = cache_control {
        block["cache_control"] = cache_control.clone();
    }
}

fn tool(tool: &ToolDefinition) -> Value {
    let part = |name: &str, default: Value| tool.parameters.get(name).cloned().unwrap_or(default);
    json!({
        "name": tool.name,
        "description": tool.description,
        "input_schema": {
            "type": "object",
            "properties": part("properties", json!({})),
            "required": part("required", json!([])),
        },
    })
}

/// How much the model may think and write.
struct Thinking {
    max_tokens: u64,
    thinking: Option<Value>,
    effort: Option<String>,
}

impl Thinking {
    fn of(request: &ProviderRequest) -> Self {
        let model = &*request.model;
        let plain = |thinking| Self { max_tokens: request.max_tokens, thinking, effort: None };
        if !model.reasoning {
            return plain(None);
        }
        // A model that always thinks refuses to be told not to.
        let can_be_off = effort::of(model, &ThinkingLevel::Off) != Effort::AlwaysOn;
        let disabled = can_be_off.then(|| json!({"type": "disabled"}));
        if request.thinking == ThinkingLevel::Off {
            return plain(disabled);
        }
        if thinking::is_adaptive(model) {
            let display = request.thinking_display.as_deref().unwrap_or("summarized");
            let effort = adaptive_effort(model, &request.thinking);
            return Self { effort: Some(effort), ..plain(Some(json!({"type": "adaptive", "display": display}))) };
        }
        let level = if request.thinking == ThinkingLevel::Xhigh { &ThinkingLevel::High } else { &request.thinking };
        let wish = request.thinking_budgets.get(level.as_str()).copied();
        let mut budget = wish.unwrap_or_else(|| thinking::default_budget(level));
        let max_tokens = request.max_tokens.saturating_add(budget).min(model.max_tokens);
        if max_tokens <= budget {
            budget = max_tokens.saturating_sub(MIN_BUDGET);
        }
        let budget = guarded_budget(budget, max_tokens);
        if budget < MIN_BUDGET {
            // No room to think; the API refuses less.
            return plain(disabled);
        }
        let thinking = Some(json!({"type": "enabled", "budget_tokens": budget}));
        Self { max_tokens, thinking, effort: None }
    }
}

/// The effort that an adaptive model takes for a level.
fn adaptive_effort(model: &Model, level: &ThinkingLevel) -> String {
    if *level == ThinkingLevel::Xhigh && thinking::supports_xhigh(model) {
        // The highest level means all the model can do, also where an effort `xhigh` lies below.
        return match (effort::most(model), effort::of(model, level)) {
            (Some(word), _) | (None, Effort::Word(word)) => word,
            _ => "max".to_owned(),
        };
    }
    let level = if *level == ThinkingLevel::Xhigh { &ThinkingLevel::High } else { level };
    match (effort::of(model, level), level) {
        (Effort::Word(word), _) => word,
        (_, ThinkingLevel::Minimal | ThinkingLevel::Low) => "low".to_owned(),
        (_, ThinkingLevel::Medium) => "medium".to_owned(),
        _ => "high".to_owned(),
    }
}

/// Keeps room for the answer beside the thinking.
fn guarded_budget(wish: u64, max_tokens: u64) -> u64 {
    let wish = if wish == 0 { MIN_BUDGET } else { wish };
    let room = max_tokens.saturating_sub((max_tokens / 4).max(4096)).max(MIN_BUDGET);
    wish.min(room).min(max_tokens.saturating_sub(1))
}

/// What the model takes.
#[derive(Clone, Copy)]
struct Form {
    images: bool,
    /// Thinking without a signature, from servers that sign none.
    unsigned_thinking: bool,
}

fn compat_flag(model: &Model, name: &str) -> bool {
    model.compat.as_ref().and_then(|compat| compat.get(name)) == Some(&Value::Bool(true))
}

fn messages(history: Vec<AgentMessage>, form: Form, cache_control: Option<&Value>) -> Vec<Value> {
    let images = form.images;
    let mut out: Vec<Value> = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    for message in history {
        if let AgentMessage::ToolResult(result) = message {
            results.push(tool_result(result, images));
            continue;
        }
        flush(&mut results, &mut out);
        let (role, blocks) = match message {
            AgentMessage::User(message) => ("user", user_blocks(message, images)),
            AgentMessage::Assistant(mut message) => {
                // The API refuses an answer that ends in thinking.
                history::trim_trailing_thinking(&mut message);
                ("assistant", message.content.into_iter().filter_map(|block| assistant_block(block, form)).collect())
            }
            _ => continue,
        };
        if !blocks.is_empty() {
            out.push(json!({"role": role, "content": blocks}));
        }
    }
    flush(&mut results, &mut out);
    if let Some(last) = out.last_mut().filter(|last| last["role"] == "user")
        && let Some(block) = last["content"].as_array_mut().and_then(|blocks| blocks.last_mut())
    {
        mark(block, cache_control);
    }
    out
}

fn flush(results: &mut Vec<Value>, out: &mut Vec<Value>) {
    if !results.is_empty() {
        out.push(json!({"role": "user", "content": std::mem::take(results)}));
    }
}

fn user_blocks(message: UserMessage, images: bool) -> Vec<Value> {
    match message.content {
        Content::Text(text) if is_blank(&text) => Vec::new(),
        Content::Text(text) => vec![text_block(text)],
        Content::Blocks(blocks) => blocks.into_iter().filter_map(|block| shown_block(block, images)).collect(),
    }
}

/// A text or image block of a user message or tool result.
fn shown_block(block: ContentBlock, images: bool) -> Option<Value> {
    match block {
        ContentBlock::Text(text) if !is_blank(&text.text) => Some(text_block(text.text)),
        ContentBlock::Image(image) if images => Some(image_block(image)),
        _ => None,
    }
}

fn text_block(text: String) -> Value {
    json!({"type": "text", "text": text})
}

fn image_block(image: ImageContent) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": image.mime_type, "data": image.data}})
}

fn assistant_block(block: ContentBlock, form: Form) -> Option<Value> {
    match block {
        ContentBlock::Text(text) if !is_blank(&text.text) => Some(text_block(text.text)),
        ContentBlock::Thinking(thinking) => {
            let signature = thinking.thinking_signature.filter(|signature| !signature.is_empty());
            match signature {
                Some(data) if thinking.redacted == Some(true) => {
                    Some(json!({"type": "redacted_thinking", "data": data}))
                }
                Some(signature) => {
                    Some(json!({"type": "thinking", "thinking": thinking.thinking, "signature": signature}))
                }
                // Thinking that was cut off before its signature came.
                None if thinking.redacted == Some(true) || is_blank(&thinking.thinking) => None,
                None if form.unsigned_thinking => {
                    Some(json!({"type": "thinking", "thinking": thinking.thinking, "signature": ""}))
                }
                None => Some(text_block(thinking.thinking)),
            }
        }
        ContentBlock::ToolCall(call) => {
            Some(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": Value::Object(call.arguments)}))
        }
        _ => None,
    }
}

fn tool_result(result: ToolResultMessage, images: bool) -> Value {
    let has_image = images && result.content.iter().any(|block| matches!(block, ContentBlock::Image(_)));
    let content = if has_image {
        let mut blocks: Vec<Value> =
            result.content.into_iter().filter_map(|block| shown_block(block, images)).collect();
        if !blocks.iter().any(|block| block["type"] == "text") {
            blocks.insert(0, text_block("(see attached image)".to_owned()));
        }
        Value::Array(blocks)
    } else {
        Value::String(protocol_schema::content::joined_text(&result.content, "\n"))
    };
    let mut block = Map::new();
    block.insert("type".into(), "tool_result".into());
    block.insert("tool_use_id".into(), result.tool_call_id.into());
    block.insert("content".into(), content);
    block.insert("is_error".into(), result.is_error.into());
    Value::Object(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_leaves_room_for_the_answer() {
        for (wish, max_tokens, expected) in [
            (16384, 48384, 16384),
            (16384, 16384, 12288),
            (0, 32000, 1024),
            (30000, 32000, 24000),
            (2048, 4000, 1024),
            (2048, 1000, 999),
            (1024, 0, 0),
        ] {
            assert_eq!(guarded_budget(wish, max_tokens), expected, "{wish} of {max_tokens}");
        }
    }

    #[test]
    fn hosts_of_the_first_party() {
        for (url, expected) in [
            ("https://api.anthropic.com", true),
            ("https://eu.api.anthropic.com/x", true),
            ("https://api.anthropic.com.evil.example", false),
            ("https://notapi.anthropic.com", false),
            ("http://127.0.0.1:1/api.anthropic.com", false),
            ("", false),
        ] {
            assert_eq!(is_first_party(url), expected, "{url}");
        }
    }
}
