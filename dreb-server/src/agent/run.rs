//! A run: from the prompt to `agent_end`, and what follows from it by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol_schema::event::{
    AgentEnd, AgentSettled, AgentStart, AutoRetryEnd, AutoRetryStart, Event, MessageStart, TurnEnd, TurnStart,
};
use protocol_schema::model::ModelRef;
use protocol_schema::queue::QueuedMessage;
use protocol_schema::{
    AgentMessage, AssistantMessage, Extra, Model, StopReason, ThinkingLevel, ToolResultMessage, UserMessage,
};
use tokio_util::sync::CancellationToken;

use super::AgentSession;
use super::retry::{delay, is_transient};
use super::state::State;
use super::tool_set::CheckedTool;
use crate::llm::ToolDefinition;
use crate::tools::ToolSettings;

/// The model of a run and how much it thinks.
#[derive(Debug)]
pub(super) struct Basis {
    pub(super) model: Arc<Model>,
    pub(super) thinking: ThinkingLevel,
}

impl Basis {
    /// What is set now; `None` without a model.
    pub(super) fn of(state: &State) -> Option<Self> {
        Some(Self { model: state.model.clone()?, thinking: state.thinking.clone() })
    }
}

/// What a run goes by from its start to its end, whatever is changed meanwhile.
#[derive(Debug)]
pub(super) struct RunSettings {
    pub(super) model: Arc<Model>,
    pub(super) thinking: ThinkingLevel,
    pub(super) system_prompt: Arc<str>,
    pub(super) tools: Arc<[CheckedTool]>,
    pub(super) definitions: Arc<[ToolDefinition]>,
    pub(super) tool_settings: Arc<ToolSettings>,
    pub(super) thinking_budgets: BTreeMap<String, u64>,
    /// Aborts the run.
    pub(super) cancel: CancellationToken,
}

/// What a run brought.
struct RunResult {
    messages: Vec<AgentMessage>,
    last: Option<AssistantMessage>,
    retry_after: Option<Duration>,
}

enum Next {
    Settled,
    Retry { attempt: u32, pause: Duration },
    GaveUp { error: String },
}

impl AgentSession {
    /// Carries a run through, retries included, and says when all is quiet.
    pub(super) async fn drive(&self, mut prompts: Vec<AgentMessage>, cancel: CancellationToken, mut basis: Basis) {
        loop {
            let run = self.run_settings(basis, cancel.clone()).await;
            let result = self.run(&run, std::mem::take(&mut prompts)).await;
            let next = self.after(&result);
            let messages = result.messages;
            self.ready().await;
            self.with(|state| {
                state.is_streaming = false;
                state.is_retrying |= matches!(next, Next::Retry { .. });
                let end = AgentEnd { kind: Default::default(), messages, extra: Extra::new() };
                self.sink().emit(&Event::AgentEnd(end));
            });
            match next {
                Next::Settled => break,
                Next::GaveUp { error } => {
                    self.end_retries(Some(error)).await;
                    break;
                }
                Next::Retry { attempt, pause } => {
                    match self.wait_for_retry(attempt, pause, result.last, &cancel).await {
                        Some(now) => basis = now,
                        None => break,
                    }
                }
            }
        }
        self.tell(Event::AgentSettled(AgentSettled::default())).await;
    }

    async fn run(&self, run: &RunSettings, prompts: Vec<AgentMessage>) -> RunResult {
        let mut result = RunResult { messages: Vec::new(), last: None, retry_after: None };
        self.tell(Event::AgentStart(AgentStart {
            kind: Default::default(),
            model: ModelRef { provider: run.model.provider.clone(), id: run.model.id.clone() },
            thinking_level: run.thinking.clone(),
            extra: Extra::new(),
        }))
        .await;
        self.tell(Event::TurnStart(TurnStart::default())).await;
        for message in prompts {
            self.deliver(message, &mut result).await;
        }
        let steering = self.with(|state| state.queues.steering.drain());
        self.deliver_queued(steering, &mut result).await;
        loop {
            let answer = self.answer(run).await;
            result.retry_after = answer.retry_after;
            let message = answer.message;
            result.messages.push(AgentMessage::Assistant(message.clone()));
            result.last = Some(message.clone());
            if matches!(message.stop_reason, StopReason::Error | StopReason::Aborted) {
                self.end_turn(message, Vec::new()).await;
                break;
            }
            let calls: Vec<_> = message.tool_calls().cloned().collect();
            let called = !calls.is_empty();
            let executed = self.execute(run, calls).await;
            result.messages.extend(executed.results.iter().cloned().map(AgentMessage::ToolResult));
            self.end_turn(message, executed.results).await;

            let answer_due = called && !executed.end_turn;
            let queued = self.with(|state| {
                // What is queued waits for the next run once the user has aborted this one.
                if run.cancel.is_cancelled() {
                    return Vec::new();
                }
                let steering = if executed.end_turn { Vec::new() } else { state.queues.steering.drain() };
                if steering.is_empty() && !answer_due { state.queues.drain_at_stop() } else { steering }
            });
            if !answer_due && queued.is_empty() {
                break;
            }
            self.deliver_queued(queued, &mut result).await;
            self.tell(Event::TurnStart(TurnStart::default())).await;
        }
        result
    }

