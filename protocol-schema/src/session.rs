//! State of the session.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::Extra;
use crate::message::AgentMessage;
use crate::model::{Model, ScopedModel, ThinkingLevel};
use crate::number::Number;
use crate::queue::QueueMode;
use crate::registry::ResponseData;

/// Returns the session's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GetState {}

open_words! {
    /// How far a task is.
    pub enum TaskStatus {
        /// Not begun.
        Pending = "pending",
        /// Being worked on.
        InProgress = "in_progress",
        /// Done.
        Completed = "completed",
    }
}

/// An item of the session's task list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Task {
    /// Stable identifier.
    pub id: String,
    /// What is to be done.
    pub title: String,
    /// How far it is.
    pub status: TaskStatus,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// How full the context window is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextUsage {
    /// Tokens in use; null when unknown, as right after a compaction.
    pub tokens: Option<u64>,
    /// Size of the window in tokens.
    pub context_window: u64,
    /// `tokens` in percent of the window, not rounded; null when unknown.
    pub percent: Option<Number>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Answer to `get_state`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionState {
    /// The model; null when none is set.
    pub model: Option<Model>,
    /// Models that `cycle_model` walks through; empty when no scope is active.
    pub scoped_models: Vec<ScopedModel>,
    /// The task list.
    #[serde(default)]
    pub tasks: Vec<Task>,
    /// Whether the model is paid for by a subscription login.
    pub using_subscription: bool,
    /// The thinking level in force.
    pub thinking_level: ThinkingLevel,
    /// Whether a run is active.
    pub is_streaming: bool,
    /// Whether a retry is being decided, waited for or carried out.
    pub is_retrying: bool,
    /// The current retry, 0 when there is none.
    pub retry_attempt: u32,
    /// Whether a compaction runs.
    pub is_compacting: bool,
    /// How steering messages are delivered.
    pub steering_mode: QueueMode,
    /// How follow-up messages are delivered.
    pub follow_up_mode: QueueMode,
    /// The session file. Absent when the session is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_file: Option<String>,
    /// The session's id.
    pub session_id: String,
    /// The session's name. Absent until it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// Whether the server compacts by itself.
    pub auto_compaction_enabled: bool,
    /// Messages in the context.
    pub message_count: u64,
    /// Queued messages.
    pub pending_message_count: u64,
    /// How full the context is. Absent without a model or a known window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_usage: Option<ContextUsage>,
    /// Why the session's own model could not be restored. Absent when it could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_fallback_message: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl ResponseData for SessionState {}

/// Returns all messages of the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GetMessages {}

/// Answer to `get_messages`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Messages {
    /// The messages, oldest first.
    pub messages: Vec<AgentMessage>,
}

impl ResponseData for Messages {}

/// Returns the text of the last answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GetLastAssistantText {}

/// Answer to `get_last_assistant_text`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LastAssistantText {
    /// The text; null when there is no answer yet.
    pub text: Option<String>,
}

impl ResponseData for LastAssistantText {}

/// Returns the server's version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GetVersion {}

/// Answer to `get_version`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// The server's version.
    pub version: String,
    /// The protocol version, see [`crate::PROTOCOL_VERSION`]. Absent from servers that do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<u32>,
    /// Optional abilities of the server, for example `event-detail-delta`. Absent from servers that
    /// do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl ResponseData for Version {}

/// Any JSON value: the answer of a command this crate has no type for.
impl ResponseData for Value {}
