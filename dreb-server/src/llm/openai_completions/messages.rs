//! The conversation in the API's form.

use protocol_schema::content::{Content, ImageContent, joined_text};
use protocol_schema::{
    AgentMessage, AssistantMessage, ContentBlock, Model, ThinkingContent, ToolResultMessage, UserMessage,
};
use serde_json::{Value, json};

use super::compat::Compat;
use crate::llm::history::is_blank;

/// Fields in which servers stream thinking; the one it came in is the block's signature and the
/// field it goes back in.
pub(super) const THINKING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

const IMAGE_OMITTED: &str = "[image omitted: model does not support images]";
const ONLY_IMAGE: &str = "(see attached image)";
const TOOL_IMAGE_OMITTED: &str = "[tool image omitted: model does not support images]";
const ONLY_IMAGE_OMITTED: &str = "(image omitted: model does not support images)";
const TOOL_IMAGES: &str = "Attached image(s) from tool result:";
/// Stands between results and a user message where a server wants an answer there.
const RESULTS_TAKEN: &str = "Tool results received.";

/// Appends the messages to `out`.
pub(super) fn convert(history: Vec<AgentMessage>, model: &Model, compat: &Compat, out: &mut Vec<Value>) {
    let takes_images = model.input.iter().any(|kind| kind == "image");
    let requires_reasoning = compat.requires_reasoning_content && model.reasoning;
    let mut images: Vec<Value> = Vec::new();
    for message in history {
        match message {
            AgentMessage::ToolResult(result) => out.push(tool_result(result, takes_images, compat, &mut images)),
            AgentMessage::User(message) => {
                flush_images(&mut images, compat, out);
                if let Some(content) = user_content(message, takes_images) {
                    push_user(content, compat, out);
                }
            }
            AgentMessage::Assistant(message) => {
                flush_images(&mut images, compat, out);
                out.extend(assistant(message, requires_reasoning, compat));
            }
            _ => {}
        }
    }
    flush_images(&mut images, compat, out);
}

fn push_user(content: Value, compat: &Compat, out: &mut Vec<Value>) {
    if compat.requires_assistant_after_tool_result && out.last().is_some_and(|last| last["role"] == "tool") {
        out.push(json!({"role": "assistant", "content": RESULTS_TAKEN}));
    }
    out.push(json!({"role": "user", "content": content}));
}

/// Sends the images of the results before, which the role `tool` cannot carry.
fn flush_images(images: &mut Vec<Value>, compat: &Compat, out: &mut Vec<Value>) {
    if !images.is_empty() {
        let mut parts = vec![text_part(TOOL_IMAGES.to_owned())];
        parts.append(images);
        push_user(parts.into(), compat, out);
    }
}

fn user_content(message: UserMessage, takes_images: bool) -> Option<Value> {
    let blocks = match message.content {
        Content::Text(text) => return (!is_blank(&text)).then(|| text.into()),
        Content::Blocks(blocks) => blocks,
    };
    let mut omitted = false;
    let mut parts: Vec<Value> = Vec::with_capacity(blocks.len());
    for block in blocks {
        match block {
            ContentBlock::Text(text) if !is_blank(&text.text) => parts.push(text_part(text.text)),
            ContentBlock::Image(image) if takes_images => parts.push(image_part(image)),
            ContentBlock::Image(_) => omitted = true,
            _ => {}
        }
    }
    if omitted {
        parts.push(text_part(IMAGE_OMITTED.to_owned()));
    }
    (!parts.is_empty()).then(|| parts.into())
}

fn text_part(text: String) -> Value {
    json!({"type": "text", "text": text})
}

fn image_part(image: ImageContent) -> Value {
    json!({"type": "image_url", "image_url": {"url": format!("data:{};base64,{}", image.mime_type, image.data)}})
}

/// `None` for an answer of which nothing can be sent.
fn assistant(message: AssistantMessage, requires_reasoning: bool, compat: &Compat) -> Option<Value> {
    let mut text = String::new();
    let mut thinking: Vec<ThinkingContent> = Vec::new();
    let mut calls: Vec<Value> = Vec::new();
    let mut details: Vec<Value> = Vec::new();
    for block in message.content {
        match block {
            ContentBlock::Text(block) if !is_blank(&block.text) => text.push_str(&block.text),
            ContentBlock::Thinking(block) if !is_blank(&block.thinking) => thinking.push(block),
            ContentBlock::ToolCall(call) => {
                let detail =
                    call.thought_signature.and_then(|signature| serde_json::from_str::<Value>(&signature).ok());
                details.extend(detail.filter(Value::is_object));
                calls.push(json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": Value::Object(call.arguments).to_string()},
                }));
            }
            _ => {}
        }
    }
    if compat.requires_thinking_as_text && !thinking.is_empty() {
        let parts = thinking.iter().map(|block| block.thinking.as_str());
        let parts: Vec<&str> = parts.chain((!text.is_empty()).then_some(text.as_str())).collect();
        text = parts.join("\n\n");
        thinking.clear();
    }
    if text.is_empty() && calls.is_empty() {
        return None;
    }
    let content = match text.is_empty() {
        false => text.into(),
        true if compat.requires_assistant_after_tool_result => "".into(),
        true => Value::Null,
    };
    let mut out = json!({"role": "assistant", "content": content});
    for field in THINKING_FIELDS {
        let parts = thinking.iter().filter(|block| block.thinking_signature.as_deref() == Some(field));
        let parts: Vec<&str> = parts.map(|block| block.thinking.as_str()).collect();
        if !parts.is_empty() {
            out[field] = parts.join("\n").into();
        }
    }
    if requires_reasoning && out.get(THINKING_FIELDS[0]).is_none() {
        out[THINKING_FIELDS[0]] = "".into();
    }
    if !calls.is_empty() {
        out["tool_calls"] = calls.into();
    }
    if !details.is_empty() {
        out["reasoning_details"] = details.into();
    }
    Some(out)
}

fn tool_result(result: ToolResultMessage, takes_images: bool, compat: &Compat, images: &mut Vec<Value>) -> Value {
    let text = joined_text(&result.content, "\n");
    let has_images = result.content.iter().any(|block| matches!(block, ContentBlock::Image(_)));
    let content = match (text.is_empty(), has_images, takes_images) {
        (true, true, true) => ONLY_IMAGE.to_owned(),
        (true, true, false) => ONLY_IMAGE_OMITTED.to_owned(),
        (false, true, false) => format!("{text}\n{TOOL_IMAGE_OMITTED}"),
        _ => text,
    };
    if takes_images {
        images.extend(result.content.into_iter().filter_map(|block| match block {
            ContentBlock::Image(image) => Some(image_part(image)),
            _ => None,
        }));
    }
    let mut out = json!({"role": "tool", "content": content, "tool_call_id": result.tool_call_id});
    if compat.requires_tool_result_name {
        out["name"] = result.tool_name.into();
    }
    out
}

/// Marks the last text of the last user or assistant message that has one.
pub(super) fn mark_cache(messages: &mut [Value]) {
    for message in messages.iter_mut().rev() {
        if message["role"] != "user" && message["role"] != "assistant" {
            continue;
        }
        if let Some(text) = message["content"].as_str().filter(|text| !text.is_empty()) {
            message["content"] = json!([text_part(text.to_owned())]);
        }
        let parts = message["content"].as_array_mut();
        let text = parts.and_then(|parts| parts.iter_mut().rev().find(|part| part["type"] == "text"));
        if let Some(text) = text {
            text["cache_control"] = json!({"type": "ephemeral"});
            return;
        }
    }
}
