//! The event stream of the Anthropic Messages API.

use serde_json::{Value, json};

use super::Request;
use super::connection::{Frame, common};
use super::reply::{Step, Stop, Stream};

pub(super) fn render(stream: &Stream, request: &Request) -> Vec<Frame> {
    let mut writer = Writer { frames: Vec::new(), begun: false, index: 0, open: false, pinged: false };
    for step in &stream.steps {
        writer.step(step, stream, request);
    }
    if stream.stop != Stop::Missing {
        writer.begin(stream, request);
        let reason = match &stream.stop {
            Stop::Word(word) => word.as_str(),
            Stop::Length => "max_tokens",
            _ if stream.has_tool_calls() => "tool_use",
            _ => "end_turn",
        };
        writer.event(&json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": null },
            "usage": { "output_tokens": stream.tokens.output },
        }));
    }
    if stream.end {
        writer.event(&json!({ "type": "message_stop" }));
    }
    writer.frames
}

struct Writer {
    frames: Vec<Frame>,
    begun: bool,
    /// Of the open or the next block.
    index: usize,
    open: bool,
    pinged: bool,
}

impl Writer {
    fn event(&mut self, data: &Value) {
        let name = data["type"].as_str().unwrap_or_default();
        self.frames.push(Frame::Body(format!("event: {name}\ndata: {data}\n\n")));
    }

    fn begin(&mut self, stream: &Stream, request: &Request) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let tokens = stream.tokens;
        self.event(&json!({
            "type": "message_start",
            "message": {
                "id": format!("msg_{}", request.number),
                "type": "message",
                "role": "assistant",
                "model": request.body["model"],
                "content": [],
                "stop_reason": null,
                "stop_sequence": null,
                "usage": {
                    "input_tokens": tokens.input,
                    "cache_creation_input_tokens": tokens.cache_write,
                    "cache_read_input_tokens": tokens.cache_read,
                    "output_tokens": 1,
                },
            },
        }));
    }

    fn start(&mut self, block: &Value) {
        assert!(!self.open, "the last block of the script was not ended");
        self.open = true;
        self.event(&json!({ "type": "content_block_start", "index": self.index, "content_block": block }));
        if !std::mem::replace(&mut self.pinged, true) {
            self.event(&json!({ "type": "ping" }));
        }
    }

    fn delta(&mut self, delta: &Value) {
        assert!(self.open, "the script has a delta outside of a block");
        self.event(&json!({ "type": "content_block_delta", "index": self.index, "delta": delta }));
    }

    fn step(&mut self, step: &Step, stream: &Stream, request: &Request) {
        if let Some(frame) = common(step) {
            self.frames.push(frame);
            return;
        }
        self.begin(stream, request);
        match step {
            Step::TextStart => self.start(&json!({ "type": "text", "text": "" })),
            Step::TextDelta(text) => self.delta(&json!({ "type": "text_delta", "text": text })),
            Step::ThinkingStart => self.start(&json!({ "type": "thinking", "thinking": "", "signature": "" })),
            Step::ThinkingDelta(text) => self.delta(&json!({ "type": "thinking_delta", "thinking": text })),
            Step::Signature(signature) => {
                self.delta(&json!({ "type": "signature_delta", "signature": signature }));
            }
            Step::Redacted(data) => self.start(&json!({ "type": "redacted_thinking", "data": data })),
            Step::ToolStart { id, name } => {
                self.start(&json!({ "type": "tool_use", "id": id, "name": name, "input": {} }));
            }
            Step::ToolDelta(chunk) => self.delta(&json!({ "type": "input_json_delta", "partial_json": chunk })),
            Step::BlockEnd => {
                assert!(std::mem::replace(&mut self.open, false), "the script ends a block twice");
                self.event(&json!({ "type": "content_block_stop", "index": self.index }));
                self.index += 1;
            }
            Step::Ping => self.event(&json!({ "type": "ping" })),
            Step::ErrorEvent { kind, message } => {
                self.event(&json!({ "type": "error", "error": { "type": kind, "message": message } }));
            }
            Step::Sse(_) | Step::Raw(_) | Step::Gate(_) | Step::Hang | Step::Drop | Step::Reset => {
                unreachable!("common steps were handled above")
            }
        }
    }
}
