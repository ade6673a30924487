//! Puts the answer together while it streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol_schema::content::{ContentBlock, TextContent, ThinkingContent, ToolCall};
use protocol_schema::event::MessageUpdate;
use protocol_schema::{AgentMessage, AssistantMessage, AssistantMessageEvent as Sub, Event, Usage};

use crate::partial_json::object_so_far;

/// An answer as it stood after one update. Cheap to hold and to clone: the text is shared with the
/// updates before and after it and copied only when it is asked for.
///
/// What no update carries is missing here and comes with `message_end`: the signatures of thinking, the
/// provider's id of the answer, the time it took.
#[derive(Debug, Clone)]
pub struct PartialMessage {
    head: Arc<AssistantMessage>,
    usage: Option<Arc<Usage>>,
    blocks: Arc<Mutex<Vec<Block>>>,
    /// How many blocks there were.
    count: usize,
    /// Blocks that were still growing, each with its length in bytes then.
    open: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct Block {
    start: ContentBlock,
    /// Text, thinking or argument JSON; it only ever grows.
    text: String,
    /// The block as the server gave it when it was complete.
    done: Option<ContentBlock>,
}

impl PartialMessage {
    /// A copy of the whole message. Costs the length of the message.
    #[must_use]
    pub fn to_message(&self) -> AssistantMessage {
        let blocks = locked(&self.blocks);
        let content = blocks.iter().take(self.count).enumerate().map(|(index, block)| self.block(index, block));
        let mut message = AssistantMessage { content: content.collect(), ..AssistantMessage::clone(&self.head) };
        if let Some(usage) = &self.usage {
            message.usage = Usage::clone(usage);
        }
        message
    }

    /// A copy of the text so far: all text blocks, joined without a separator.
    #[must_use]
    pub fn text(&self) -> String {
        let blocks = locked(&self.blocks);
        let mut whole = String::new();
        for (index, block) in blocks.iter().take(self.count).enumerate() {
            match (self.grown(index), &block.done, &block.start) {
                (None, Some(ContentBlock::Text(text)), _) => whole.push_str(&text.text),
                (length, _, ContentBlock::Text(_)) => whole.push_str(prefix(&block.text, length)),
                _ => {}
            }
        }
        whole
    }

    /// The length the block had, `None` if it was complete.
    fn grown(&self, index: usize) -> Option<usize> {
        self.open.iter().find(|(open, _)| *open == index).map(|(_, length)| *length)
    }

    fn block(&self, index: usize, block: &Block) -> ContentBlock {
        let length = self.grown(index);
        if let (None, Some(done)) = (length, &block.done) {
            return done.clone();
        }
        let text = prefix(&block.text, length);
        match &block.start {
            ContentBlock::Text(start) => ContentBlock::Text(TextContent { text: text.to_owned(), ..start.clone() }),
            ContentBlock::Thinking(start) => {
                ContentBlock::Thinking(ThinkingContent { thinking: text.to_owned(), ..start.clone() })
            }
            ContentBlock::ToolCall(start) => {
                ContentBlock::ToolCall(ToolCall { arguments: object_so_far(text), ..start.clone() })
            }
            other => other.clone(),
        }
    }
}

fn prefix(text: &str, length: Option<usize>) -> &str {
    length.and_then(|length| text.get(..length)).unwrap_or(text)
}

fn locked(blocks: &Mutex<Vec<Block>>) -> MutexGuard<'_, Vec<Block>> {
    // Blocks are whole after every step, so one seen by a panicking thread is still good.
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows the events and holds the answer that is streaming. Each update costs what it brings.
#[derive(Debug, Default)]
pub(crate) struct Accumulator {
    current: Option<PartialMessage>,
}

impl Accumulator {
    /// Takes an event in. `false` if an update belongs to an answer whose beginning is not known.
    pub(crate) fn apply(&mut self, event: &Event) -> bool {
        match event {
            Event::MessageStart(start) => {
                self.current = match &start.message {
                    AgentMessage::Assistant(message) => Some(begin(message)),
                    _ => None,
                };
            }
            Event::MessageEnd(_) | Event::AgentEnd(_) | Event::AgentStart(_) => self.current = None,
            // The part that came is void; the next try fills the same message anew.
            Event::StreamRetry(_) | Event::LengthRetry(_) => {
                if let Some(current) = &mut self.current {
                    current.blocks = Arc::default();
                    current.count = 0;
                    current.open.clear();
                }
            }
            Event::MessageUpdate(update) => return self.current.as_mut().is_some_and(|current| grow(current, update)),
            _ => {}
        }
        true
    }

    /// Starts from a whole message that came in the middle of an answer, or from nothing.
    pub(crate) fn start_from(&mut self, message: Option<AssistantMessage>) {
        self.current = message.as_ref().map(begin);
    }

