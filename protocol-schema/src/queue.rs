//! Sending messages to the agent, and the queues of messages that wait.

use serde::{Deserialize, Serialize};

use crate::content::ImageContent;
use crate::registry::ResponseData;

/// What to do with a prompt while the agent is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum StreamingBehavior {
    /// Deliver after the current turn.
    Steer,
    /// Deliver when the agent would stop.
    FollowUp,
}

/// Sends a prompt. The answer says that it was accepted; the run's events follow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prompt {
    /// The text.
    pub message: String,
    /// Images. Absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageContent>>,
    /// Required while the agent runs, without effect otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming_behavior: Option<StreamingBehavior>,
}

impl Prompt {
    /// A prompt with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

/// Queues a message that is delivered after the current turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Steer {
    /// The text.
    pub message: String,
    /// Images. Absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageContent>>,
}

/// Queues a message that is delivered when the agent would stop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FollowUp {
    /// The text.
    pub message: String,
    /// Images. Absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageContent>>,
}

/// Aborts the current run. Queued messages stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Abort {}

open_words! {
    /// How many queued messages are delivered at a time.
    pub enum QueueMode {
        /// All of them.
        All = "all",
        /// One, the default.
        OneAtATime = "one-at-a-time",
    }
}

/// Sets how steering messages are delivered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SetSteeringMode {
    /// The mode.
    pub mode: QueueMode,
}

/// Sets how follow-up messages are delivered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SetFollowUpMode {
    /// The mode.
    pub mode: QueueMode,
}

/// Returns the queued messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GetPendingMessages {}

/// Empties both queues and returns what was in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClearPendingMessages {}

/// A queued message with its images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct QueuedMessage {
    /// The text.
    pub text: String,
    /// Images. Absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageContent>>,
}

/// Answer to `get_pending_messages` and `clear_pending_messages`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingMessages {
    /// Texts of the steering queue.
    pub steering: Vec<String>,
    /// Texts of the follow-up queue.
    pub follow_up: Vec<String>,
    /// The steering queue with images.
    pub steering_messages: Vec<QueuedMessage>,
    /// The follow-up queue with images.
    pub follow_up_messages: Vec<QueuedMessage>,
}

impl ResponseData for PendingMessages {}
