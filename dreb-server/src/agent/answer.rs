//! One answer of the model: the request, its stream, and the retries that stay inside a turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol_schema::event::{Event, LengthRetry, MessageStart, StreamRetry};
use protocol_schema::{AgentMessage, AssistantMessage, StopReason};
use tokio::sync::mpsc;

use super::AgentSession;
use super::partial::Partial;
use super::run::RunSettings;
use crate::context::{ConvertOptions, to_llm_messages};
use crate::llm::{ProviderError, ProviderErrorKind, ProviderRequest, StreamEvent};

/// Bound of the channel between a provider and the loop; full means the network waits.
const EVENT_CHANNEL: usize = 64;
/// Retries after a stream that broke off.
const MAX_STREAM_RETRIES: u32 = 3;
/// Pause before the first of them; it doubles each time.
const STREAM_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Retries after an answer that hit its token limit.
const MAX_LENGTH_RETRIES: u32 = 2;
/// Token limit of an answer unless the model's own is smaller.
const DEFAULT_MAX_TOKENS: u64 = 32_000;

const ABORTED: &str = "Request was aborted.";
const DROPPED_REPEATEDLY: &str = "Stream dropped repeatedly — connection likely unstable";

/// A finished answer, stored and told.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) message: AssistantMessage,
    /// What the provider asked to wait, if it failed and said so.
    pub(super) retry_after: Option<Duration>,
}

/// One request and what came of it.
struct Attempt {
    /// What has come. Its `message_start` was told if `opened`.
    message: AssistantMessage,
    opened: bool,
    result: Result<StopReason, Failure>,
}

enum Failure {
    Aborted,
    Provider(ProviderError),
}

impl AgentSession {
    /// Asks the model until an answer stands, tells it and stores it.
    pub(super) async fn answer(&self, run: &RunSettings) -> Answer {
        let began = Instant::now();
        let limit = run.model.max_tokens;
        let mut budget = limit.min(DEFAULT_MAX_TOKENS);
        let (mut drops, mut lengths) = (0, 0);
        let (mut message, opened, retry_after) = loop {
            let Attempt { mut message, opened, result } = self.attempt(run, budget).await;
            let mut retry_after = None;
            match result {
                Ok(StopReason::Length) if lengths < MAX_LENGTH_RETRIES && budget < limit => {
                    lengths += 1;
                    drops = 0;
                    let next = budget.saturating_mul(2).min(limit);
                    message.stop_reason = StopReason::Length;
                    self.tell_length_retry(lengths, budget, next, opened.then_some(message)).await;
                    budget = next;
                    continue;
                }
                Ok(StopReason::Length) => {
                    let attempts = lengths + 1;
                    let plural = if attempts == 1 { "" } else { "s" };
                    fail(
                        &mut message,
                        format!(
                            "Response truncated at token limit after {attempts} attempt{plural} — output exceeded \
                             the model's maximum token budget"
                        ),
                    );
                }
                Ok(reason) => message.stop_reason = reason,
                Err(Failure::Provider(error)) if error.kind == ProviderErrorKind::Dropped => {
                    if drops < MAX_STREAM_RETRIES {
                        let pause = STREAM_RETRY_DELAY * 2u32.pow(drops);
                        drops += 1;
                        fail(&mut message, error.message.clone());
                        self.tell_stream_retry(drops, error.message, opened.then(|| message.clone())).await;
                        tokio::select! {
                            () = tokio::time::sleep(pause) => continue,
                            () = run.cancel.cancelled() => abort(&mut message),
                        }
                    } else {
                        fail(&mut message, DROPPED_REPEATEDLY.to_owned());
                    }
                }
                Err(Failure::Provider(error)) => {
                    if let ProviderErrorKind::Http { retry_after: asked, .. } = error.kind {
                        retry_after = asked;
                    }
                    fail(&mut message, error.message);
                }
                Err(Failure::Aborted) => abort(&mut message),
            }
            break (message, opened, retry_after);
        };
        message.duration_ms = Some((began.elapsed().as_secs_f64() * 1000.0).into());
        if !opened {
            self.tell_start(&message).await;
        }
        self.finish_message(AgentMessage::Assistant(message.clone())).await;
        if message.stop_reason != StopReason::Error {
            self.end_retries(None).await;
        }
        Answer { message, retry_after }
    }

