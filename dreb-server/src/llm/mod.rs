//! Models, credentials and the wire APIs of model providers.
//!
//! A [`Provider`] turns one [`ProviderRequest`] into a stream of [`StreamEvent`]s. It knows nothing of
//! the agent: retries, aborts, queues and partial messages are the caller's.

pub mod anthropic;
pub mod auth;
pub mod cache_retention;
pub mod catalog;
pub mod copilot;
pub mod effort;
pub mod history;
pub mod http;
mod jsonc;
pub mod models;
pub mod models_json;
pub mod openai_completions;
pub mod partial_json;
pub mod resolve;
pub mod scripted;
mod sink;
pub mod sse;
pub mod thinking;
pub mod usage;
pub mod value_forms;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use protocol_schema::{AgentMessage, Model, StopReason, ThinkingLevel, Usage};
use serde_json::Value;
use tokio::sync::mpsc;

/// A secret that no formatter prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// Name the model calls it by.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments, an object schema.
    pub parameters: Value,
}

/// One request to a model.
#[derive(Debug, Clone)]
pub struct ProviderRequest {
    /// The model.
    pub model: Arc<Model>,
    /// The system prompt; empty for none.
    pub system_prompt: Arc<str>,
    /// `User`, `Assistant` and `ToolResult` messages only; the agent has converted the others. They
    /// may come from other providers; the provider applies the history rules itself.
    pub messages: Vec<AgentMessage>,
    /// Tools on offer.
    pub tools: Arc<[ToolDefinition]>,
    /// Effective thinking level, already clamped to the model.
    pub thinking: ThinkingLevel,
    /// Token budget of the answer, before a thinking budget is added.
    pub max_tokens: u64,
    /// The key; `None` where the API needs none.
    pub api_key: Option<Secret>,
    /// Session id, for the provider's cache.
    pub session_id: Option<String>,
    /// Thinking budgets by level from the settings, in tokens.
    pub thinking_budgets: BTreeMap<String, u64>,
    /// How adaptive models show their thinking, `summarized` or `omitted`; `None` for `summarized`.
    pub thinking_display: Option<String>,
}

/// A piece of an answer. Blocks have increasing indices from 0; several may be open at once.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The message begins: the request is being sent, or the provider has begun to answer.
    Opened,
    /// The provider's id of the answer.
    ResponseId(String),
    /// A text block begins.
    TextStart {
        /// Block index.
        index: usize,
    },
    /// More text.
    TextDelta {
        /// Block index.
        index: usize,
        /// The new text.
        delta: String,
    },
    /// A text block ends.
    TextEnd {
        /// Block index.
        index: usize,
        /// Final text, if the provider's differs from the sum of the deltas.
        text: Option<String>,
        /// Opaque data to keep with the block.
        signature: Option<String>,
    },
    /// A thinking block begins.
    ThinkingStart {
        /// Block index.
        index: usize,
        /// Signature known from the start, if any.
        signature: Option<String>,
    },
    /// A block of thinking that the provider hides; it begins and ends at once.
    ThinkingRedacted {
        /// Block index.
        index: usize,
        /// The opaque payload.
        data: String,
    },
    /// More thinking.
    ThinkingDelta {
        /// Block index.
        index: usize,
        /// The new text.
        delta: String,
    },
    /// A thinking block ends.
    ThinkingEnd {
        /// Block index.
        index: usize,
        /// Final text, if the provider's differs from the sum of the deltas.
        text: Option<String>,
        /// Opaque data to keep with the block; replaces the one given at the start.
        signature: Option<String>,
    },
    /// A tool call begins.
    ToolCallStart {
        /// Block index.
        index: usize,
        /// The call's id, made up by the provider module if the API gave none.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More JSON text of the arguments.
    ToolCallDelta {
        /// Block index.
        index: usize,
        /// The new text, possibly empty.
        delta: String,
    },
    /// A tool call ends; its arguments are the sum of the deltas unless given here.
    ToolCallEnd {
        /// Block index.
        index: usize,
        /// Final JSON text of the arguments, if the provider's differs from the sum of the deltas.
        arguments: Option<String>,
        /// Opaque data to keep with the call.
        thought_signature: Option<String>,
    },
    /// Usage so far, cost included; replaces what was known.
    Usage(Usage),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What the user reads, in the form the reference has it (`529 {"type":"error",...}`).
    pub message: String,
    /// What kind of failure it is.
    pub kind: ProviderErrorKind,
}

/// Kinds of failure that the agent treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderErrorKind {
    /// The stream broke off before its end; the same request may be sent again at once.
    Dropped,
    /// The provider answered with an HTTP error.
    Http {
        /// The status.
        status: u16,
        /// What the provider asked to wait, from `retry-after` or `retry-after-ms`.
        retry_after: Option<Duration>,
    },
    /// No connection could be made.
    Connection,
    /// Anything else.
    Other,
}

impl ProviderError {
    /// A failure without further meaning.
    pub fn other(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: ProviderErrorKind::Other }
    }
}

/// A wire API.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Name of the API, the value of a model's `api`.
    fn api(&self) -> &'static str;

    /// Sends one request. Pieces go to `events`; the channel's bound is the backpressure to the
    /// network. The result is the stop reason (`Stop`, `Length` or `ToolUse`) or the failure.
    ///
    /// Dropping the future closes the connection and leaves nothing behind.
    fn stream(
        &self,
        request: ProviderRequest,
        events: mpsc::Sender<StreamEvent>,
    ) -> BoxFuture<'static, Result<StopReason, ProviderError>>;
}

/// Wire APIs for tests that send nothing.
#[cfg(test)]
pub(crate) mod silent {
    use futures_util::future::BoxFuture;
    use protocol_schema::StopReason;
    use tokio::sync::mpsc;

    use super::{Provider, ProviderError, ProviderRequest, StreamEvent};

    /// An API of this name that refuses every request.
    #[derive(Debug)]
    pub(crate) struct Silent(pub(crate) &'static str);

    impl Provider for Silent {
        fn api(&self) -> &'static str {
            self.0
        }

        fn stream(
            &self,
            _: ProviderRequest,
            _: mpsc::Sender<StreamEvent>,
        ) -> BoxFuture<'static, Result<StopReason, ProviderError>> {
            Box::pin(std::future::ready(Err(ProviderError::other("silent"))))
        }
    }
}
