//! Reading the chunks of an answer.

use std::collections::HashMap;

use protocol_schema::StopReason;
use protocol_schema::model::ModelCost;
use serde_json::Value;

use super::messages::THINKING_FIELDS;
use crate::llm::partial_json::is_whole_object;
use crate::llm::usage::TokenCounts;
use crate::llm::{ProviderError, ProviderErrorKind, StreamEvent};

/// Turns chunks into events.
///
/// The API names no blocks: a block ends where one of another kind begins. Tool calls are told
/// apart by index, then by id, for servers leave out the one or the other.
pub(super) struct Reader {
    prices: ModelCost,
    has_id: bool,
    next_index: usize,
    current: Current,
    calls: Vec<Call>,
    /// Encrypted reasoning by the id of the call it belongs to, as JSON text.
    details: HashMap<String, String>,
    has_details: bool,
    finish_reason: Option<String>,
}

/// The kind of block that is being written.
#[derive(Clone, Copy, PartialEq)]
enum Current {
    None,
    Text(usize),
    Thinking(usize),
    /// The open ones among the calls.
    Calls,
}

struct Call {
    /// Block index, once the call has begun; it begins when its name is known.
    block: Option<usize>,
    is_open: bool,
    wire_index: Option<u64>,
    wire_id: Option<String>,
    name: String,
    arguments: String,
}

/// One piece of a call as it stands in a chunk.
struct Piece<'a> {
    index: Option<u64>,
    id: Option<&'a str>,
    name: Option<&'a str>,
    arguments: String,
}

impl<'a> Piece<'a> {
    fn of(entry: &'a Value) -> Self {
        let text = |value: &'a Value| value.as_str().filter(|text| !text.is_empty());
        let function = &entry["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            // Some servers send the object itself.
            object @ Value::Object(_) => object.to_string(),
            _ => String::new(),
        };
        Self { index: entry["index"].as_u64(), id: text(&entry["id"]), name: text(&function["name"]), arguments }
    }
}

impl Reader {
    pub(super) fn new(prices: ModelCost) -> Self {
        Self {
            prices,
            has_id: false,
            next_index: 0,
            current: Current::None,
            calls: Vec::new(),
            details: HashMap::new(),
            has_details: false,
            finish_reason: None,
        }
    }

