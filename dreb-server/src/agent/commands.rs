//! What a client can ask of a session.

use std::path::Path;
use std::sync::Arc;

use protocol_schema::model::{SetModel, SetThinkingLevel};
use protocol_schema::queue::{
    FollowUp, PendingMessages, Prompt, QueueMode, QueuedMessage, SetFollowUpMode, SetSteeringMode, Steer,
    StreamingBehavior,
};
use protocol_schema::session::SessionState;
use protocol_schema::{AgentMessage, Extra, ImageContent, Model, StopReason, ThinkingLevel};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::run::{Basis, user_message};
use super::state::RunControl;
use super::{ABORT_WAIT, AgentSession};
use crate::context::context_usage;
use crate::llm::thinking;
use crate::session::{Durable, EntryBody};

const BUSY: &str =
    "Agent is already processing. Specify streamingBehavior ('steer' or 'followUp') to queue the message.";
const NO_MODEL: &str = "No model selected.\n\nUse /login or set an API key environment variable. \
                        See docs/providers.md\n\nThen use /model to select a model.";
/// Folder of the documentation, for people.
const DOCS: &str = "docs";
const CLOSING: &str = "The server is shutting down";

/// Why a command failed; the text goes to the client as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// A failure the protocol document or the reference words without a prefix.
    #[error("{0}")]
    Plain(String),
    /// Any other failure.
    #[error("Command failed: {0}")]
    Failed(String),
}

