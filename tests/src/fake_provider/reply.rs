//! What the fake answers, in words that fit every API.

use serde_json::{Value, json};

use super::Api;
use crate::sync::Gate;

/// Token counts, told to the client in the API's own fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens that came from no cache.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache; not told by OpenAI.
    pub cache_write: u64,
}

impl Default for Tokens {
    /// 120 in, 7 out, 30 read, 11 written.
    fn default() -> Self {
        Self { input: 120, output: 7, cache_read: 30, cache_write: 11 }
    }
}

/// A piece of an answer.
#[derive(Debug, Clone)]
pub(super) enum Step {
    TextStart,
    TextDelta(String),
    ThinkingStart,
    ThinkingDelta(String),
    /// Comes before the end of a thinking block.
    Signature(String),
    Redacted(String),
    ToolStart {
        id: String,
        name: String,
    },
    ToolDelta(String),
    BlockEnd,
    Ping,
    /// An error inside the stream.
    ErrorEvent {
        kind: String,
        message: String,
    },
    /// Text of the event stream, as it is.
    Sse(String),
    /// Bytes below the chunked encoding, as they are.
    Raw(Vec<u8>),
    Gate(Gate),
    /// Say nothing more and keep the connection.
    Hang,
    /// Close the connection.
    Drop,
    /// Reset the connection.
    Reset,
}

/// The answer to one request.
#[derive(Debug, Clone)]
pub struct Reply {
    pub(super) kind: Kind,
    /// Passed before anything is written, the status line included.
    pub(super) before: Option<Gate>,
    pub(super) slow: bool,
    pub(super) at_once: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Stream(Stream),
    Http { status: u16, headers: Vec<(String, String)>, body: Body },
}

