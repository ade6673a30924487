//! Estimates of token counts.
//!
//! Four characters count as a token, characters as UTF-16 units. Where a provider has counted, its
//! number is used, and only what came after it is estimated.

use std::borrow::Borrow;

use protocol_schema::message::AssistantMessage;
use protocol_schema::session::ContextUsage;
use protocol_schema::{AgentMessage, Content, ContentBlock, Extra, Model, Number, StopReason, Usage};

/// What an image counts, in characters.
const IMAGE_CHARACTERS: u64 = 4800;
const CHARACTERS_PER_TOKEN: u64 = 4;

/// Estimated tokens of one message.
#[must_use]
pub fn message_tokens(message: &AgentMessage) -> u64 {
    let characters = match message {
        // Images of the user count nothing, as everywhere in this format.
        AgentMessage::User(message) => content_characters(&message.content, 0),
        AgentMessage::Assistant(message) => message.content.iter().map(answer_characters).sum(),
        AgentMessage::ToolResult(message) => blocks_characters(&message.content, IMAGE_CHARACTERS),
        AgentMessage::Custom(message) => content_characters(&message.content, IMAGE_CHARACTERS),
        AgentMessage::BashExecution(message) => characters(&message.command) + characters(&message.output),
        AgentMessage::BranchSummary(message) => characters(&message.summary),
        AgentMessage::CompactionSummary(message) => characters(&message.summary),
        _ => 0,
    };
    characters.div_ceil(CHARACTERS_PER_TOKEN)
}

fn characters(text: &str) -> u64 {
    text.chars().map(|character| character.len_utf16() as u64).sum()
}

fn content_characters(content: &Content, image: u64) -> u64 {
    match content {
        Content::Text(text) => characters(text),
        Content::Blocks(blocks) => blocks_characters(blocks, image),
    }
}

fn blocks_characters(blocks: &[ContentBlock], image: u64) -> u64 {
    blocks
        .iter()
        .map(|block| match block {
            ContentBlock::Text(block) => characters(&block.text),
            ContentBlock::Image(_) => image,
            _ => 0,
        })
        .sum()
}

fn answer_characters(block: &ContentBlock) -> u64 {
    match block {
        ContentBlock::Text(block) => characters(&block.text),
        ContentBlock::Thinking(block) => characters(&block.thinking),
        ContentBlock::ToolCall(call) => {
            let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
            characters(&call.name) + characters(&arguments)
        }
        _ => 0,
    }
}

/// All tokens that an answer reports: `totalTokens`, or the sum of the four parts if that is 0.
#[must_use]
pub fn usage_total(usage: &Usage) -> u64 {
    match usage.total_tokens {
        Some(total) if total > 0 => total,
        _ => usage.input + usage.output + usage.cache_read + usage.cache_write,
    }
}

/// Whether an answer's usage says how long the conversation is.
fn counts(answer: &AssistantMessage) -> bool {
    !matches!(answer.stop_reason, StopReason::Error | StopReason::Aborted)
}

/// Tokens of a conversation: what the last good answer reported, and estimates of what followed.
#[must_use]
pub fn context_tokens<M: Borrow<AgentMessage>>(messages: &[M]) -> u64 {
    let reported = messages.iter().enumerate().rev().find_map(|(place, message)| match message.borrow() {
        AgentMessage::Assistant(answer) if counts(answer) => Some((place, usage_total(&answer.usage))),
        _ => None,
    });
    let (rest, reported) = match reported {
        Some((place, total)) => (&messages[place + 1..], total),
        None => (messages, 0),
    };
    reported + rest.iter().map(|message| message_tokens(message.borrow())).sum::<u64>()
}

