//! One method per command.

use protocol_schema::ThinkingLevel;
use protocol_schema::message::AgentMessage;
use protocol_schema::model::{GetAvailableModels, Model, SetModel, SetThinkingLevel};
use protocol_schema::queue::{
    Abort, ClearPendingMessages, FollowUp, GetPendingMessages, PendingMessages, Prompt, QueueMode, SetFollowUpMode,
    SetSteeringMode, Steer,
};
use protocol_schema::session::{GetLastAssistantText, GetMessages, GetState, GetVersion, SessionState, Version};
use protocol_schema::shell::{AbortBash, Bash, BashResult};

use crate::client::RpcClient;
use crate::error::CallError;

/// The commands of the protocol. Each is [`call`](RpcClient::call) with the command's own struct,
/// with its errors and cancel safety; use that for parameters that have no place here, such as
/// images.
impl RpcClient {
    /// Sends a prompt. Returns when it was accepted; the run's events follow.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call). The server refuses while the agent runs: use
    /// [`steer`](Self::steer), [`follow_up`](Self::follow_up) or a [`Prompt`] with
    /// `streaming_behavior`.
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call). Dropping the future does not end the run, [`abort`](Self::abort) does.
    pub async fn prompt(&self, message: impl Into<String>) -> Result<(), CallError> {
        self.call(Prompt::new(message)).await.map(drop)
    }

    /// Queues a message that is delivered after the current turn.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn steer(&self, message: impl Into<String>) -> Result<(), CallError> {
        self.call(Steer { message: message.into(), images: None }).await.map(drop)
    }

    /// Queues a message that is delivered when the agent would stop.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn follow_up(&self, message: impl Into<String>) -> Result<(), CallError> {
        self.call(FollowUp { message: message.into(), images: None }).await.map(drop)
    }

    /// Aborts the current run. Queued messages stay.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn abort(&self) -> Result<(), CallError> {
        self.call(Abort {}).await.map(drop)
    }

    /// The session's state.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn get_state(&self) -> Result<SessionState, CallError> {
        self.call(GetState {}).await
    }

    /// All messages of the context, oldest first.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn get_messages(&self) -> Result<Vec<AgentMessage>, CallError> {
        self.call(GetMessages {}).await.map(|answer| answer.messages)
    }

    /// The text of the last answer without blanks around it, `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn get_last_assistant_text(&self) -> Result<Option<String>, CallError> {
        self.call(GetLastAssistantText {}).await.map(|answer| answer.text)
    }

    /// The queued messages.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn get_pending_messages(&self) -> Result<PendingMessages, CallError> {
        self.call(GetPendingMessages {}).await
    }

    /// Empties both queues and returns what was in them.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn clear_pending_messages(&self) -> Result<PendingMessages, CallError> {
        self.call(ClearPendingMessages {}).await
    }

    /// Sets how many steering messages are delivered at a time.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn set_steering_mode(&self, mode: QueueMode) -> Result<(), CallError> {
        self.call(SetSteeringMode { mode }).await.map(drop)
    }

    /// Sets how many follow-up messages are delivered at a time.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn set_follow_up_mode(&self, mode: QueueMode) -> Result<(), CallError> {
        self.call(SetFollowUpMode { mode }).await.map(drop)
    }

    /// Switches to another model and returns it.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn set_model(
        &self,
        provider: impl Into<String>,
        model_id: impl Into<String>,
    ) -> Result<Model, CallError> {
        self.call(SetModel { provider: provider.into(), model_id: model_id.into() }).await
    }

    /// The models whose provider has credentials.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn get_available_models(&self) -> Result<Vec<Model>, CallError> {
        self.call(GetAvailableModels {}).await.map(|answer| answer.models)
    }

    /// Sets the thinking level; the server clamps it to what the model can do.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn set_thinking_level(&self, level: ThinkingLevel) -> Result<(), CallError> {
        self.call(SetThinkingLevel { level }).await.map(drop)
    }

    /// Runs a shell command and returns when it has ended, however long that takes. Its output
    /// becomes part of the context of the next prompt.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call). A command that fails is no error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not end the command, [`abort_bash`](Self::abort_bash) does.
    pub async fn bash(&self, command: impl Into<String>) -> Result<BashResult, CallError> {
        self.call(Bash { command: command.into() }).await
    }

    /// Aborts every running [`bash`](Self::bash) command.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn abort_bash(&self) -> Result<(), CallError> {
        self.call(AbortBash {}).await.map(drop)
    }

    /// The server's version. What it said at the start is in
    /// [`server_version`](Self::server_version).
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn get_version(&self) -> Result<Version, CallError> {
        self.call(GetVersion {}).await
    }
}