/// An accepted prompt. Its run begins when this is dropped, so that the answer to the command can be
/// written before the run's first event.
#[derive(Debug)]
pub struct Started(#[expect(dead_code, reason = "dropping it is the signal")] Option<oneshot::Sender<()>>);

impl AgentSession {
    /// Starts a run with this prompt, or queues it while one is active.
    ///
    /// # Errors
    ///
    /// The agent is running and no behaviour was named; there is no model; its key is missing.
    pub async fn prompt(&self, prompt: Prompt) -> Result<Started, CommandError> {
        let message = QueuedMessage { text: prompt.message, images: non_empty(prompt.images) };
        let (streaming, retrying) = self.with(|state| (state.is_streaming, state.run.clone()));
        if streaming {
            return self.queue_prompt(message, prompt.streaming_behavior);
        }
        if let Some(run) = retrying {
            // Between two tries: the prompt takes the place of the retry.
            run.cancel.cancel();
            run.done.cancelled().await;
        }
        let basis = self.with(|state| Basis::of(state)).ok_or_else(|| CommandError::Plain(NO_MODEL.to_owned()))?;
        let key = self.models().key(&basis.model.provider).await;
        for warning in self.models().take_warnings() {
            tracing::warn!("{warning}");
        }
        if let Err(error) = key {
            return Err(CommandError::Plain(error.prompt_text(Path::new(DOCS))));
        }
        self.store_held_bash().await;
        let control = RunControl { cancel: CancellationToken::new(), done: CancellationToken::new() };
        let accepted = self.with(|state| {
            if state.closing || state.is_streaming {
                return false;
            }
            state.is_streaming = true;
            state.run = Some(control.clone());
            true
        });
        if !accepted {
            return Err(CommandError::Plain(CLOSING.to_owned()));
        }
        let (go, gone) = oneshot::channel();
        let session = self.clone();
        // The task is ended by `abort` and `close`, which cancel the token and wait for `done`.
        tokio::spawn(async move {
            let _ = gone.await;
            let cancel = control.cancel.clone();
            let _ends = RunEnds { session: session.clone(), control };
            session.drive(vec![user_message(message)], cancel, basis).await;
        });
        Ok(Started(Some(go)))
    }

    fn queue_prompt(
        &self,
        message: QueuedMessage,
        behavior: Option<StreamingBehavior>,
    ) -> Result<Started, CommandError> {
        let behavior = behavior.ok_or_else(|| CommandError::Plain(BUSY.to_owned()))?;
        self.with(|state| match behavior {
            StreamingBehavior::Steer => state.queues.steering.push(message),
            StreamingBehavior::FollowUp => state.queues.follow_up.push(message),
        });
        Ok(Started(None))
    }

    /// Queues a message for after the current turn, or for the next run while idle.
    pub fn steer(&self, steer: Steer) {
        let message = QueuedMessage { text: steer.message, images: non_empty(steer.images) };
        self.with(|state| state.queues.steering.push(message));
    }

    /// Queues a message for when the agent would stop.
    pub fn follow_up(&self, follow_up: FollowUp) {
        let message = QueuedMessage { text: follow_up.message, images: non_empty(follow_up.images) };
        self.with(|state| state.queues.follow_up.push(message));
    }

    /// Aborts the run or the pause before a retry and waits until it has ended, 2 s at most.
    ///
    /// Cancel-safe: the abort itself has been given when this first waits.
    pub async fn abort(&self) {
        let Some(run) = self.with(|state| state.run.clone()) else { return };
        run.cancel.cancel();
        if tokio::time::timeout(ABORT_WAIT, run.done.cancelled()).await.is_err() {
            tracing::warn!("the aborted run has not ended yet");
        }
    }

    /// The queued messages.
    #[must_use]
    pub fn pending_messages(&self) -> PendingMessages {
        self.with(|state| state.queues.listed())
    }

    /// Empties the queues and returns what was in them.
    #[must_use]
    pub fn clear_pending_messages(&self) -> PendingMessages {
        self.with(|state| state.queues.clear())
    }

    /// Sets and stores the delivery mode of the steering queue.
    ///
    /// # Errors
    ///
    /// The mode is unknown; nothing changes.
    pub async fn set_steering_mode(&self, command: SetSteeringMode) -> Result<(), CommandError> {
        check_mode("steeringMode", &command.mode)?;
        let value = Value::from(command.mode.as_str());
        self.with(|state| state.queues.steering.mode = command.mode);
        self.store_settings("set_steering_mode", &[("steeringMode", value)]).await;
        Ok(())
    }

    /// Sets and stores the delivery mode of the follow-up queue.
    ///
    /// # Errors
    ///
    /// The mode is unknown; nothing changes.
    pub async fn set_follow_up_mode(&self, command: SetFollowUpMode) -> Result<(), CommandError> {
        check_mode("followUpMode", &command.mode)?;
        let value = Value::from(command.mode.as_str());
        self.with(|state| state.queues.follow_up.mode = command.mode);
        self.store_settings("set_follow_up_mode", &[("followUpMode", value)]).await;
        Ok(())
    }

    /// Switches the model; a run that is active keeps its own.
    ///
    /// # Errors
    ///
    /// The model is unknown, its provider has no credentials or its API is not on hand.
    pub async fn set_model(&self, command: SetModel) -> Result<Model, CommandError> {
        let SetModel { provider, model_id } = command;
        let model = self
            .models()
            .find(&provider, &model_id)
            .filter(|model| self.models().has_auth(&provider) && self.models().has_wire(model))
            .ok_or_else(|| CommandError::Plain(format!("Model not found: {provider}/{model_id}")))?;
        let changed = self.with(|state| {
            let could_think = state.model.as_ref().is_some_and(|model| model.reasoning);
            state.model = Some(Arc::clone(&model));
            let mut stored = vec![
                state
                    .log
                    .append(EntryBody::ModelChange { provider: provider.clone(), model_id: model_id.clone() })
                    .durable,
            ];
            let wish = match could_think {
                true => state.thinking.clone(),
                false => self.settings().get().default_thinking_level().unwrap_or(thinking::DEFAULT),
            };
            let level = thinking::clamp(&model, &wish);
            let changed = (level != state.thinking).then(|| level.clone());
            if changed.is_some() {
                stored.push(state.log.append(EntryBody::ThinkingLevelChange { thinking_level: level.clone() }).durable);
                state.thinking = level;
            }
            (stored, changed)
        });
        let (stored, level) = changed;
        self.await_stored(stored).await;
        let mut settings = vec![("defaultProvider", Value::from(provider)), ("defaultModel", Value::from(model_id))];
        if let Some(level) = level.filter(|level| model.reasoning || *level != ThinkingLevel::Off) {
            settings.push(("defaultThinkingLevel", Value::from(level.as_str())));
        }
        self.store_settings("set_model", &settings).await;
        Ok(self.models().masked(&model))
    }

    /// Sets the thinking level, clamped to what the model can do.
    ///
    /// # Errors
    ///
    /// The level is unknown; nothing changes.
    pub async fn set_thinking_level(&self, command: SetThinkingLevel) -> Result<(), CommandError> {
        let SetThinkingLevel { level } = command;
        if !level.is_known() {
            return Err(invalid("defaultThinkingLevel", level.as_str(), ThinkingLevel::WORDS));
        }
        let changed = self.with(|state| {
            let reasoning = state.model.as_ref().is_some_and(|model| model.reasoning);
            let level = state.model.as_ref().map_or_else(|| level.clone(), |model| thinking::clamp(model, &level));
            if level == state.thinking {
                return None;
            }
            state.thinking = level.clone();
            let stored = state.log.append(EntryBody::ThinkingLevelChange { thinking_level: level.clone() }).durable;
            Some((stored, level, reasoning))
        });
        let Some((stored, level, reasoning)) = changed else { return Ok(()) };
        self.await_stored(vec![stored]).await;
        if reasoning || level != ThinkingLevel::Off {
            self.store_settings("set_thinking_level", &[("defaultThinkingLevel", Value::from(level.as_str()))]).await;
        }
        Ok(())
    }

    /// The models whose provider has credentials, by the files as they are now.
    pub async fn available_models(&self) -> Vec<Model> {
        for warning in self.models().refresh().await {
            tracing::warn!("{warning}");
        }
        self.models().available().iter().map(|model| self.models().masked(model)).collect()
    }

    /// The state as `get_state` shows it.
    #[must_use]
    pub fn snapshot(&self) -> SessionState {
        let subscription = |model: &Arc<Model>| self.models().uses_subscription(&model.provider);
        self.with(|state| SessionState {
            model: state.model.as_ref().map(|model| self.models().masked(model)),
            scoped_models: Vec::new(),
            tasks: Vec::new(),
            using_subscription: state.model.as_ref().is_some_and(subscription),
            thinking_level: state.thinking.clone(),
            is_streaming: state.is_streaming,
            is_retrying: state.is_retrying,
            retry_attempt: state.retry_attempt,
            is_compacting: false,
            steering_mode: state.queues.steering.mode.clone(),
            follow_up_mode: state.queues.follow_up.mode.clone(),
            session_file: state.log.path().map(|path| path.to_string_lossy().into_owned()),
            session_id: state.log.session_id().to_owned(),
            session_name: None,
            auto_compaction_enabled: self.settings().get().compaction().enabled,
            message_count: state.messages.len() as u64,
            pending_message_count: state.queues.len() as u64,
            context_usage: context_usage(&state.messages, state.model.as_deref()),
            model_fallback_message: None,
            extra: Extra::new(),
        })
    }

    /// The messages of the context, oldest first.
    #[must_use]
    pub fn messages(&self) -> Vec<Arc<AgentMessage>> {
        self.with(|state| state.messages.clone())
    }

    /// Text of the last answer that has any content or was not aborted; `None` without one.
    #[must_use]
    pub fn last_assistant_text(&self) -> Option<String> {
        self.with(|state| {
            let last = state.messages.iter().rev().find_map(|message| match message.as_ref() {
                AgentMessage::Assistant(answer)
                    if answer.stop_reason != StopReason::Aborted || !answer.content.is_empty() =>
                {
                    Some(answer)
                }
                _ => None,
            })?;
            let text = last.text().trim().to_owned();
            (!text.is_empty()).then_some(text)
        })
    }

    /// Writes settings; a failure is told as a notice, for the change itself is in force.
    async fn store_settings(&self, command: &str, changes: &[(&str, Value)]) {
        if let Err(error) = self.settings().update(changes).await {
            tracing::warn!(%error, command, "settings");
            self.ready().await;
            self.sink().emit(&super::notice("<settings>", command, error.to_string()));
        }
    }

    async fn await_stored(&self, stored: Vec<Durable>) {
        for durable in stored {
            let failure = durable.await.err().map(|error| error.to_string());
            self.with(|state| self.note_storage(state, failure));
        }
    }
}

/// Frees the session when the task of a run ends, also by a panic.
struct RunEnds {
    session: AgentSession,
    control: RunControl,
}

impl Drop for RunEnds {
    fn drop(&mut self) {
        self.session.with(|state| {
            state.is_streaming = false;
            state.is_retrying = false;
            state.retry_attempt = 0;
            state.run = None;
        });
        self.control.done.cancel();
    }
}

fn non_empty(images: Option<Vec<ImageContent>>) -> Option<Vec<ImageContent>> {
    images.filter(|images| !images.is_empty())
}

fn check_mode(key: &str, mode: &QueueMode) -> Result<(), CommandError> {
    if mode.is_known() { Ok(()) } else { Err(invalid(key, mode.as_str(), QueueMode::WORDS)) }
}

/// The text of `set_settings` for a word that is not in the list.
fn invalid(key: &str, word: &str, valid: &[&str]) -> CommandError {
    CommandError::Plain(format!("Invalid {key}: {}. Valid values: {}", Value::from(word), valid.join(", ")))
}