    /// Whether the provider has said why it stopped. Usage may still follow.
    pub(super) fn has_finish_reason(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Takes one chunk.
    pub(super) fn take(&mut self, chunk: &Value) -> Vec<StreamEvent> {
        let mut out = Vec::new();
        if let (false, Some(id)) = (self.has_id, chunk["id"].as_str().filter(|id| !id.is_empty())) {
            self.has_id = true;
            out.push(StreamEvent::ResponseId(id.to_owned()));
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        if let Some((field, text)) = THINKING_FIELDS.iter().find_map(|field| Some((field, text(field)?))) {
            let index = self.thinking_block(field, &mut out);
            out.push(StreamEvent::ThinkingDelta { index, delta: text.to_owned() });
        }
        if let Some(text) = text("content") {
            let index = self.text_block(&mut out);
            out.push(StreamEvent::TextDelta { index, delta: text.to_owned() });
        }
        for detail in delta["reasoning_details"].as_array().into_iter().flatten() {
            self.take_detail(detail);
        }
        for entry in delta["tool_calls"].as_array().into_iter().flatten() {
            self.take_call(&Piece::of(entry), &mut out);
        }
        if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
            self.finish_reason = Some(reason.to_owned());
        }
        let usage = [&chunk["usage"], &choice["usage"]].into_iter().find(|usage| usage.is_object());
        if let Some(usage) = usage {
            out.push(StreamEvent::Usage(counts(usage).priced(&self.prices)));
        }
        out
    }

    /// Ends the blocks that are open.
    pub(super) fn close(&mut self) -> Vec<StreamEvent> {
        let mut out = Vec::new();
        self.end_current(&mut out);
        out
    }

    /// How the answer ended, once the stream has.
    pub(super) fn stop_reason(&self) -> Result<StopReason, ProviderError> {
        match self.finish_reason.as_deref() {
            Some("stop" | "end") => Ok(StopReason::Stop),
            Some("length") => Ok(StopReason::Length),
            Some("tool_calls" | "function_call") => Ok(StopReason::ToolUse),
            Some(other) => Err(ProviderError::other(format!("Provider finish_reason: {other}"))),
            None => Err(ProviderError {
                message: "Stream ended without finish_reason — connection likely dropped".to_owned(),
                kind: ProviderErrorKind::Dropped,
            }),
        }
    }

    fn new_block(&mut self) -> usize {
        self.next_index += 1;
        self.next_index - 1
    }

    fn text_block(&mut self, out: &mut Vec<StreamEvent>) -> usize {
        if let Current::Text(index) = self.current {
            return index;
        }
        self.end_current(out);
        let index = self.new_block();
        self.current = Current::Text(index);
        out.push(StreamEvent::TextStart { index });
        index
    }

    fn thinking_block(&mut self, field: &str, out: &mut Vec<StreamEvent>) -> usize {
        if let Current::Thinking(index) = self.current {
            return index;
        }
        self.end_current(out);
        let index = self.new_block();
        self.current = Current::Thinking(index);
        // The field is remembered, so that the thinking goes back in it.
        out.push(StreamEvent::ThinkingStart { index, signature: Some(field.to_owned()) });
        index
    }

    fn end_current(&mut self, out: &mut Vec<StreamEvent>) {
        match std::mem::replace(&mut self.current, Current::None) {
            Current::None => {}
            Current::Text(index) => out.push(StreamEvent::TextEnd { index, text: None, signature: None }),
            Current::Thinking(index) => out.push(StreamEvent::ThinkingEnd { index, text: None, signature: None }),
            Current::Calls => {
                for at in 0..self.calls.len() {
                    if self.calls[at].is_open {
                        self.end_call(at, out);
                    }
                }
            }
        }
    }

    fn take_detail(&mut self, detail: &Value) {
        self.has_details = true;
        let is_encrypted = detail["type"] == "reasoning.encrypted" && detail["data"].is_string();
        if let (true, Some(id)) = (is_encrypted, detail["id"].as_str().filter(|id| !id.is_empty())) {
            self.details.insert(id.to_owned(), detail.to_string());
        }
    }

    fn take_call(&mut self, piece: &Piece<'_>, out: &mut Vec<StreamEvent>) {
        let at = match self.find(piece) {
            Some(at) => at,
            None if piece.name.is_none() && piece.id.is_none() && piece.arguments.trim().is_empty() => return,
            None => self.new_call(piece, out),
        };
        let call = &mut self.calls[at];
        if !call.is_open {
            return;
        }
        call.arguments.push_str(&piece.arguments);
        if let Some(index) = call.block {
            out.push(StreamEvent::ToolCallDelta { index, delta: piece.arguments.clone() });
        } else if let Some(name) = piece.name {
            call.name = name.to_owned();
            self.begin(at, out);
        }
    }

    /// The call that a piece continues.
    fn find(&self, piece: &Piece<'_>) -> Option<usize> {
        let last = |matches: &dyn Fn(&Call) -> bool| self.calls.iter().rposition(matches);
        let by_both = piece.id.and_then(|id| {
            last(&|call| {
                let same_index = call.wire_index == piece.index || call.wire_index.is_none() || piece.index.is_none();
                same_index && call.wire_id.as_deref() == Some(id)
            })
        });
        if by_both.is_some() {
            return by_both;
        }
        let at = match piece.index {
            Some(index) => last(&|call| call.wire_index == Some(index))?,
            // A new id with a name is a new call; without either the last one goes on.
            None if piece.id.is_some() && piece.name.is_some() => return None,
            None => self.calls.len().checked_sub(1)?,
        };
        (!self.calls[at].is_followed_by(piece)).then_some(at)
    }

    fn new_call(&mut self, piece: &Piece<'_>, out: &mut Vec<StreamEvent>) -> usize {
        if self.current != Current::Calls {
            self.end_current(out);
            self.current = Current::Calls;
        }
        // Calls that come one after the other end one after the other. Only where encrypted
        // reasoning may still come for a call it stays open.
        for at in 0..self.calls.len() {
            if !self.has_details && self.calls[at].is_open && is_whole_object(&self.calls[at].arguments) {
                self.end_call(at, out);
            }
        }
        self.calls.push(Call {
            block: None,
            is_open: true,
            wire_index: piece.index,
            wire_id: piece.id.map(str::to_owned),
            name: String::new(),
            arguments: String::new(),
        });
        self.calls.len() - 1
    }

    fn begin(&mut self, at: usize, out: &mut Vec<StreamEvent>) {
        let index = self.new_block();
        let call = &mut self.calls[at];
        call.block = Some(index);
        let id = call.wire_id.clone().unwrap_or_else(|| format!("call_{}", uuid::Uuid::new_v4().simple()));
        out.push(StreamEvent::ToolCallStart { index, id, name: call.name.clone() });
        out.push(StreamEvent::ToolCallDelta { index, delta: call.arguments.clone() });
    }

    fn end_call(&mut self, at: usize, out: &mut Vec<StreamEvent>) {
        if self.calls[at].block.is_none() {
            // Its name never came. The agent answers a call of an unknown tool.
            self.begin(at, out);
        }
        let call = &mut self.calls[at];
        call.is_open = false;
        if let Some(index) = call.block {
            let thought_signature = call.wire_id.as_ref().and_then(|id| self.details.remove(id));
            out.push(StreamEvent::ToolCallEnd { index, arguments: None, thought_signature });
        }
    }
}

impl Call {
    /// Whether a piece with this call's index, or with neither index nor id, begins another call.
    fn is_followed_by(&self, piece: &Piece<'_>) -> bool {
        let Some(name) = piece.name else { return false };
        if self.block.is_none() {
            // The name may come late.
            return false;
        }
        match (&self.wire_id, piece.id) {
            (Some(ours), Some(theirs)) if ours != theirs => true,
            (Some(_), Some(_)) => false,
            _ => name != self.name || !piece.arguments.trim().is_empty() && is_whole_object(&self.arguments),
        }
    }
}

fn counts(usage: &Value) -> TokenCounts {
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    let reasoning = count(&usage["completion_tokens_details"]["reasoning_tokens"]);
    TokenCounts {
        input: count(&usage["prompt_tokens"]).saturating_sub(cached),
        // Kept as it has always been counted here, although OpenAI's count includes the reasoning.
        output: count(&usage["completion_tokens"]).saturating_add(reasoning),
        cache_read: cached,
        cache_write: 0,
    }
}
