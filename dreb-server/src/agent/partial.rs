//! The answer that is being streamed, as a message and as JSON.
//!
//! Each `message_update` of the wire repeats the whole partial message. Its JSON is therefore kept as
//! one growing buffer a block and only copied, never serialised again.

use protocol_schema::content::{ThinkingContent, ToolCall};
use protocol_schema::{AssistantMessage, ContentBlock};

use super::arguments::ArgumentText;
use crate::llm::StreamEvent;
use crate::llm::partial_json::parse_object;

/// Text of a thinking block that the provider hides.
const REDACTED_TEXT: &str = "[Reasoning redacted]";

/// What has changed in the partial message; stands for an assistant message event of the wire.
#[derive(Debug)]
#[allow(missing_docs)] // the wire types in protocol_schema::event say what each field is
pub enum Piece<'a> {
    TextStart { index: usize },
    TextDelta { index: usize, delta: &'a str },
    TextEnd { index: usize, content: &'a str },
    ThinkingStart { index: usize },
    ThinkingDelta { index: usize, delta: &'a str },
    ThinkingEnd { index: usize, content: &'a str },
    ToolCallStart { index: usize, id: &'a str, name: &'a str },
    ToolCallDelta { index: usize, delta: &'a str },
    ToolCallEnd { index: usize, tool_call: &'a ToolCall },
}

/// A block that is being streamed.
#[derive(Debug)]
struct Block {
    /// JSON up to the place where it grows; the whole block once it is closed.
    json: Vec<u8>,
    /// What is appended to close `json` while the block is open.
    tail: &'static [u8],
    /// Arguments of an open tool call.
    arguments: Option<ArgumentText>,
}

/// The streamed answer so far.
#[derive(Debug)]
pub struct Partial {
    message: AssistantMessage,
    blocks: Vec<Block>,
    /// JSON of everything behind the content.
    suffix: Vec<u8>,
    usage_json: Vec<u8>,
}

impl Partial {
    /// An answer that has just begun.
    #[must_use]
    pub fn new(message: AssistantMessage) -> Self {
        let mut partial = Self { message, blocks: Vec::new(), suffix: Vec::new(), usage_json: Vec::new() };
        partial.rebuild_suffix();
        partial
    }

    /// The message so far. Arguments of a tool call that is still arriving are empty in it; see
    /// [`into_message`](Self::into_message).
    #[must_use]
    pub fn message(&self) -> &AssistantMessage {
        &self.message
    }

    /// JSON of the usage so far.
    #[must_use]
    pub fn usage_json(&self) -> &[u8] {
        &self.usage_json
    }

    /// The message with every open block closed as far as it came.
    #[must_use]
    pub fn into_message(mut self) -> AssistantMessage {
        for (block, content) in self.blocks.iter_mut().zip(&mut self.message.content) {
            if let (Some(arguments), ContentBlock::ToolCall(call)) = (block.arguments.take(), content) {
                call.arguments = parse_object(arguments.text());
            }
        }
        self.message
    }

    /// A copy of the message as [`into_message`](Self::into_message) would give it.
    #[must_use]
    pub fn snapshot(&self) -> AssistantMessage {
        let mut message = self.message.clone();
        for (block, content) in self.blocks.iter().zip(&mut message.content) {
            if let (Some(arguments), ContentBlock::ToolCall(call)) = (&block.arguments, content) {
                call.arguments = parse_object(arguments.text());
            }
        }
        message
    }

    /// Writes the message's JSON.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"role":"assistant","content":["#);
        for (index, block) in self.blocks.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&block.json);
            if let Some(arguments) = &block.arguments {
                arguments.write_completed(out);
            }
            out.extend_from_slice(block.tail);
        }
        out.extend_from_slice(&self.suffix);
    }

    /// Takes an event of the provider and tells what has changed.
    ///
    /// An event that fits no open block (a provider's fault) changes nothing.
    pub fn apply(&mut self, event: StreamEvent, tell: &mut impl FnMut(&Self, &Piece<'_>)) {
        match event {
            StreamEvent::Opened => {}
            StreamEvent::ResponseId(id) => {
                self.message.response_id = Some(id);
                self.rebuild_suffix();
            }
            StreamEvent::Usage(usage) => {
                self.message.usage = usage;
                self.rebuild_suffix();
            }
            StreamEvent::TextStart { index } => {
                if self.open(index, ContentBlock::text(""), br#"{"type":"text","text":""#, b"\"}") {
                    tell(self, &Piece::TextStart { index });
                }
            }
            StreamEvent::TextDelta { index, delta } => {
                if let Some(ContentBlock::Text(block)) = self.message.content.get_mut(index) {
                    block.text.push_str(&delta);
                    append_escaped(&mut self.blocks[index].json, &delta);
                    tell(self, &Piece::TextDelta { index, delta: &delta });
                }
            }
            StreamEvent::TextEnd { index, text, signature } => {
                if let Some(ContentBlock::Text(block)) = self.message.content.get_mut(index) {
                    if let Some(text) = text {
                        block.text = text;
                    }
                    block.text_signature = signature;
                    let text = block.text.clone();
                    self.close(index);
                    tell(self, &Piece::TextEnd { index, content: &text });
                }
            }
            StreamEvent::ThinkingStart { index, signature } => {
                let block = ThinkingContent { thinking_signature: signature, ..ThinkingContent::default() };
                if self.open(index, ContentBlock::Thinking(block), br#"{"type":"thinking","thinking":""#, b"\"}") {
                    tell(self, &Piece::ThinkingStart { index });
                }
            }
            StreamEvent::ThinkingRedacted { index, data } => {
                let block = ThinkingContent {
                    thinking: REDACTED_TEXT.to_owned(),
                    thinking_signature: Some(data),
                    redacted: Some(true),
                    ..ThinkingContent::default()
                };
                if self.open(index, ContentBlock::Thinking(block), b"", b"") {
                    self.close(index);
                    tell(self, &Piece::ThinkingStart { index });
                    tell(self, &Piece::ThinkingEnd { index, content: REDACTED_TEXT });
                }
            }
            StreamEvent::ThinkingDelta { index, delta } => {
                if let Some(ContentBlock::Thinking(block)) = self.message.content.get_mut(index) {
                    block.thinking.push_str(&delta);
                    append_escaped(&mut self.blocks[index].json, &delta);
                    tell(self, &Piece::ThinkingDelta { index, delta: &delta });
                }
            }
            StreamEvent::ThinkingEnd { index, text, signature } => {
                if let Some(ContentBlock::Thinking(block)) = self.message.content.get_mut(index) {
                    if let Some(text) = text {
                        block.thinking = text;
                    }
                    if signature.is_some() {
                        block.thinking_signature = signature;
                    }
                    let text = block.thinking.clone();
                    self.close(index);
                    tell(self, &Piece::ThinkingEnd { index, content: &text });
                }
            }
            StreamEvent::ToolCallStart { index, id, name } => {
                let call = ToolCall { id: id.clone(), name: name.clone(), ..ToolCall::default() };
                let mut head = br#"{"type":"toolCall","id":"#.to_vec();
                write_string(&mut head, &id);
                head.extend_from_slice(br#","name":"#);
                write_string(&mut head, &name);
                head.extend_from_slice(br#","arguments":"#);
                if self.open(index, ContentBlock::ToolCall(call), &head, b"}") {
                    self.blocks[index].arguments = Some(ArgumentText::default());
                    tell(self, &Piece::ToolCallStart { index, id: &id, name: &name });
                }
            }
            StreamEvent::ToolCallDelta { index, delta } => {
                if let Some(arguments) = self.blocks.get_mut(index).and_then(|block| block.arguments.as_mut()) {
                    arguments.push(&delta);
                    tell(self, &Piece::ToolCallDelta { index, delta: &delta });
                }
            }
            StreamEvent::ToolCallEnd { index, arguments, thought_signature } => {
                let Some(streamed) = self.blocks.get_mut(index).and_then(|block| block.arguments.take()) else {
                    return;
                };
                if let Some(ContentBlock::ToolCall(call)) = self.message.content.get_mut(index) {
                    call.arguments = parse_object(arguments.as_deref().unwrap_or(streamed.text()));
                    call.thought_signature = thought_signature;
                    let call = call.clone();
                    self.close(index);
                    tell(self, &Piece::ToolCallEnd { index, tool_call: &call });
                }
            }
        }
    }

    /// Opens the next block; `false` if `index` is not the next one.
    fn open(&mut self, index: usize, content: ContentBlock, head: &[u8], tail: &'static [u8]) -> bool {
        if index != self.blocks.len() {
            return false;
        }
        self.message.content.push(content);
        self.blocks.push(Block { json: head.to_vec(), tail, arguments: None });
        true
    }

    /// Replaces a block's growing JSON by that of the finished content.
    fn close(&mut self, index: usize) {
        let block = &mut self.blocks[index];
        block.tail = b"";
        block.arguments = None;
        block.json.clear();
        // Content blocks hold strings, booleans and JSON values only, which always serialise.
        let _ = serde_json::to_writer(&mut block.json, &self.message.content[index]);
    }

    fn rebuild_suffix(&mut self) {
        self.usage_json = serde_json::to_vec(&self.message.usage).unwrap_or_default();
        let head = AssistantMessage {
            kind: self.message.kind,
            // The one field that may be large is left out.
            content: Vec::new(),
            api: self.message.api.clone(),
            provider: self.message.provider.clone(),
            model: self.message.model.clone(),
            usage: self.message.usage.clone(),
            stop_reason: self.message.stop_reason.clone(),
            timestamp: self.message.timestamp,
            response_id: self.message.response_id.clone(),
            error_message: self.message.error_message.clone(),
            duration_ms: self.message.duration_ms,
            extra: self.message.extra.clone(),
        };
        let json = serde_json::to_vec(&head).unwrap_or_default();
        // From the bracket that closes the empty content on.
        let start = br#"{"role":"assistant","content":["#.len();
        self.suffix = json.get(start..).unwrap_or_default().to_vec();
    }
}

/// Writes a JSON string with its quotes.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    // Writing a string to memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// Writes the inside of a JSON string.
fn append_escaped(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    write_string(out, text);
    out.remove(start);
    out.pop();
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use protocol_schema::Usage;
    use serde_json::{Value, json};

    use super::*;

    fn partial() -> Partial {
        Partial::new(AssistantMessage::empty("a", "p", "m", 5))
    }

    fn json_of(partial: &Partial) -> Value {
        let mut out = Vec::new();
        partial.write_json(&mut out);
        serde_json::from_slice(&out).unwrap()
    }

    /// The kept JSON must be what serialising the message anew would give.
    fn check(partial: &Partial) {
        assert_eq!(json_of(partial), serde_json::to_value(partial.snapshot()).unwrap());
    }

    #[test]
    fn the_growing_json_equals_the_message_at_every_step() {
        let mut partial = partial();
        check(&partial);
        let usage = Usage { input: 3, output: 1, total_tokens: Some(4), ..Usage::default() };
        let events = [
            StreamEvent::Opened,
            StreamEvent::ResponseId("r\"1".into()),
            StreamEvent::ThinkingStart { index: 0, signature: None },
            StreamEvent::ThinkingDelta { index: 0, delta: "hm\n\"".into() },
            StreamEvent::ThinkingEnd { index: 0, text: None, signature: Some("sig".into()) },
            StreamEvent::ThinkingRedacted { index: 1, data: "xx".into() },
            StreamEvent::TextStart { index: 2 },
            StreamEvent::TextDelta { index: 2, delta: "a\u{2028}\\".into() },
            StreamEvent::ToolCallStart { index: 3, id: "c".into(), name: "t".into() },
            StreamEvent::TextDelta { index: 2, delta: "é\u{1}".into() },
            StreamEvent::ToolCallDelta { index: 3, delta: r#"{"a": "x\n"#.into() },
            StreamEvent::Usage(usage),
            StreamEvent::TextEnd { index: 2, text: None, signature: None },
            StreamEvent::ToolCallDelta { index: 3, delta: r#"y", "b": [1"#.into() },
            StreamEvent::ToolCallDelta { index: 3, delta: "]}".into() },
            StreamEvent::ToolCallEnd { index: 3, arguments: None, thought_signature: None },
        ];
        let mut kinds = Vec::new();
        for event in events {
            partial.apply(event, &mut |partial, piece| {
                let kind = format!("{piece:?}");
                kinds.push(kind.split(' ').next().unwrap().to_owned());
                // Numbers that are still arriving are left out of the kept JSON, so compare outside them.
                assert!(json_of(partial).is_object());
            });
        }
        check(&partial);
        assert_eq!(
            kinds.join(" "),
            "ThinkingStart ThinkingDelta ThinkingEnd ThinkingStart ThinkingEnd TextStart TextDelta ToolCallStart \
             TextDelta ToolCallDelta TextEnd ToolCallDelta ToolCallDelta ToolCallEnd"
        );
        let message = partial.into_message();
        assert_eq!(
            message.content[3].as_tool_call().unwrap().arguments,
            json!({"a": "x\ny", "b": [1]}).as_object().unwrap().clone()
        );
        assert_eq!(message.content[2].as_text(), Some("a\u{2028}\\é\u{1}"));
    }

    #[test]
    fn a_call_cut_off_in_the_middle_keeps_what_is_whole() {
        let mut partial = partial();
        let mut ignore = |_: &Partial, _: &Piece<'_>| {};
        partial.apply(StreamEvent::ToolCallStart { index: 0, id: "c".into(), name: "read".into() }, &mut ignore);
        partial.apply(StreamEvent::ToolCallDelta { index: 0, delta: r#"{"path": "tru"#.into() }, &mut ignore);
        check(&partial);
        let call = partial.into_message().content[0].as_tool_call().unwrap().clone();
        assert_eq!(Value::Object(call.arguments), json!({"path": "tru"}));
    }

    #[test]
    fn events_for_unknown_blocks_change_nothing() {
        let mut partial = partial();
        let mut ignore = |_: &Partial, _: &Piece<'_>| panic!("nothing to tell");
        for event in [
            StreamEvent::TextDelta { index: 0, delta: "x".into() },
            StreamEvent::TextStart { index: 1 },
            StreamEvent::ToolCallEnd { index: 0, arguments: None, thought_signature: None },
        ] {
            partial.apply(event, &mut ignore);
        }
        assert!(partial.message().content.is_empty());
    }
}
