//! Events of the agent as lines.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use protocol_schema::{ContentBlock, Event};
use serde::Serialize;
use serde_json::{Map, Value};

use super::output::{Output, SOFT_LIMIT};
use crate::agent::EventSink;
use crate::agent::partial::{Partial, Piece, write_string};
use crate::agent::sink::ToolUpdate;

/// How much streaming events repeat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventDetail {
    /// Each update carries everything so far: the wire of the protocol document.
    #[default]
    Full,
    /// Each update carries only what is new, so that a run costs as many bytes as its text.
    Delta,
}

/// Writes the agent's events to the output.
#[derive(Debug)]
pub struct LineSink {
    output: Output,
    detail: EventDetail,
}

impl LineSink {
    /// A sink for this output.
    #[must_use]
    pub fn new(output: Output, detail: EventDetail) -> Self {
        Self { output, detail }
    }
}

impl EventSink for LineSink {
    fn has_room(&self) -> bool {
        self.output.is_below(SOFT_LIMIT)
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        self.output.below(SOFT_LIMIT).boxed()
    }

    fn emit(&self, event: &Event) {
        self.output.line(|out| write_json(out, event));
    }

    fn emit_piece(&self, partial: &Partial, piece: &Piece<'_>) {
        self.output.line(|out| {
            out.extend_from_slice(br#"{"type":"message_update","assistantMessageEvent":"#);
            write_piece(out, piece, self.detail);
            match self.detail {
                EventDetail::Full => {
                    out.extend_from_slice(br#","partial":"#);
                    partial.write_json(out);
                    out.extend_from_slice(br#"},"message":"#);
                    partial.write_json(out);
                }
                EventDetail::Delta => {
                    out.extend_from_slice(br#"},"usage":"#);
                    out.extend_from_slice(partial.usage_json());
                }
            }
            out.push(b'}');
        });
    }

    fn emit_tool_update(&self, update: &ToolUpdate<'_>) {
        let progress = update.progress;
        let new_text;
        let content = match self.detail {
            EventDetail::Full => &progress.so_far.content,
            EventDetail::Delta => {
                new_text = (!progress.new_text.is_empty()).then(|| ContentBlock::text(progress.new_text.clone()));
                &new_text.into_iter().collect::<Vec<_>>()
            }
        };
        let event = ToolUpdateLine {
            kind: "tool_execution_update",
            tool_call_id: update.tool_call_id,
            tool_name: update.tool_name,
            args: update.args,
            partial_result: PartialResult { content, details: progress.so_far.details.as_ref() },
        };
        self.output.line(|out| write_json(out, &event));
    }
}

/// `tool_execution_update` without copies of its parts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolUpdateLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    tool_call_id: &'a str,
    tool_name: &'a str,
    args: &'a Map<String, Value>,
    partial_result: PartialResult<'a>,
}

#[derive(Serialize)]
struct PartialResult<'a> {
    content: &'a [ContentBlock],
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Value>,
}

/// Writes the assistant message event, still open behind its last own field.
fn write_piece(out: &mut Vec<u8>, piece: &Piece<'_>, detail: EventDetail) {
    let (kind, index) = match piece {
        Piece::TextStart { index } => ("text_start", index),
        Piece::TextDelta { index, .. } => ("text_delta", index),
        Piece::TextEnd { index, .. } => ("text_end", index),
        Piece::ThinkingStart { index } => ("thinking_start", index),
        Piece::ThinkingDelta { index, .. } => ("thinking_delta", index),
        Piece::ThinkingEnd { index, .. } => ("thinking_end", index),
        Piece::ToolCallStart { index, .. } => ("toolcall_start", index),
        Piece::ToolCallDelta { index, .. } => ("toolcall_delta", index),
        Piece::ToolCallEnd { index, .. } => ("toolcall_end", index),
    };
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(br#"","contentIndex":"#);
    write_json(out, index);
    match piece {
        Piece::TextDelta { delta, .. } | Piece::ThinkingDelta { delta, .. } | Piece::ToolCallDelta { delta, .. } => {
            write_field(out, "delta", delta);
        }
        Piece::TextEnd { content, .. } | Piece::ThinkingEnd { content, .. } => write_field(out, "content", content),
        Piece::ToolCallEnd { tool_call, .. } => {
            out.extend_from_slice(br#","toolCall":"#);
            write_json(out, tool_call);
        }
        Piece::ToolCallStart { id, name, .. } if detail == EventDetail::Delta => {
            write_field(out, "id", id);
            write_field(out, "toolName", name);
        }
        Piece::TextStart { .. } | Piece::ThinkingStart { .. } | Piece::ToolCallStart { .. } => {}
    }
}

fn write_field(out: &mut Vec<u8>, name: &str, text: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    write_string(out, text);
}

/// Appends JSON; a value that cannot be serialised leaves nothing behind.
pub(super) fn write_json(out: &mut Vec<u8>, value: &impl Serialize) {
    let start = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "a line could not be serialised");
        out.truncate(start);
    }
}

#[cfg(test)]
mod tests {
    use protocol_schema::{AssistantMessage, AssistantMessageEvent};

    use super::*;
    use crate::llm::StreamEvent;

    /// Lines written for a list of provider events.
    fn lines(detail: EventDetail, events: Vec<StreamEvent>) -> Vec<Event> {
        let mut partial = Partial::new(AssistantMessage::empty("a", "p", "m", 5));
        let mut lines = Vec::new();
        for event in events {
            partial.apply(event, &mut |partial, piece| {
                let mut out = Vec::new();
                out.extend_from_slice(br#"{"type":"message_update","assistantMessageEvent":"#);
                write_piece(&mut out, piece, detail);
                if detail == EventDetail::Full {
                    out.extend_from_slice(br#","partial":"#);
                    partial.write_json(&mut out);
                }
                out.extend_from_slice(b"}}");
                lines.push(Event::from_json(std::str::from_utf8(&out).unwrap()).unwrap());
            });
        }
        lines
    }

    #[test]
    fn updates_decode_as_the_wire_types() {
        let events = vec![
            StreamEvent::TextStart { index: 0 },
            StreamEvent::TextDelta { index: 0, delta: "a\"".into() },
            StreamEvent::TextEnd { index: 0, text: None, signature: None },
            StreamEvent::ToolCallStart { index: 1, id: "i".into(), name: "n".into() },
            StreamEvent::ToolCallDelta { index: 1, delta: "{}".into() },
            StreamEvent::ToolCallEnd { index: 1, arguments: None, thought_signature: None },
        ];
        for detail in [EventDetail::Full, EventDetail::Delta] {
            for (line, kind) in lines(detail, events.clone()).into_iter().zip([
                "text_start",
                "text_delta",
                "text_end",
                "toolcall_start",
                "toolcall_delta",
                "toolcall_end",
            ]) {
                let Event::MessageUpdate(update) = line else { panic!("{line:?}") };
                assert_eq!(update.assistant_message_event.kind(), kind);
                if let AssistantMessageEvent::ToolCallStart(start) = update.assistant_message_event {
                    assert_eq!(start.id.is_some(), detail == EventDetail::Delta);
                    assert_eq!(start.partial.is_some(), detail == EventDetail::Full);
                }
            }
        }
    }
}
