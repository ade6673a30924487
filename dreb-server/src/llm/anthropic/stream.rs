//! Reading the events of an answer.

use std::collections::BTreeMap;

use protocol_schema::StopReason;
use protocol_schema::model::ModelCost;
use serde::Deserialize;
use serde_json::Value;

use crate::llm::usage::TokenCounts;
use crate::llm::{ProviderError, ProviderErrorKind, StreamEvent};

/// Turns the provider's events into ours. Blocks are told apart by the provider's index, so several
/// may stream at once.
pub(super) struct Reader {
    prices: ModelCost,
    counts: TokenCounts,
    open: BTreeMap<u64, Block>,
    next_index: usize,
    has_message_delta: bool,
    stop_reason: Option<String>,
    is_stopped: bool,
}

struct Block {
    index: usize,
    kind: Kind,
}

enum Kind {
    Text,
    Thinking {
        signature: String,
    },
    Tool {
        /// Arguments that came whole with the start of the block; used if no delta follows.
        whole: Option<String>,
    },
    Redacted,
}

#[derive(Deserialize)]
struct BlockStart {
    index: u64,
    content_block: StartedBlock,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum StartedBlock {
    Text {
        #[serde(default)]
        text: String,
    },
    Thinking {
        #[serde(default)]
        thinking: String,
        #[serde(default)]
        signature: Option<String>,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        #[serde(default)]
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    /// Tools that the provider runs itself are not asked for.
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct BlockDelta {
    index: u64,
    delta: Delta,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct BlockStop {
    index: u64,
}

impl Reader {
    pub(super) fn new(prices: ModelCost) -> Self {
        Self {
            prices,
            counts: TokenCounts::default(),
            open: BTreeMap::new(),
            next_index: 0,
            has_message_delta: false,
            stop_reason: None,
            is_stopped: false,
        }
    }

    /// Whether the provider has said why it stopped.
    pub(super) fn has_stop_reason(&self) -> bool {
        self.stop_reason.is_some()
    }

    /// Whether nothing more can come.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Takes one event. Kinds that this version does not know are left out.
    pub(super) fn take(&mut self, event: Value) -> Result<Vec<StreamEvent>, serde_json::Error> {
        let mut out = Vec::new();
        match event.get("type").and_then(Value::as_str) {
            Some("message_start") => {
                let message = &event["message"];
                if let Some(id) = message["id"].as_str().filter(|id| !id.is_empty()) {
                    out.push(StreamEvent::ResponseId(id.to_owned()));
                }
                out.extend(self.count(&message["usage"]));
            }
            Some("content_block_start") => self.start(serde_json::from_value(event)?, &mut out),
            Some("content_block_delta") => self.delta(serde_json::from_value(event)?, &mut out),
            Some("content_block_stop") => {
                let BlockStop { index } = serde_json::from_value(event)?;
                out.extend(self.open.remove(&index).and_then(Block::end));
            }
            Some("message_delta") => {
                self.has_message_delta = true;
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.stop_reason = Some(reason.to_owned());
                }
                out.extend(self.count(&event["usage"]));
            }
            Some("message_stop") => self.is_stopped = true,
            _ => {}
        }
        Ok(out)
    }

    /// Ends the blocks that the provider has left open.
    pub(super) fn close(&mut self) -> Vec<StreamEvent> {
        let mut open: Vec<Block> = std::mem::take(&mut self.open).into_values().collect();
        open.sort_by_key(|block| block.index);
        if !self.has_message_delta {
            // The stream broke off, so nothing is known to be whole.
            return Vec::new();
        }
        open.into_iter().filter_map(Block::end).collect()
    }

    /// How the answer ended, once the stream has.
    pub(super) fn stop_reason(&self) -> Result<StopReason, ProviderError> {
        if !self.has_message_delta {
            return Err(ProviderError {
                message: "Stream ended without message_delta — connection likely dropped".to_owned(),
                kind: ProviderErrorKind::Dropped,
            });
        }
        match self.stop_reason.as_deref() {
            None | Some("end_turn" | "pause_turn" | "stop_sequence") => Ok(StopReason::Stop),
            Some("max_tokens") => Ok(StopReason::Length),
            Some("tool_use") => Ok(StopReason::ToolUse),
            Some("refusal" | "sensitive") => Err(ProviderError::other("An unknown error occurred")),
            Some(other) => Err(ProviderError::other(format!("Unhandled stop reason: {other}"))),
        }
    }

    /// Updates the counts that are given; some providers send only some of them, or null.
    fn count(&mut self, usage: &Value) -> Option<StreamEvent> {
        let counts = &mut self.counts;
        let mut found = false;
        for (name, count) in [
            ("input_tokens", &mut counts.input),
            ("output_tokens", &mut counts.output),
            ("cache_read_input_tokens", &mut counts.cache_read),
            ("cache_creation_input_tokens", &mut counts.cache_write),
        ] {
            if let Some(value) = usage.get(name).and_then(Value::as_u64) {
                *count = value;
                found = true;
            }
        }
        found.then(|| StreamEvent::Usage(self.counts.priced(&self.prices)))
    }

    fn start(&mut self, start: BlockStart, out: &mut Vec<StreamEvent>) {
        let index = self.next_index;
        let kind = match start.content_block {
            StartedBlock::Text { text } => {
                out.push(StreamEvent::TextStart { index });
                if !text.is_empty() {
                    out.push(StreamEvent::TextDelta { index, delta: text });
                }
                Kind::Text
            }
            StartedBlock::Thinking { thinking, signature } => {
                // The field is there, empty, until the signature comes.
                out.push(StreamEvent::ThinkingStart { index, signature: Some(String::new()) });
                if !thinking.is_empty() {
                    out.push(StreamEvent::ThinkingDelta { index, delta: thinking });
                }
                Kind::Thinking { signature: signature.unwrap_or_default() }
            }
            StartedBlock::RedactedThinking { data } => {
                out.push(StreamEvent::ThinkingRedacted { index, data });
                Kind::Redacted
            }
            StartedBlock::ToolUse { id, name, input } => {
                let id = if id.is_empty() { format!("toolu_{}", uuid::Uuid::new_v4().simple()) } else { id };
                out.push(StreamEvent::ToolCallStart { index, id, name });
                let whole = input.as_object().filter(|input| !input.is_empty()).map(|_| input.to_string());
                Kind::Tool { whole }
            }
            StartedBlock::Unknown => return,
        };
        self.next_index += 1;
        // An index that comes again without a stop begins a new block.
        let left_open = self.open.insert(start.index, Block { index, kind });
        if let Some(end) = left_open.and_then(Block::end) {
            out.insert(0, end);
        }
    }

    fn delta(&mut self, delta: BlockDelta, out: &mut Vec<StreamEvent>) {
        let Some(Block { index, kind }) = self.open.get_mut(&delta.index) else { return };
        let index = *index;
        match (kind, delta.delta) {
            (Kind::Text, Delta::Text { text }) => out.push(StreamEvent::TextDelta { index, delta: text }),
            (Kind::Thinking { .. }, Delta::Thinking { thinking }) => {
                out.push(StreamEvent::ThinkingDelta { index, delta: thinking });
            }
            (Kind::Thinking { signature }, Delta::Signature { signature: more }) => signature.push_str(&more),
            (Kind::Tool { whole }, Delta::InputJson { partial_json }) => {
                if !partial_json.trim().is_empty() {
                    *whole = None;
                }
                out.push(StreamEvent::ToolCallDelta { index, delta: partial_json });
            }
            _ => {}
        }
    }
}

impl Block {
    fn end(self) -> Option<StreamEvent> {
        let index = self.index;
        match self.kind {
            Kind::Text => Some(StreamEvent::TextEnd { index, text: None, signature: None }),
            Kind::Thinking { signature } => {
                Some(StreamEvent::ThinkingEnd { index, text: None, signature: Some(signature) })
            }
            Kind::Tool { whole } => Some(StreamEvent::ToolCallEnd { index, arguments: whole, thought_signature: None }),
            Kind::Redacted => None,
        }
    }
}
