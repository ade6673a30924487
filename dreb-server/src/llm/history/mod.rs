//! Making a conversation fit for the model that gets it: other providers' answers are converted,
//! broken turns are left out, every tool call has exactly one result.

use std::borrow::Cow;
use std::collections::HashSet;

use protocol_schema::content::Content;
use protocol_schema::{
    AgentMessage, AssistantMessage, ContentBlock, Model, StopReason, TextContent, ThinkingContent, ToolResultMessage,
};

/// Text of the result that stands in for a missing one.
pub const MISSING_RESULT: &str = "No result provided";

/// What differs between the APIs.
pub trait Target {
    /// The form in which the API takes the id of a call that another model made.
    fn foreign_id(&self, id: &str, from: &AssistantMessage) -> String;

    /// Whether thinking of another model goes out as thinking and not as marked text.
    fn keeps_foreign_thinking(&self, _from: &AssistantMessage) -> bool {
        false
    }

    /// Longest id the API takes, in bytes.
    fn id_limit(&self) -> usize {
        64
    }

    /// Another id in place of `id`, which is taken; `attempt` counts from 2.
    fn other_id(&self, id: &str, attempt: usize) -> String {
        let suffix = format!("_{attempt}");
        let base = if id.is_empty() { "call" } else { id };
        format!("{}{suffix}", cut(base, self.id_limit().saturating_sub(suffix.len())))
    }
}

/// Applies the rules to a conversation of user, assistant and tool result messages; others are
/// dropped.
#[must_use]
pub fn prepare(messages: Vec<AgentMessage>, model: &Model, target: &dyn Target) -> Vec<AgentMessage> {
    let mut ids = Ids { target, used: HashSet::new() };
    let mut out = Vec::with_capacity(messages.len());
    let mut turn: Option<Turn> = None;
    for message in messages {
        match message {
            AgentMessage::Assistant(message) => {
                if let Some(turn) = turn.take() {
                    turn.close(&mut out, true);
                }
                if matches!(message.stop_reason, StopReason::Error | StopReason::Aborted) {
                    // Its results, if there are any, have no call and go too.
                    turn = Some(Turn::default());
                    continue;
                }
                let (message, calls) = convert(message, model, &mut ids);
                out.push(AgentMessage::Assistant(message));
                turn = Some(Turn { calls, ..Turn::default() });
            }
            AgentMessage::ToolResult(result) => {
                if let Some(turn) = &mut turn {
                    turn.take(result);
                }
            }
            AgentMessage::User(mut message) => {
                clean_content(&mut message.content);
                match &mut turn {
                    Some(turn) => turn.later.push(AgentMessage::User(message)),
                    None => out.push(AgentMessage::User(message)),
                }
            }
            _ => {}
        }
    }
    if let Some(turn) = turn {
        let answered = !turn.later.is_empty();
        turn.close(&mut out, answered);
    }
    out
}

/// An answer whose results and following user messages are being collected, so that the results
/// come right behind it, whatever stands between in the session.
#[derive(Default)]
struct Turn {
    calls: Vec<Call>,
    /// In the order they came, which is that of the session.
    results: Vec<AgentMessage>,
    later: Vec<AgentMessage>,
}

struct Call {
    /// The id in the session.
    original: String,
    /// The id that goes out.
    sent: String,
    name: String,
    timestamp: u64,
    is_answered: bool,
}

impl Turn {
    /// Gives a result to the first call with its id that has none. A result without a call, which
    /// every API refuses, is dropped.
    fn take(&mut self, mut result: ToolResultMessage) {
        let call = self.calls.iter_mut().find(|call| call.original == result.tool_call_id && !call.is_answered);
        if let Some(call) = call {
            call.is_answered = true;
            result.tool_call_id.clone_from(&call.sent);
            result.content.iter_mut().for_each(clean_block);
            self.results.push(AgentMessage::ToolResult(result));
        }
    }

    /// Writes out the results and what came after them. Calls that wait at the very end of the
    /// conversation are left as they are: `complete` says that something follows.
    fn close(self, out: &mut Vec<AgentMessage>, complete: bool) {
        out.extend(self.results);
        let missing = self.calls.into_iter().filter(|call| complete && !call.is_answered);
        out.extend(missing.map(|call| {
            AgentMessage::ToolResult(ToolResultMessage::new(
                call.sent,
                call.name,
                vec![ContentBlock::text(MISSING_RESULT)],
                None,
                true,
                call.timestamp,
            ))
        }));
        out.extend(self.later);
    }
}

/// Ids that are unique within the request.
struct Ids<'a> {
    target: &'a dyn Target,
    used: HashSet<String>,
}

impl Ids<'_> {
    fn claim(&mut self, id: String) -> String {
        let mut claimed = id.clone();
        let mut attempt = 2;
        while claimed.is_empty() || self.used.contains(&claimed) {
            claimed = self.target.other_id(&id, attempt);
            attempt += 1;
        }
        self.used.insert(claimed.clone());
        claimed
    }
}

