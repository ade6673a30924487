//! Waiting for runs.

use std::time::Duration;

use protocol_schema::message::AgentMessage;
use protocol_schema::queue::Prompt;
use protocol_schema::session::{GetState, SessionState};
use protocol_schema::{AssistantMessage, Command, Event, StopReason, Usage};
use tokio::time::Instant;

use crate::client::{RpcClient, decode_data};
use crate::error::{CallError, ExitNotice, ExitReason};
use crate::events::{ClientEvent, Events};

/// How long `agent_settled` may take after `agent_end` before the state is asked for.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// How often the state is asked for while it says that something goes on that has no event of its own.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// So often in a row the state must say idle before a prompt counts as done without a run.
const IDLE_LOOKS: u32 = 4;

/// What a prompt came to.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RunOutcome {
    /// Every message that was completed, in order: the prompt itself, answers, tool results, and
    /// answers that failed and were tried again. Empty if the prompt was handled without a run.
    pub messages: Vec<AgentMessage>,
    /// The sum over all answers.
    pub usage: Usage,
}

impl RunOutcome {
    /// The last answer.
    #[must_use]
    pub fn last_answer(&self) -> Option<&AssistantMessage> {
        self.messages.iter().rev().find_map(|message| match message {
            AgentMessage::Assistant(answer) => Some(answer),
            _ => None,
        })
    }

    /// The text of the last answer, empty if there is none.
    #[must_use]
    pub fn text(&self) -> String {
        self.last_answer().map(AssistantMessage::text).unwrap_or_default()
    }

    /// Why the last answer ended. `None` if there is no answer.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&StopReason> {
        self.last_answer().map(|answer| &answer.stop_reason)
    }

    /// What went wrong with the last answer. `None` if nothing did.
    #[must_use]
    pub fn error_message(&self) -> Option<&str> {
        self.last_answer().and_then(|answer| answer.error_message.as_deref())
    }

    fn push(&mut self, message: AgentMessage) {
        if let AgentMessage::Assistant(answer) = &message {
            add(&mut self.usage, &answer.usage);
        }
        self.messages.push(message);
    }
}

fn add(sum: &mut Usage, usage: &Usage) {
    let total = |usage: &Usage| {
        let parts = usage.input + usage.output + usage.cache_read + usage.cache_write;
        usage.total_tokens.unwrap_or(parts)
    };
    sum.total_tokens = Some(total(sum) + total(usage));
    sum.input += usage.input;
    sum.output += usage.output;
    sum.cache_read += usage.cache_read;
    sum.cache_write += usage.cache_write;
    sum.cost.input += usage.cost.input;
    sum.cost.output += usage.cost.output;
    sum.cost.cache_read += usage.cost.cache_read;
    sum.cost.cache_write += usage.cost.cache_write;
    sum.cost.total += usage.cost.total;
}

/// What the server is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Activity {
    Idle,
    /// A run, whose end is an event.
    Running,
    /// A retry or a compaction, whose end may be none.
    Between,
}