    async fn attempt(&self, run: &RunSettings, max_tokens: u64) -> Attempt {
        let model = &run.model;
        let message = AssistantMessage::empty(&model.api, &model.provider, &model.id, super::now_ms());
        if run.cancel.is_cancelled() {
            return Attempt { message, opened: false, result: Err(Failure::Aborted) };
        }
        let (provider, request) = match self.request(run, max_tokens).await {
            Ok(ready) => ready,
            Err(error) => return Attempt { message, opened: false, result: Err(Failure::Provider(error)) },
        };
        tracing::debug!(model = %model.id, provider = %model.provider, messages = request.messages.len(), "request");
        let (sender, mut events) = mpsc::channel(EVENT_CHANNEL);
        let mut stream = provider.stream(request, sender);
        let mut partial = Partial::new(message);
        let mut opened = false;
        let mut result = None;
        loop {
            tokio::select! {
                biased;
                () = run.cancel.cancelled() => {
                    return Attempt { message: partial.into_message(), opened, result: Err(Failure::Aborted) };
                }
                event = events.recv() => match event {
                    Some(event) => {
                        if !opened {
                            opened = true;
                            self.tell_start(partial.message()).await;
                        }
                        self.take_piece(run, &mut partial, event).await;
                    }
                    // Every sender is gone: the stream has ended and nothing is left in the channel.
                    None => {
                        let result: Result<StopReason, ProviderError> = match result.take() {
                            Some(result) => result,
                            None => stream.await,
                        };
                        let message = partial.into_message();
                        return Attempt { message, opened, result: result.map_err(Failure::Provider) };
                    }
                },
                ended = &mut stream, if result.is_none() => result = Some(ended),
            }
        }
    }

    async fn take_piece(&self, run: &RunSettings, partial: &mut Partial, event: StreamEvent) {
        if !self.sink().has_room() {
            tokio::select! {
                // The abort is handled by the caller; what has come is still shown in the message's end.
                () = run.cancel.cancelled() => {}
                () = self.sink().ready() => {}
            }
        }
        let sink = self.sink();
        partial.apply(event, &mut |partial, piece| sink.emit_piece(partial, piece));
    }

    async fn request(
        &self,
        run: &RunSettings,
        max_tokens: u64,
    ) -> Result<(Arc<dyn crate::llm::Provider>, ProviderRequest), ProviderError> {
        let model = &run.model;
        let provider = self
            .models()
            .wire(&model.api)
            .ok_or_else(|| ProviderError::other(format!("No API provider registered for api: {}", model.api)))?;
        let api_key =
            self.models().key(&model.provider).await.map_err(|error| ProviderError::other(error.to_string()))?;
        let (messages, session_id) = self.with(|state| (state.messages.clone(), state.log.session_id().to_owned()));
        let request = ProviderRequest {
            model: Arc::clone(model),
            system_prompt: Arc::clone(&run.system_prompt),
            messages: to_llm_messages(
                messages.iter().map(AsRef::as_ref),
                ConvertOptions { block_images: self.settings().get().images().block_images },
            ),
            tools: Arc::clone(&run.definitions),
            thinking: run.thinking.clone(),
            max_tokens,
            api_key,
            session_id: Some(session_id),
            thinking_budgets: run.thinking_budgets.clone(),
            thinking_display: self.settings().get().thinking_display(&model.id),
        };
        Ok((provider, request))
    }

    async fn tell_start(&self, message: &AssistantMessage) {
        self.tell(Event::MessageStart(MessageStart {
            kind: Default::default(),
            message: AgentMessage::Assistant(message.clone()),
            extra: Default::default(),
        }))
        .await;
    }

    async fn tell_stream_retry(&self, attempt: u32, error: String, partial: Option<AssistantMessage>) {
        self.tell(Event::StreamRetry(StreamRetry {
            kind: Default::default(),
            attempt,
            max_attempts: MAX_STREAM_RETRIES,
            error,
            discarded_partial: partial.map(|message| Box::new(AgentMessage::Assistant(message))),
            extra: Default::default(),
        }))
        .await;
    }

    async fn tell_length_retry(&self, attempt: u32, previous: u64, next: u64, partial: Option<AssistantMessage>) {
        self.tell(Event::LengthRetry(LengthRetry {
            kind: Default::default(),
            attempt,
            max_attempts: MAX_LENGTH_RETRIES,
            previous_max_tokens: previous,
            next_max_tokens: next,
            discarded_partial: partial.map(|message| Box::new(AgentMessage::Assistant(message))),
            extra: Default::default(),
        }))
        .await;
    }
}

fn fail(message: &mut AssistantMessage, text: String) {
    message.stop_reason = StopReason::Error;
    message.error_message = Some(text);
}

fn abort(message: &mut AssistantMessage) {
    message.stop_reason = StopReason::Aborted;
    message.error_message = Some(ABORTED.to_owned());
}