    pub(crate) fn current(&self) -> Option<&PartialMessage> {
        self.current.as_ref()
    }
}

fn begin(message: &AssistantMessage) -> PartialMessage {
    let blocks: Vec<Block> = message
        .content
        .iter()
        .map(|block| {
            let (start, text) = match block.clone() {
                ContentBlock::Text(mut start) => {
                    let text = std::mem::take(&mut start.text);
                    (ContentBlock::Text(start), text)
                }
                ContentBlock::Thinking(mut start) => {
                    let text = std::mem::take(&mut start.thinking);
                    (ContentBlock::Thinking(start), text)
                }
                other => (other, String::new()),
            };
            Block { start, text, done: Some(block.clone()) }
        })
        .collect();
    let head = AssistantMessage { content: Vec::new(), ..message.clone() };
    PartialMessage {
        head: Arc::new(head),
        usage: None,
        count: blocks.len(),
        blocks: Arc::new(Mutex::new(blocks)),
        open: Vec::new(),
    }
}

/// `false` if the update does not fit what is there.
fn grow(current: &mut PartialMessage, update: &MessageUpdate) -> bool {
    let repeated = match update.message.as_deref() {
        Some(AgentMessage::Assistant(message)) => Some(message),
        _ => None,
    };
    if let Some(usage) = update.usage.as_ref().or(repeated.map(|message| &message.usage)) {
        current.usage = Some(Arc::new(usage.clone()));
    }
    let shared = Arc::clone(&current.blocks);
    let mut blocks = locked(&shared);
    match &update.assistant_message_event {
        Sub::TextStart(start) => {
            open(current, &mut blocks, start.content_index, ContentBlock::Text(TextContent::default()))
        }
        Sub::ThinkingStart(start) => {
            open(current, &mut blocks, start.content_index, ContentBlock::Thinking(ThinkingContent::default()))
        }
        Sub::ToolCallStart(start) => {
            // Delta updates name the call; in whole messages it stands in its block.
            let known =
                start.partial.as_deref().or(repeated).and_then(|message| message.content.get(start.content_index));
            let known = known.and_then(ContentBlock::as_tool_call);
            let call = ToolCall {
                id: start.id.as_ref().or(known.map(|call| &call.id)).cloned().unwrap_or_default(),
                name: start.tool_name.as_ref().or(known.map(|call| &call.name)).cloned().unwrap_or_default(),
                ..ToolCall::default()
            };
            open(current, &mut blocks, start.content_index, ContentBlock::ToolCall(call))
        }
        Sub::TextDelta(delta) => append(current, &mut blocks, delta.content_index, &delta.delta),
        Sub::ThinkingDelta(delta) => append(current, &mut blocks, delta.content_index, &delta.delta),
        Sub::ToolCallDelta(delta) => append(current, &mut blocks, delta.content_index, &delta.delta),
        Sub::TextEnd(end) => close(current, &mut blocks, end.content_index, |block| match block {
            ContentBlock::Text(start) => {
                Some(ContentBlock::Text(TextContent { text: end.content.clone(), ..start.clone() }))
            }
            _ => None,
        }),
        Sub::ThinkingEnd(end) => close(current, &mut blocks, end.content_index, |block| match block {
            ContentBlock::Thinking(start) => {
                Some(ContentBlock::Thinking(ThinkingContent { thinking: end.content.clone(), ..start.clone() }))
            }
            _ => None,
        }),
        Sub::ToolCallEnd(end) => close(current, &mut blocks, end.content_index, |block| match block {
            ContentBlock::ToolCall(_) => Some(ContentBlock::ToolCall(end.tool_call.clone())),
            _ => None,
        }),
        _ => true,
    }
}

fn open(current: &mut PartialMessage, blocks: &mut Vec<Block>, index: usize, start: ContentBlock) -> bool {
    let block = Block { start, text: String::new(), done: None };
    if index > blocks.len() {
        return false;
    }
    // The message may have begun with a block that is only now announced.
    blocks.truncate(index);
    blocks.push(block);
    current.count = blocks.len();
    current.open.retain(|(open, _)| *open < index);
    current.open.push((index, 0));
    true
}

fn append(current: &mut PartialMessage, blocks: &mut [Block], index: usize, delta: &str) -> bool {
    let Some(block) = blocks.get_mut(index) else {
        return false;
    };
    let Some((_, length)) = current.open.iter_mut().find(|(open, _)| *open == index) else {
        return false;
    };
    block.text.push_str(delta);
    *length = block.text.len();
    true
}

fn close(
    current: &mut PartialMessage,
    blocks: &mut [Block],
    index: usize,
    finish: impl FnOnce(&ContentBlock) -> Option<ContentBlock>,
) -> bool {
    let Some(block) = blocks.get_mut(index) else {
        return false;
    };
    let Some(done) = finish(&block.start) else {
        return false;
    };
    block.done = Some(done);
    current.open.retain(|(open, _)| *open != index);
    true
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use serde_json::json;

    use super::*;

    fn event(value: serde_json::Value) -> Event {
        Event::from_json(&value.to_string()).unwrap()
    }

    fn start() -> Event {
        let message = AssistantMessage::empty("api", "provider", "model", 5);
        event(json!({"type": "message_start", "message": message}))
    }

    fn update(sub: serde_json::Value) -> Event {
        event(json!({"type": "message_update", "assistantMessageEvent": sub}))
    }

    fn content(partial: &PartialMessage) -> serde_json::Value {
        serde_json::to_value(partial.to_message().content).unwrap()
    }

    #[test]
    fn each_view_stays_as_it_stood_after_its_own_update() {
        let mut accumulator = Accumulator::default();
        let mut views = Vec::new();
        let updates = [
            update(json!({"type": "thinking_start", "contentIndex": 0})),
            update(json!({"type": "thinking_delta", "contentIndex": 0, "delta": "hm"})),
            update(json!({"type": "thinking_end", "contentIndex": 0, "content": "hm!"})),
            update(json!({"type": "text_start", "contentIndex": 1})),
            update(json!({"type": "text_delta", "contentIndex": 1, "delta": "Hä"})),
            update(json!({"type": "text_delta", "contentIndex": 1, "delta": "llo"})),
            update(json!({"type": "text_end", "contentIndex": 1, "content": "Hällo"})),
        ];
        assert!(accumulator.apply(&start()));
        for update in &updates {
            assert!(accumulator.apply(update));
            views.push(accumulator.current().unwrap().clone());
        }
        let thinking = |text: &str| json!({"type": "thinking", "thinking": text});
        let text = |text: &str| json!({"type": "text", "text": text});
        let expected = [
            json!([thinking("")]),
            json!([thinking("hm")]),
            json!([thinking("hm!")]),
            json!([thinking("hm!"), text("")]),
            json!([thinking("hm!"), text("Hä")]),
            json!([thinking("hm!"), text("Hällo")]),
            json!([thinking("hm!"), text("Hällo")]),
        ];
        for (view, expected) in views.iter().zip(&expected) {
            assert_eq!(&content(view), expected);
        }
        assert_eq!(
            views.iter().map(PartialMessage::text).collect::<Vec<_>>(),
            ["", "", "", "", "Hä", "Hällo", "Hällo"]
        );
        assert_eq!(views[0].to_message().timestamp, 5);
    }

    #[test]
    fn interleaved_calls_grow_side_by_side() {
        let mut accumulator = Accumulator::default();
        accumulator.apply(&start());
        for (index, id) in [(0, "a"), (1, "b")] {
            let sub = json!({"type": "toolcall_start", "contentIndex": index, "id": id, "toolName": "read"});
            assert!(accumulator.apply(&update(sub)));
        }
        for (index, delta) in [(0, r#"{"path":"#), (1, r#"{"path":"y"#), (0, r#""x"#)] {
            let sub = json!({"type": "toolcall_delta", "contentIndex": index, "delta": delta});
            assert!(accumulator.apply(&update(sub)));
        }
        let view = accumulator.current().unwrap().clone();
        let call = json!({"type": "toolCall", "id": "a", "name": "read", "arguments": {"path": "xyz"}});
        assert!(accumulator.apply(&update(json!({"type": "toolcall_end", "contentIndex": 0, "toolCall": call}))));
        assert_eq!(
            content(&view),
            json!([
                {"type": "toolCall", "id": "a", "name": "read", "arguments": {"path": "x"}},
                {"type": "toolCall", "id": "b", "name": "read", "arguments": {"path": "y"}},
            ])
        );
        assert_eq!(content(accumulator.current().unwrap())[0]["arguments"], json!({"path": "xyz"}));
    }

    #[test]
    fn updates_without_a_beginning_are_refused_and_a_retry_starts_over() {
        let mut accumulator = Accumulator::default();
        let begin = update(json!({"type": "text_start", "contentIndex": 0}));
        let delta = update(json!({"type": "text_delta", "contentIndex": 0, "delta": "x"}));
        assert!(!accumulator.apply(&delta));
        accumulator.apply(&start());
        assert!(!accumulator.apply(&delta), "no block yet");
        assert!(accumulator.apply(&begin) && accumulator.apply(&delta));
        let before = accumulator.current().unwrap().clone();
        accumulator.apply(&event(json!({"type": "stream_retry", "attempt": 1, "maxAttempts": 2, "error": "e"})));
        assert_eq!(content(accumulator.current().unwrap()), json!([]));
        assert!(accumulator.apply(&begin) && accumulator.apply(&delta) && accumulator.apply(&delta));
        assert_eq!(accumulator.current().unwrap().text(), "xx");
        assert_eq!(before.text(), "x");
    }

    #[test]
    fn usage_follows_the_updates() {
        let mut accumulator = Accumulator::default();
        accumulator.apply(&start());
        let usage = json!({"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}});
        let sub = json!({"type": "text_start", "contentIndex": 0});
        accumulator.apply(&event(json!({"type": "message_update", "assistantMessageEvent": sub, "usage": usage})));
        assert_eq!(accumulator.current().unwrap().to_message().usage.output, 2);
    }
}
