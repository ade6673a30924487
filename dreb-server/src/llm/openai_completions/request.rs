//! The request: address, headers and body.

use protocol_schema::{AssistantMessage, Model, ThinkingLevel};
use serde_json::{Map, Value, json};

use super::compat::{Compat, ThinkingFormat};
use super::{API, messages};
use crate::llm::effort::Effort;
use crate::llm::history::{self, Target, clean, cut, is_blank, sanitized_id};
use crate::llm::http::{ErrorStyle, Headers, Post};
use crate::llm::{ProviderError, ProviderRequest, ToolDefinition, copilot};

/// Longest tool call id the API takes.
const MAX_ID: usize = 40;

/// Builds the request.
pub(super) fn post(request: ProviderRequest) -> Result<Post, ProviderError> {
    let model = request.model.clone();
    let (headers, secrets) = headers(&request)?.into_parts();
    let url = format!("{}/chat/completions", model.base_url.trim_end_matches('/'));
    let body = body(request).to_string().into_bytes();
    Ok(Post { url, headers, body, errors: ErrorStyle::OpenAi, secrets })
}

fn headers(request: &ProviderRequest) -> Result<Headers, ProviderError> {
    let model = &*request.model;
    let mut headers = Headers::new(&model.provider);
    headers.set("accept", "application/json")?;
    let is_bearer = model.auth_mode.as_deref() == Some("bearer");
    if let (Some(key), false) = (&request.api_key, is_bearer) {
        headers.set_key("authorization", key)?;
    }
    if let (Some(session), true) = (&request.session_id, Compat::of(model).sends_session_affinity) {
        headers.set("x-session-affinity", session)?;
    }
    headers.add_model(model)?;
    if let (Some(key), true) = (&request.api_key, is_bearer) {
        // After the model's headers: one stored there may be of an older token.
        headers.set_key("authorization", key)?;
    }
    if copilot::is_copilot(model) {
        copilot::add_headers(&mut headers, &request.messages)?;
    }
    if request.api_key.is_none() && !headers.has("authorization") {
        return Err(ProviderError::other(format!("No API key for provider: {}", model.provider)));
    }
    Ok(headers)
}

pub(super) fn body(request: ProviderRequest) -> Value {
    let model = &*request.model.clone();
    let compat = Compat::of(model);
    let history = history::prepare(request.messages, model, &CompletionsTarget { model, compat: &compat });
    let has_calls = history::has_tool_calls(&history);
    let mut messages = Vec::with_capacity(history.len() + 1);
    let system = clean(&request.system_prompt);
    if !is_blank(&system) {
        let role = if model.reasoning && compat.supports_developer_role { "developer" } else { "system" };
        messages.push(json!({"role": role, "content": system}));
    }
    messages::convert(history, model, &compat, &mut messages);
    if compat.marks_cache {
        messages::mark_cache(&mut messages);
    }

    let mut body = json!({
        "model": model.wire_model_id.as_ref().unwrap_or(&model.id),
        "messages": messages,
        "stream": true,
    });
    if compat.supports_usage_in_streaming {
        body["stream_options"] = json!({"include_usage": true});
    }
    if compat.supports_store {
        body["store"] = false.into();
    }
    body[compat.max_tokens_field] = request.max_tokens.into();
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(|definition| tool(definition, &compat)).collect();
        if compat.asks_tool_stream {
            body["tool_stream"] = true.into();
        }
    } else if has_calls {
        // Gateways to Claude refuse a history with calls when no tools are named.
        body["tools"] = json!([]);
    }
    if model.reasoning {
        add_thinking(&mut body, model, &request.thinking, &compat);
    }
    if let (ThinkingFormat::Kimi, Some(session)) = (compat.thinking_format, request.session_id) {
        body["prompt_cache_key"] = session.into();
    }
    if let Some(routing) = compat.open_router_routing {
        body["provider"] = routing;
    }
    if let Some(Value::Object(routing)) = compat.vercel_gateway_routing {
        let gateway: Map<String, Value> =
            routing.into_iter().filter(|(name, _)| matches!(name.as_str(), "only" | "order")).collect();
        if !gateway.is_empty() {
            body["providerOptions"] = json!({"gateway": gateway});
        }
    }
    body
}

fn tool(tool: &ToolDefinition, compat: &Compat) -> Value {
    let mut function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
    if compat.supports_strict_mode {
        function["strict"] = false.into();
    }
    json!({"type": "function", "function": function})
}

fn add_thinking(body: &mut Value, model: &Model, level: &ThinkingLevel, compat: &Compat) {
    let is_on = *level != ThinkingLevel::Off;
    let (word, always_on) = match compat.effort(model, level) {
        Effort::Word(word) => (Some(word), false),
        Effort::Usual => (None, false),
        Effort::AlwaysOn => (None, true),
    };
    if always_on {
        return;
    }
    let mapped = word.clone().unwrap_or_else(|| level.as_str().to_owned());
    let effort = |body: &mut Value| {
        // A word for `off` exists only where a map gives one.
        if compat.supports_reasoning_effort && (is_on || word.is_some()) {
            body["reasoning_effort"] = mapped.as_str().into();
        }
    };
    match compat.thinking_format {
        ThinkingFormat::OpenAi => effort(body),
        ThinkingFormat::OpenRouter => {
            let effort = if is_on { mapped } else { word.unwrap_or_else(|| "none".to_owned()) };
            body["reasoning"] = json!({"effort": effort});
        }
        ThinkingFormat::EnableThinking => body["enable_thinking"] = is_on.into(),
        ThinkingFormat::QwenChatTemplate => body["chat_template_kwargs"] = json!({"enable_thinking": is_on}),
        ThinkingFormat::DeepSeek => {
            body["thinking"] = json!({"type": if is_on { "enabled" } else { "disabled" }});
            if is_on {
                effort(body);
            }
        }
        ThinkingFormat::Together => {
            body["reasoning"] = json!({"enabled": is_on});
            if is_on {
                effort(body);
            }
        }
        // Off is left to the server's default.
        ThinkingFormat::Kimi if !is_on => {}
        ThinkingFormat::Kimi => {
            body["thinking"] = match mapped.as_str() {
                "off" => json!({"type": "disabled"}),
                "auto" => json!({"type": "enabled"}),
                effort => json!({"type": "enabled", "effort": effort}),
            };
        }
    }
}

struct CompletionsTarget<'a> {
    model: &'a Model,
    compat: &'a Compat,
}

impl Target for CompletionsTarget<'_> {
    fn foreign_id(&self, id: &str, _: &AssistantMessage) -> String {
        // Ids of the Responses API have the call's id before the bar and the item's behind it.
        match id.split_once('|') {
            Some((call, _)) => sanitized_id(call, MAX_ID),
            None if self.model.provider == "openai" => cut(id, MAX_ID).to_owned(),
            None => id.to_owned(),
        }
    }

    fn keeps_foreign_thinking(&self, from: &AssistantMessage) -> bool {
        from.provider == self.model.provider
            && from.api == API
            && self.model.api == API
            && self.model.reasoning
            && !self.compat.requires_thinking_as_text
    }

    fn id_limit(&self) -> usize {
        MAX_ID
    }
}
