//! The chunks of the OpenAI Chat Completions API.

use serde_json::{Value, json};

use super::Request;
use super::connection::{Frame, common};
use super::reply::{Step, Stop, Stream};

pub(super) fn render(stream: &Stream, request: &Request) -> Vec<Frame> {
    let mut writer = Writer { frames: Vec::new(), request, begun: false, tool: None };
    for step in &stream.steps {
        writer.step(step);
    }
    if stream.stop != Stop::Missing {
        let reason = match &stream.stop {
            Stop::Word(word) => word.as_str(),
            Stop::Length => "length",
            _ if stream.has_tool_calls() => "tool_calls",
            _ => "stop",
        };
        writer.choice(&json!({}), &json!(reason));
        if request.body["stream_options"]["include_usage"] == true {
            let tokens = stream.tokens;
            let prompt = tokens.input + tokens.cache_read;
            let mut chunk = writer.chunk(&json!([]));
            chunk["usage"] = json!({
                "prompt_tokens": prompt,
                "completion_tokens": tokens.output,
                "total_tokens": prompt + tokens.output,
                "prompt_tokens_details": { "cached_tokens": tokens.cache_read, "audio_tokens": 0 },
                "completion_tokens_details": {
                    "reasoning_tokens": 0,
                    "audio_tokens": 0,
                    "accepted_prediction_tokens": 0,
                    "rejected_prediction_tokens": 0,
                },
            });
            writer.data(&chunk);
        }
    }
    if stream.end {
        writer.frames.push(Frame::Body("data: [DONE]\n\n".to_owned()));
    }
    writer.frames
}

struct Writer<'a> {
    frames: Vec<Frame>,
    request: &'a Request,
    begun: bool,
    /// Index of the last tool call.
    tool: Option<usize>,
}

impl Writer<'_> {
    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": format!("chatcmpl-{}", self.request.number),
            "object": "chat.completion.chunk",
            "created": 1_796_091_799,
            "model": self.request.body["model"],
            "service_tier": "default",
            "system_fingerprint": "fp_scripted",
            "choices": choices,
            "usage": null,
        })
    }

    fn data(&mut self, chunk: &Value) {
        self.frames.push(Frame::Body(format!("data: {chunk}\n\n")));
    }

    fn choice(&mut self, delta: &Value, finish: &Value) {
        if !std::mem::replace(&mut self.begun, true) {
            self.choice(&json!({ "role": "assistant", "content": "", "refusal": null }), &Value::Null);
        }
        let choice = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
        let chunk = self.chunk(&choice);
        self.data(&chunk);
    }

    fn delta(&mut self, delta: &Value) {
        self.choice(delta, &Value::Null);
    }

    fn step(&mut self, step: &Step) {
        if let Some(frame) = common(step) {
            self.frames.push(frame);
            return;
        }
        match step {
            // Blocks have neither beginning nor end here.
            Step::TextStart | Step::ThinkingStart | Step::BlockEnd | Step::Signature(_) => {}
            Step::TextDelta(text) => self.delta(&json!({ "content": text })),
            Step::ThinkingDelta(text) => self.delta(&json!({ "reasoning_content": text })),
            Step::Redacted(_) => panic!("this API has no hidden thinking"),
            Step::ToolStart { id, name } => {
                let index = self.tool.map_or(0, |last| last + 1);
                self.tool = Some(index);
                let function = json!({ "name": name, "arguments": "" });
                self.delta(&json!({
                    "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }],
                }));
            }
            Step::ToolDelta(chunk) => {
                let function = json!({ "arguments": chunk });
                self.delta(&json!({ "tool_calls": [{ "index": self.tool, "function": function }] }));
            }
            Step::Ping => self.frames.push(Frame::Body(": ping\n\n".to_owned())),
            Step::ErrorEvent { kind, message } => {
                self.data(&json!({ "error": { "message": message, "type": kind, "param": null, "code": null } }));
            }
            Step::Sse(_) | Step::Raw(_) | Step::Gate(_) | Step::Hang | Step::Drop | Step::Reset => {
                unreachable!("common steps were handled above")
            }
        }
    }
}