/// How full the context window is; `None` without a model or a known window.
///
/// After a compaction the count is unknown until an answer reports one, for the answers that were
/// kept report the length from before it.
#[must_use]
pub fn context_usage<M: Borrow<AgentMessage>>(messages: &[M], model: Option<&Model>) -> Option<ContextUsage> {
    let window = model.map(|model| model.context_window).filter(|&window| window > 0)?;
    let compacted = messages
        .iter()
        .filter_map(|message| match message.borrow() {
            AgentMessage::CompactionSummary(summary) => Some(summary.timestamp),
            _ => None,
        })
        .max();
    let known = compacted.is_none_or(|at| {
        messages.iter().any(|message| match message.borrow() {
            AgentMessage::Assistant(answer) => {
                counts(answer) && usage_total(&answer.usage) > 0 && answer.timestamp >= at
            }
            _ => false,
        })
    });
    let tokens = known.then(|| context_tokens(messages));
    Some(ContextUsage {
        tokens,
        context_window: window,
        // Both are far below the integers a double can hold.
        percent: tokens.map(|tokens| Number(tokens as f64 / window as f64 * 100.0)),
        extra: Extra::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;
    use serde_json::json;

    fn message(value: serde_json::Value) -> AgentMessage {
        AgentMessage::from_json(&value.to_string()).unwrap()
    }

    fn user(text: &str) -> AgentMessage {
        message(json!({ "role": "user", "content": text, "timestamp": 1 }))
    }

    fn answer(timestamp: u64, reason: &str, usage: serde_json::Value) -> AgentMessage {
        let mut all = json!({ "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0,
            "cost": { "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0 } });
        all.as_object_mut().unwrap().extend(usage.as_object().unwrap().clone());
        message(json!({ "role": "assistant", "content": [{ "type": "text", "text": "12345678" }], "api": "a",
            "provider": "p", "model": "m", "usage": all, "stopReason": reason, "timestamp": timestamp }))
    }

    fn summary(timestamp: u64) -> AgentMessage {
        message(json!({ "role": "compactionSummary", "summary": "12345", "tokensBefore": 9, "timestamp": timestamp }))
    }

    #[test]
    fn each_role_counts_its_own_parts() {
        let image = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
        let text = json!({ "type": "text", "text": "12345" });
        for (value, tokens) in [
            (json!({ "role": "user", "content": "", "timestamp": 1 }), 0),
            (json!({ "role": "user", "content": "12345", "timestamp": 1 }), 2),
            // Two UTF-16 units each.
            (json!({ "role": "user", "content": "😀😀😀", "timestamp": 1 }), 2),
            (json!({ "role": "user", "content": "äöüß", "timestamp": 1 }), 1),
            (
                json!({ "role": "toolResult", "toolCallId": "c", "toolName": "read", "content": [text, image],
                    "isError": false, "timestamp": 1 }),
                1202,
            ),
            (json!({ "role": "custom", "customType": "x", "content": "12345", "display": true, "timestamp": 1 }), 2),
            (
                json!({ "role": "bashExecution", "command": "ls", "output": "abc", "cancelled": false,
                    "truncated": false, "timestamp": 1 }),
                2,
            ),
            (json!({ "role": "branchSummary", "summary": "123456789", "fromId": "a", "timestamp": 1 }), 3),
            (json!({ "role": "later", "content": "12345678" }), 0),
        ] {
            assert_eq!(message_tokens(&message(value.clone())), tokens, "{value}");
        }
        let blocks = || {
            vec![
                ContentBlock::text("12345"),
                ContentBlock::Image(protocol_schema::ImageContent::new("AA", "image/png")),
            ]
        };
        assert_eq!(message_tokens(&AgentMessage::User(protocol_schema::UserMessage::new(blocks(), 1))), 2);
        let mut custom =
            message(json!({ "role": "custom", "customType": "x", "content": "", "display": true, "timestamp": 1 }));
        let AgentMessage::Custom(body) = &mut custom else { panic!() };
        body.content = Content::Blocks(blocks());
        assert_eq!(message_tokens(&custom), 1202);
        let mut with_parts = answer(1, "stop", json!({}));
        let AgentMessage::Assistant(body) = &mut with_parts else { panic!() };
        body.content = serde_json::from_str(
            r#"[{"type":"thinking","thinking":"1234"},{"type":"text","text":"12"},
                {"type":"toolCall","id":"c","name":"read","arguments":{"path":"x"}}]"#,
        )
        .unwrap();
        // 4 + 2 + 4 + len({"path":"x"}) = 22
        assert_eq!(message_tokens(&with_parts), 6);
    }

    #[test]
    fn the_last_good_answer_reports_and_the_rest_is_estimated() {
        assert_eq!(context_tokens(&[user("12345678"), user("1")]), 3);
        let parts = json!({ "input": 10, "output": 5, "cacheRead": 3, "cacheWrite": 2 });
        assert_eq!(context_tokens(&[user("12345678"), answer(1, "stop", parts), user("12345")]), 22);
        let total = json!({ "input": 10, "totalTokens": 100 });
        assert_eq!(context_tokens(&[answer(1, "toolUse", total), user("12345"), answer(2, "error", json!({}))]), 104);
    }

    #[test]
    fn usage_is_relative_to_the_window() {
        let model = Model { context_window: 3000, ..Model::default() };
        let messages = [answer(1, "stop", json!({ "totalTokens": 100 }))];
        let usage = context_usage(&messages, Some(&model)).unwrap();
        assert_eq!((usage.tokens, usage.context_window), (Some(100), 3000));
        assert_eq!(usage.percent, Some(Number(100.0 / 3000.0 * 100.0)));
        assert_eq!(context_usage(&messages, None), None);
        assert_eq!(context_usage(&messages, Some(&Model::default())), None);
        assert_eq!(context_usage::<AgentMessage>(&[], Some(&model)).unwrap().tokens, Some(0));
    }

    #[test]
    fn after_a_compaction_usage_is_unknown_until_an_answer_reports_it() {
        let model = Model { context_window: 1000, ..Model::default() };
        let kept = answer(5, "stop", json!({ "totalTokens": 900 }));
        let usage = |messages: &[AgentMessage]| context_usage(messages, Some(&model)).unwrap().tokens;
        assert_eq!(usage(&[summary(10), kept.clone(), user("x")]), None);
        assert_eq!(usage(&[summary(10), kept.clone(), answer(11, "error", json!({ "totalTokens": 7 }))]), None);
        assert_eq!(usage(&[summary(10), kept.clone(), answer(11, "stop", json!({}))]), None);
        assert_eq!(
            usage(&[summary(10), kept, answer(11, "stop", json!({ "totalTokens": 300 })), user("1234")]),
            Some(301)
        );
    }
}