fn convert(mut message: AssistantMessage, model: &Model, ids: &mut Ids<'_>) -> (AssistantMessage, Vec<Call>) {
    let same = message.provider == model.provider && message.api == model.api && message.model == model.id;
    let keep_thinking = !same && ids.target.keeps_foreign_thinking(&message);
    let blocks = std::mem::take(&mut message.content);
    let visible: Vec<bool> = blocks.iter().map(|block| block.as_text().is_some_and(|text| !is_blank(text))).collect();
    let first_text = visible.iter().position(|is| *is);
    let last_text = visible.iter().rposition(|is| *is);
    let mut calls = Vec::new();
    let mut content = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            ContentBlock::Text(mut text) => {
                if is_blank(&text.text) {
                    continue;
                }
                clean_string(&mut text.text);
                if !same {
                    text.text_signature = None;
                }
                content.push(ContentBlock::Text(text));
            }
            ContentBlock::Thinking(thinking) => {
                let text_before = first_text.is_some_and(|first| first < index);
                let text_after = last_text.is_some_and(|last| last > index);
                content.extend(convert_thinking(thinking, same, keep_thinking, text_before, text_after));
            }
            ContentBlock::ToolCall(mut call) => {
                let original = call.id.clone();
                if !same {
                    call.thought_signature = None;
                    call.id = ids.target.foreign_id(&call.id, &message);
                }
                call.id = ids.claim(call.id);
                calls.push(Call {
                    original,
                    sent: call.id.clone(),
                    name: call.name.clone(),
                    timestamp: message.timestamp,
                    is_answered: false,
                });
                content.push(ContentBlock::ToolCall(call));
            }
            other => content.push(other),
        }
    }
    message.content = content;
    (message, calls)
}

fn convert_thinking(
    mut thinking: ThinkingContent,
    same: bool,
    keep_foreign: bool,
    text_before: bool,
    text_after: bool,
) -> Option<ContentBlock> {
    let signed = thinking.thinking_signature.as_deref().is_some_and(|signature| !signature.is_empty());
    if thinking.redacted == Some(true) {
        return same.then_some(ContentBlock::Thinking(thinking));
    }
    if same && signed {
        return Some(ContentBlock::Thinking(thinking));
    }
    if is_blank(&thinking.thinking) {
        return None;
    }
    clean_string(&mut thinking.thinking);
    if same || keep_foreign {
        return Some(ContentBlock::Thinking(thinking));
    }
    let mut text = String::new();
    if text_before {
        text.push_str("\n\n");
    }
    text.push_str("<reformatted-pre-switch-reasoning>\n");
    text.push_str(&thinking.thinking);
    text.push_str("\n</reformatted-pre-switch-reasoning>");
    if text_after {
        text.push_str("\n\n");
    }
    Some(ContentBlock::Text(TextContent::new(text)))
}

/// Leaves out the thinking at the end of an answer, where some APIs refuse it. An answer of nothing
/// but thinking becomes empty and is then not sent.
pub fn trim_trailing_thinking(message: &mut AssistantMessage) {
    while matches!(message.content.last(), Some(ContentBlock::Thinking(_))) {
        message.content.pop();
    }
}

/// Whether any call stands in the conversation.
#[must_use]
pub fn has_tool_calls(messages: &[AgentMessage]) -> bool {
    messages.iter().any(|message| match message {
        AgentMessage::Assistant(message) => message.tool_calls().next().is_some(),
        AgentMessage::ToolResult(_) => true,
        _ => false,
    })
}

/// Whether there is nothing but white space.
#[must_use]
pub fn is_blank(text: &str) -> bool {
    text.chars().all(|next| next.is_whitespace() || next == '\0')
}

/// The text without NUL characters, which models' APIs refuse.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "")) } else { Cow::Borrowed(text) }
}

fn clean_string(text: &mut String) {
    if text.contains('\0') {
        text.retain(|next| next != '\0');
    }
}

fn clean_block(block: &mut ContentBlock) {
    if let ContentBlock::Text(text) = block {
        clean_string(&mut text.text);
    }
}

fn clean_content(content: &mut Content) {
    match content {
        Content::Text(text) => clean_string(text),
        Content::Blocks(blocks) => blocks.iter_mut().for_each(clean_block),
    }
}

/// The id with every character outside `[A-Za-z0-9_-]` replaced by `_`, cut to `limit`.
#[must_use]
pub fn sanitized_id(id: &str, limit: usize) -> String {
    id.chars()
        .map(|next| if next.is_ascii_alphanumeric() || matches!(next, '_' | '-') { next } else { '_' })
        .take(limit)
        .collect()
}

/// At most `limit` bytes of the text, cut between characters.
#[must_use]
pub fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