impl RpcClient {
    /// Waits until nothing runs: no run, no retry, no compaction. Returns at once if that is so now.
    ///
    /// It believes `agent_settled`; for servers that do not send it, `agent_end` followed by a
    /// `get_state` that shows nothing running. There is no time limit.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call); the server's end among them.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn wait_for_idle(&self) -> Result<(), CallError> {
        // Before the state is asked for, so that an end between the two is not missed.
        let mut events = self.events_without_updates();
        let mut next_look = Some(Instant::now());
        // Where in the stream the state was last told; what ends before that says nothing of now.
        let mut told = u64::MAX;
        loop {
            match next_or_look(&mut events, next_look).await {
                None => {
                    let (activity, position) = self.activity().await?;
                    told = position;
                    match activity {
                        Activity::Idle => return Ok(()),
                        Activity::Running => next_look = None,
                        Activity::Between => next_look = Some(Instant::now() + POLL_INTERVAL),
                    }
                }
                Some((_, ClientEvent::Exited(notice))) => return Err(notice.into()),
                Some((position, ClientEvent::Event(event))) => match &*event {
                    Event::AgentSettled(_) if position >= told => return Ok(()),
                    // The end of what the state told of, or of a run before that one.
                    Event::AgentSettled(_) => next_look = Some(Instant::now()),
                    Event::AgentEnd(_) => next_look = Some(self.look_after_end()),
                    _ => {}
                },
                // It may have been the end.
                Some((_, ClientEvent::Malformed(_))) => next_look = Some(Instant::now()),
                Some((_, ClientEvent::Lagged(_))) => {}
            }
        }
    }

    /// Sends a prompt and waits until everything that comes of it is over, retries included.
    ///
    /// There is no time limit. A run that fails is not an error of the call: see
    /// [`RunOutcome::stop_reason`] and [`RunOutcome::error_message`].
    ///
    /// # Errors
    ///
    /// As [`prompt`](Self::prompt); the server's end among them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not end the run, [`abort`](Self::abort) does.
    pub async fn prompt_and_wait(&self, message: impl Into<String>) -> Result<RunOutcome, CallError> {
        self.run(Prompt::new(message)).await
    }

    /// Like [`prompt_and_wait`](Self::prompt_and_wait), with all that a prompt can have. A prompt
    /// that is queued behind a run ends with that run.
    ///
    /// # Errors
    ///
    /// As [`prompt_and_wait`](Self::prompt_and_wait).
    ///
    /// # Cancel safety
    ///
    /// As [`prompt_and_wait`](Self::prompt_and_wait).
    pub async fn run(&self, prompt: Prompt) -> Result<RunOutcome, CallError> {
        // Before the prompt, so that even a run that ends at once is seen.
        let mut events = self.events_without_updates();
        let accepted = self.request(&prompt, Prompt::TIMEOUT).await?.position;
        let mut outcome = RunOutcome::default();
        let mut started = false;
        let mut idle_looks = 0;
        // Some prompts start no run, and no event says so.
        let mut next_look = Some(Instant::now() + POLL_INTERVAL);
        loop {
            let event = match next_or_look(&mut events, next_look).await {
                None => {
                    let (activity, position) = self.activity().await?;
                    match activity {
                        // A whole run may have come and gone before the answer.
                        Activity::Idle if events.is_behind(position) => next_look = Some(Instant::now()),
                        Activity::Idle if started => return Ok(outcome),
                        Activity::Idle => {
                            idle_looks += 1;
                            if idle_looks == IDLE_LOOKS {
                                return Ok(outcome);
                            }
                            next_look = Some(Instant::now() + POLL_INTERVAL);
                        }
                        Activity::Running => {
                            started = true;
                            next_look = None;
                        }
                        Activity::Between => {
                            idle_looks = 0;
                            next_look = Some(Instant::now() + POLL_INTERVAL);
                        }
                    }
                    continue;
                }
                // The tail of what was before.
                Some((position, _)) if position < accepted => continue,
                Some((_, ClientEvent::Exited(notice))) => return Err(notice.into()),
                Some((_, ClientEvent::Event(event))) => event,
                Some((_, ClientEvent::Malformed(_))) => {
                    next_look = Some(Instant::now() + POLL_INTERVAL);
                    continue;
                }
                Some((_, ClientEvent::Lagged(_))) => continue,
            };
            match &*event {
                Event::AgentStart(_) => {
                    started = true;
                    next_look = None;
                }
                Event::MessageEnd(_) => {
                    if let Event::MessageEnd(end) = event.into_event() {
                        outcome.push(end.message);
                    }
                }
                Event::AgentEnd(_) => {
                    started = true;
                    next_look = Some(self.look_after_end());
                }
                Event::AgentSettled(_) if started => return Ok(outcome),
                _ => {}
            }
        }
    }

    /// When to ask for the state after `agent_end`: at once, unless the server is one that says
    /// itself when it has settled.
    fn look_after_end(&self) -> Instant {
        let settles = self.server_version().is_some_and(|version| version.protocol_version.is_some());
        Instant::now() + if settles { SETTLE_TIME } else { Duration::ZERO }
    }

    /// What goes on, and the position in the stream at which the server told it.
    async fn activity(&self) -> Result<(Activity, u64), CallError> {
        let answer = self.request(&GetState {}, GetState::TIMEOUT).await?;
        let position = answer.position;
        let state = decode_data::<SessionState>(GetState::NAME, answer).await?;
        let activity = if state.is_streaming {
            Activity::Running
        } else if state.is_retrying || state.is_compacting {
            Activity::Between
        } else {
            Activity::Idle
        };
        Ok((activity, position))
    }
}

/// The next event, `None` when the time of the look has come first.
async fn next_or_look(events: &mut Events, look: Option<Instant>) -> Option<(u64, ClientEvent)> {
    let next = async {
        match events.next_positioned().await {
            Some(item) => item,
            // The notice of the end is always taken, so this is never read.
            None => (u64::MAX, ClientEvent::Exited(ExitNotice::new(ExitReason::Disconnected, false, String::new()))),
        }
    };
    match look {
        None => Some(next.await),
        Some(look) => tokio::time::timeout_at(look, next).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn usage_is_summed_and_totals_are_made_up_when_absent() {
        let mut outcome = RunOutcome::default();
        for (input, total) in [(3, None), (4, Some(11))] {
            let mut answer = AssistantMessage::empty("a", "p", "m", 0);
            answer.usage = Usage { input, output: 1, total_tokens: total, ..Usage::default() };
            answer.usage.cost.total = 0.5.into();
            outcome.push(AgentMessage::Assistant(answer));
        }
        assert_eq!((outcome.usage.input, outcome.usage.output, outcome.usage.total_tokens), (7, 2, Some(15)));
        assert_eq!(outcome.usage.cost.total, 1.0.into());
        assert_eq!(outcome.stop_reason(), Some(&StopReason::Stop));
        assert_eq!(outcome.text(), "");
    }
}
