//! What the session is right now.

use std::collections::HashMap;
use std::sync::Arc;

use protocol_schema::{AgentMessage, Model, ThinkingLevel};
use tokio_util::sync::CancellationToken;

use super::queues::Queues;
use crate::session::SessionLog;

/// State of a session. It is reached through [`AgentSession::with`](super::AgentSession) alone.
#[derive(Debug)]
pub(super) struct State {
    pub(super) log: SessionLog,
    pub(super) model: Option<Arc<Model>>,
    /// The thinking level in force; the model has it.
    pub(super) thinking: ThinkingLevel,
    pub(super) messages: Vec<Arc<AgentMessage>>,
    pub(super) queues: Queues,
    /// The run and all that follows from it, `None` when the agent is idle.
    pub(super) run: Option<RunControl>,
    /// Whether a run is between its start and its `agent_end`.
    pub(super) is_streaming: bool,
    /// Whether a failed run is tried again: from its `agent_end` to the end of the retries.
    pub(super) is_retrying: bool,
    /// The retry that was announced last, 0 for none.
    pub(super) retry_attempt: u32,
    /// Results of `bash` commands that came while the agent was streaming.
    pub(super) held_bash: Vec<AgentMessage>,
    /// Running `bash` commands.
    pub(super) bash: HashMap<u64, CancellationToken>,
    pub(super) next_bash: u64,
    /// Whether the last write of the session file failed; the failure is told once.
    pub(super) storage_failing: bool,
    /// Set when the server goes down; no new work begins.
    pub(super) closing: bool,
}

/// Handle to the task that drives a run.
#[derive(Debug, Clone)]
pub(super) struct RunControl {
    /// Aborts the run, its tools and the pause before a retry.
    pub(super) cancel: CancellationToken,
    /// Cancelled when the task is through, `agent_settled` included.
    pub(super) done: CancellationToken,
}
