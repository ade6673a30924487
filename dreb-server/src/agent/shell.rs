//! Shell commands of the client.

use std::sync::Arc;

use protocol_schema::message::BashExecutionMessage;
use protocol_schema::shell::{Bash, BashResult};
use protocol_schema::{AgentMessage, Extra};
use tokio_util::sync::CancellationToken;

use super::{AgentSession, CommandError};
use crate::process::ShellOptions;
use crate::session::EntryBody;
use crate::tools::user_command::{UserCommandOptions, run_user_command};

impl AgentSession {
    /// Runs a shell command and keeps its output for the next prompt. While many are running it waits.
    ///
    /// Not cancel-safe: a dropped future kills the command and records nothing.
    ///
    /// # Errors
    ///
    /// The shell cannot be started.
    pub async fn bash(&self, command: Bash) -> Result<BashResult, CommandError> {
        let cancel = CancellationToken::new();
        let id = self.with(|state| {
            state.next_bash += 1;
            state.bash.insert(state.next_bash, cancel.clone());
            if state.closing {
                cancel.cancel();
            }
            state.next_bash
        });
        let _done = BashDone { session: self, id };
        let _turn = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            turn = self.inner.shells.acquire() => turn.ok(),
        };
        let settings = self.tool_settings();
        let options = UserCommandOptions {
            shell: ShellOptions {
                cwd: self.cwd().to_path_buf(),
                shell_path: settings.shell_path,
                command_prefix: settings.shell_command_prefix,
                environment: self.inner.environment.clone(),
            },
            temp_dir: self.inner.temp_dir.clone(),
        };
        let result = run_user_command(&self.inner.children, &command.command, &options, cancel)
            .await
            .map_err(|error| CommandError::Failed(error.to_string()))?;
        let full_output_path = result.full_output_path.map(|path| path.to_string_lossy().into_owned());
        let message = AgentMessage::BashExecution(BashExecutionMessage {
            kind: Default::default(),
            command: command.command,
            output: result.output.clone(),
            exit_code: result.exit_code,
            cancelled: result.cancelled,
            truncated: result.truncated,
            full_output_path: full_output_path.clone(),
            timestamp: super::now_ms(),
            exclude_from_context: None,
            extra: Extra::new(),
        });
        self.record_bash(message).await;
        Ok(BashResult {
            output: result.output,
            exit_code: result.exit_code,
            cancelled: result.cancelled,
            truncated: result.truncated,
            full_output_path,
            extra: Extra::new(),
        })
    }

    /// Aborts every running `bash` command.
    pub fn abort_bash(&self) {
        self.with(|state| state.bash.values().for_each(CancellationToken::cancel));
    }

    /// Adds the result to the context, after the run if one is active.
    async fn record_bash(&self, message: AgentMessage) {
        let held = self.with(|state| {
            if state.is_streaming {
                state.held_bash.push(message.clone());
            }
            state.is_streaming
        });
        if !held {
            self.store_held_bash().await;
            self.store_quietly(message).await;
        }
    }

    /// Stores what came while the agent was streaming.
    pub(super) async fn store_held_bash(&self) {
        for message in self.with(|state| std::mem::take(&mut state.held_bash)) {
            self.store_quietly(message).await;
        }
    }

    /// Stores a message and adds it to the context without an event.
    async fn store_quietly(&self, message: AgentMessage) {
        let durable = self.with(|state| {
            let appended = state.log.append(EntryBody::from(message.clone()));
            state.messages.push(Arc::new(message));
            appended.durable
        });
        let failure = durable.await.err().map(|error| error.to_string());
        self.with(|state| self.note_storage(state, failure));
    }
}

/// Forgets a command when it is over, also when its future is dropped.
struct BashDone<'a> {
    session: &'a AgentSession,
    id: u64,
}

impl Drop for BashDone<'_> {
    fn drop(&mut self) {
        self.session.with(|state| state.bash.remove(&self.id));
    }
}