#[derive(Debug, Clone)]
pub(super) enum Body {
    /// In the API's own shape.
    Error {
        kind: String,
        message: String,
    },
    Bytes {
        content_type: String,
        bytes: Vec<u8>,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) steps: Vec<Step>,
    pub(super) tokens: Tokens,
    pub(super) stop: Stop,
    /// Whether the API's last words come: `message_stop`, `[DONE]`.
    pub(super) end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// By what the answer holds.
    Natural,
    Length,
    Word(String),
    /// The stream just ends.
    Missing,
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply {
    /// An answer without content, to be filled.
    #[must_use]
    pub fn new() -> Self {
        let stream = Stream { steps: Vec::new(), tokens: Tokens::default(), stop: Stop::Natural, end: true };
        Self { kind: Kind::Stream(stream), before: None, slow: false, at_once: false }
    }

    /// A whole answer of one text in one piece.
    pub fn say(text: impl Into<String>) -> Self {
        Self::new().text([text.into()])
    }

    /// An HTTP failure with a body in the shape of the API that is asked.
    pub fn error(status: u16, kind: impl Into<String>, message: impl Into<String>) -> Self {
        let body = Body::Error { kind: kind.into(), message: message.into() };
        Self { kind: Kind::Http { status, headers: Vec::new(), body }, ..Self::new() }
    }

    /// An HTTP failure with these bytes as its body.
    pub fn http(status: u16, content_type: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        let body = Body::Bytes { content_type: content_type.into(), bytes: bytes.into() };
        Self { kind: Kind::Http { status, headers: Vec::new(), body }, ..Self::new() }
    }

    /// Adds a header to an HTTP failure.
    ///
    /// # Panics
    ///
    /// This is no HTTP failure.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        match &mut self.kind {
            Kind::Http { headers, .. } => headers.push((name.into(), value.into())),
            Kind::Stream(_) => panic!("only failures have headers of their own"),
        }
        self
    }

    fn stream(&mut self) -> &mut Stream {
        match &mut self.kind {
            Kind::Stream(stream) => stream,
            Kind::Http { .. } => panic!("an HTTP failure has no stream"),
        }
    }

    fn step(mut self, step: Step) -> Self {
        self.stream().steps.push(step);
        self
    }

    fn steps(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.stream().steps.extend(steps);
        self
    }

    /// A text block that comes in these pieces.
    #[must_use]
    pub fn text(self, deltas: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.text_start().text_deltas(deltas).end_block()
    }

    /// Begins a text block; for gates and faults inside of it.
    #[must_use]
    pub fn text_start(self) -> Self {
        self.step(Step::TextStart)
    }

    /// Pieces of the open text block.
    #[must_use]
    pub fn text_deltas(self, deltas: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.steps(deltas.into_iter().map(|delta| Step::TextDelta(delta.into())))
    }

    /// A thinking block that comes in these pieces. OpenAI has no signatures.
    #[must_use]
    pub fn thinking(self, deltas: impl IntoIterator<Item = impl Into<String>>, signature: impl Into<String>) -> Self {
        self.thinking_start().thinking_deltas(deltas).step(Step::Signature(signature.into())).end_block()
    }

    /// Begins a thinking block.
    #[must_use]
    pub fn thinking_start(self) -> Self {
        self.step(Step::ThinkingStart)
    }

    /// Pieces of the open thinking block.
    #[must_use]
    pub fn thinking_deltas(self, deltas: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.steps(deltas.into_iter().map(|delta| Step::ThinkingDelta(delta.into())))
    }

    /// Thinking that is hidden behind `data`. OpenAI has none.
    #[must_use]
    pub fn redacted(self, data: impl Into<String>) -> Self {
        self.steps([Step::Redacted(data.into()), Step::BlockEnd])
    }

    /// A tool call whose arguments come in one piece.
    #[must_use]
    pub fn tool_call(self, id: &str, name: &str, arguments: &Value) -> Self {
        self.tool_call_in(id, name, [arguments.to_string()])
    }

    /// A tool call whose arguments come in these pieces of JSON text.
    #[must_use]
    pub fn tool_call_in(self, id: &str, name: &str, chunks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tool_call_start(id, name).tool_call_deltas(chunks).end_block()
    }

    /// Begins a tool call.
    #[must_use]
    pub fn tool_call_start(self, id: &str, name: &str) -> Self {
        self.step(Step::ToolStart { id: id.to_owned(), name: name.to_owned() })
    }

    /// Pieces of JSON text for the open tool call.
    #[must_use]
    pub fn tool_call_deltas(self, chunks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.steps(chunks.into_iter().map(|chunk| Step::ToolDelta(chunk.into())))
    }

    /// Ends the open block.
    #[must_use]
    pub fn end_block(self) -> Self {
        self.step(Step::BlockEnd)
    }

    /// Waits here until the test releases the gate. In front of all content the headers have been
    /// sent already; see [`gate_before`](Self::gate_before).
    #[must_use]
    pub fn gate(self, gate: &Gate) -> Self {
        self.step(Step::Gate(gate.clone()))
    }

    /// Waits before the first byte of the answer, the status line included.
    #[must_use]
    pub fn gate_before(mut self, gate: &Gate) -> Self {
        self.before = Some(gate.clone());
        self
    }

    /// A sign of life without meaning.
    #[must_use]
    pub fn ping(self) -> Self {
        self.step(Step::Ping)
    }

    /// An error inside the stream, which then ends.
    #[must_use]
    pub fn error_event(mut self, kind: impl Into<String>, message: impl Into<String>) -> Self {
        self = self.step(Step::ErrorEvent { kind: kind.into(), message: message.into() });
        self.stream().stop = Stop::Missing;
        self.stream().end = false;
        self
    }

    /// Text of the event stream, as it is: broken JSON, unknown events, comments.
    #[must_use]
    pub fn sse(self, text: impl Into<String>) -> Self {
        self.step(Step::Sse(text.into()))
    }

    /// Bytes that bypass the chunked encoding.
    #[must_use]
    pub fn raw(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.step(Step::Raw(bytes.into()))
    }

    /// Says nothing more but keeps the connection open.
    #[must_use]
    pub fn hang(self) -> Self {
        self.step(Step::Hang)
    }

    /// Closes the connection here, in the middle of the body.
    #[must_use]
    pub fn drop_connection(self) -> Self {
        self.step(Step::Drop)
    }

    /// Resets the connection here.
    #[must_use]
    pub fn reset_connection(self) -> Self {
        self.step(Step::Reset)
    }

    /// Token counts instead of the default ones.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.stream().tokens = tokens;
        self
    }

    /// Ends because the token limit was reached.
    #[must_use]
    pub fn cut_by_length(mut self) -> Self {
        self.stream().stop = Stop::Length;
        self
    }

    /// Ends with this stop reason of the API.
    #[must_use]
    pub fn stop_reason(mut self, word: impl Into<String>) -> Self {
        self.stream().stop = Stop::Word(word.into());
        self
    }

    /// Ends in good order on the HTTP level, but without a stop reason.
    #[must_use]
    pub fn without_stop(mut self) -> Self {
        self.stream().stop = Stop::Missing;
        self.stream().end = false;
        self
    }

    /// Ends after the stop reason, without the API's last words.
    #[must_use]
    pub fn without_end(mut self) -> Self {
        self.stream().end = false;
        self
    }

    /// Writes one byte at a time.
    #[must_use]
    pub fn byte_by_byte(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Writes as much as possible at once instead of event by event.
    #[must_use]
    pub fn in_one_write(mut self) -> Self {
        self.at_once = true;
        self
    }
}

impl Body {
    pub(super) fn render(&self, api: Api) -> (&str, Vec<u8>) {
        match self {
            Self::Bytes { content_type, bytes } => (content_type, bytes.clone()),
            Self::Error { kind, message } => {
                let body = match api {
                    Api::Anthropic => json!({ "type": "error", "error": { "type": kind, "message": message } }),
                    Api::OpenAi => json!({
                        "error": { "message": message, "type": kind, "param": null, "code": null },
                    }),
                };
                ("application/json", body.to_string().into_bytes())
            }
        }
    }
}

impl Stream {
    pub(super) fn has_tool_calls(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::ToolStart { .. }))
    }
}