    async fn deliver_queued(&self, queued: Vec<QueuedMessage>, result: &mut RunResult) {
        for message in queued {
            self.deliver(user_message(message), result).await;
        }
    }

    async fn deliver(&self, message: AgentMessage, result: &mut RunResult) {
        self.tell(Event::MessageStart(MessageStart {
            kind: Default::default(),
            message: message.clone(),
            extra: Extra::new(),
        }))
        .await;
        self.finish_message(message.clone()).await;
        result.messages.push(message);
    }

    async fn end_turn(&self, message: AssistantMessage, tool_results: Vec<ToolResultMessage>) {
        self.tell(Event::TurnEnd(TurnEnd {
            kind: Default::default(),
            message: AgentMessage::Assistant(message),
            tool_results,
            extra: Extra::new(),
        }))
        .await;
    }

    /// Decides what follows a run.
    fn after(&self, result: &RunResult) -> Next {
        let policy = self.settings().get().retry();
        let failure = result.last.as_ref().filter(|message| message.stop_reason == StopReason::Error);
        let Some(error) = failure.and_then(|message| message.error_message.clone()) else { return Next::Settled };
        let attempt = self.with(|state| state.retry_attempt) + 1;
        if policy.enabled && is_transient(&error) && attempt <= policy.max_retries {
            return Next::Retry { attempt, pause: delay(&policy, attempt, result.retry_after) };
        }
        match attempt {
            1 => Next::Settled,
            _ => Next::GaveUp { error },
        }
    }

    /// Announces a retry and waits for its time; the answer is what it goes by, `None` if it was
    /// cancelled.
    async fn wait_for_retry(
        &self,
        attempt: u32,
        pause: Duration,
        failed: Option<AssistantMessage>,
        cancel: &CancellationToken,
    ) -> Option<Basis> {
        let start = AutoRetryStart {
            kind: Default::default(),
            attempt,
            max_attempts: self.settings().get().retry().max_retries,
            delay_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            error_message: failed.and_then(|message| message.error_message).unwrap_or_default(),
            extra: Extra::new(),
        };
        self.ready().await;
        self.with(|state| {
            state.retry_attempt = attempt;
            // The failed answer stays in the session file, but the model does not see it. It need not be
            // the last message: a shell command of the client may have ended since.
            if let Some(place) = state.messages.iter().rposition(|message| is_failed(message)) {
                state.messages.remove(place);
            }
            self.sink().emit(&Event::AutoRetryStart(start));
        });
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = cancel.cancelled() => {
                self.end_retries(Some("Retry cancelled".to_owned())).await;
                return None;
            }
        }
        // A retry is a run of its own: it goes by what has been set meanwhile.
        self.with(|state| {
            let basis = Basis::of(state)?;
            state.is_streaming = true;
            Some(basis)
        })
    }

    /// Ends a series of retries, if there is one; without an error they have helped.
    pub(super) async fn end_retries(&self, error: Option<String>) {
        self.ready().await;
        self.with(|state| {
            if !std::mem::take(&mut state.is_retrying) {
                return;
            }
            self.sink().emit(&Event::AutoRetryEnd(AutoRetryEnd {
                kind: Default::default(),
                success: error.is_none(),
                attempt: std::mem::take(&mut state.retry_attempt),
                final_error: error,
                extra: Extra::new(),
            }));
        });
    }
}

fn is_failed(message: &AgentMessage) -> bool {
    matches!(message, AgentMessage::Assistant(message) if message.stop_reason == StopReason::Error)
}

/// The user message for a text with images.
pub(super) fn user_message(message: QueuedMessage) -> AgentMessage {
    let mut content = vec![protocol_schema::ContentBlock::text(message.text)];
    content.extend(message.images.unwrap_or_default().into_iter().map(protocol_schema::ContentBlock::Image));
    AgentMessage::User(UserMessage::new(content, super::now_ms()))
}
