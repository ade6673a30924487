//! The agent session: one conversation, its state, and the loop that works on it.
//!
//! The state sits behind a lock that is only ever held inside a closure ([`AgentSession`]'s `with`),
//! so it is never held across an await, every read answers at once, and each change is one step that
//! no other command can see half done.

mod answer;
mod arguments;
mod commands;
mod execute;
pub mod partial;
mod queues;
pub mod retry;
mod run;
mod shell;
pub mod sink;
mod state;
mod tool_set;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol_schema::event::{Event, ExtensionError, MessageEnd};
use protocol_schema::{AgentMessage, Extra, Model, ThinkingLevel};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::commands::{CommandError, Started};
use self::queues::{Queue, Queues};
use self::run::{Basis, RunSettings};
pub use self::sink::EventSink;
use self::state::State;
use self::tool_set::CheckedTool;
use crate::context::PromptSource;
use crate::environment::Environment;
use crate::llm::models::Models;
use crate::llm::thinking;
use crate::process::Children;
use crate::session::{EntryBody, SessionLog};
use crate::settings::Settings;
use crate::tools::{Tool, ToolSettings};

/// How long an abort or a shutdown waits for a run to end.
const ABORT_WAIT: Duration = Duration::from_secs(2);

/// Shell commands of the client that run at a time: well below the usual limit of 1024 open files, and
/// few enough to be killed in a moment.
const MAX_SHELLS: usize = 128;

/// What a session is made of.
#[derive(Debug)]
pub struct SessionParts {
    /// Where events go.
    pub sink: Arc<dyn EventSink>,
    /// The session file.
    pub log: SessionLog,
    /// Models and credentials.
    pub models: Models,
    /// Settings files.
    pub settings: Settings,
    /// Source of the system prompt.
    pub prompt: PromptSource,
    /// Active tools in the order the model sees them.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Child processes of the server.
    pub children: Arc<Children>,
    /// Environment of child processes.
    pub environment: Environment,
    /// Working directory, absolute.
    pub cwd: PathBuf,
    /// Folder for output files.
    pub temp_dir: PathBuf,
    /// The model to begin with.
    pub model: Option<Arc<Model>>,
    /// The thinking level to begin with, before it is clamped to the model.
    pub thinking: ThinkingLevel,
}

/// A conversation with its agent. Cheap to clone; all clones are the same session.
#[derive(Clone)]
pub struct AgentSession {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    sink: Arc<dyn EventSink>,
    models: Models,
    settings: Settings,
    prompt: PromptSource,
    tools: Arc<[CheckedTool]>,
    children: Arc<Children>,
    /// Turns of the client's shell commands.
    shells: Semaphore,
    environment: Environment,
    cwd: PathBuf,
    temp_dir: PathBuf,
    /// Cancelled when the server goes down; waiting for a slow reader ends then.
    closing: CancellationToken,
}

impl std::fmt::Debug for AgentSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentSession").field("cwd", &self.inner.cwd).finish_non_exhaustive()
    }
}

impl AgentSession {
    /// Begins a new session. Its first entries name the model and the thinking level.
    #[must_use]
    pub fn new(parts: SessionParts) -> Self {
        let thinking = parts.model.as_ref().map_or(ThinkingLevel::Off, |model| thinking::clamp(model, &parts.thinking));
        let mut state = State {
            queues: Queues {
                steering: Queue::new(parts.settings.get().steering_mode()),
                follow_up: Queue::new(parts.settings.get().follow_up_mode()),
            },
            model: parts.model,
            thinking,
            messages: Vec::new(),
            log: parts.log,
            run: None,
            is_streaming: false,
            is_retrying: false,
            retry_attempt: 0,
            held_bash: Vec::new(),
            bash: Default::default(),
            next_bash: 0,
            storage_failing: false,
            closing: false,
        };
        if let Some(model) = &state.model {
            // Entries before the first answer are only kept, so there is nothing to wait for.
            drop(
                state
                    .log
                    .append(EntryBody::ModelChange { provider: model.provider.clone(), model_id: model.id.clone() }),
            );
        }
        drop(state.log.append(EntryBody::ThinkingLevelChange { thinking_level: state.thinking.clone() }));
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(state),
                sink: parts.sink,
                models: parts.models,
                settings: parts.settings,
                prompt: parts.prompt,
                tools: parts.tools.into_iter().map(CheckedTool::new).collect(),
                children: parts.children,
                shells: Semaphore::new(MAX_SHELLS),
                environment: parts.environment,
                cwd: parts.cwd,
                temp_dir: parts.temp_dir,
                closing: CancellationToken::new(),
            }),
        }
    }

    /// Looks at or changes the state in one step.
    fn with<R>(&self, step: impl FnOnce(&mut State) -> R) -> R {
        // A step that panicked has been reported; the state it left is the best there is.
        step(&mut self.inner.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sink(&self) -> &dyn EventSink {
        self.inner.sink.as_ref()
    }

    fn sink_handle(&self) -> Arc<dyn EventSink> {
        Arc::clone(&self.inner.sink)
    }

    fn models(&self) -> &Models {
        &self.inner.models
    }

    fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    fn cwd(&self) -> &Path {
        &self.inner.cwd
    }

    /// Waits for room at the sink, but not while the server goes down.
    async fn ready(&self) {
        if !self.sink().has_room() {
            tokio::select! {
                () = self.sink().ready() => {}
                () = self.inner.closing.cancelled() => {}
            }
        }
    }

    /// Tells an event once there is room for it.
    async fn tell(&self, event: Event) {
        self.ready().await;
        self.sink().emit(&event);
    }

    /// Stores a message, then adds it to the context and tells its end in one step.
    async fn finish_message(&self, message: AgentMessage) {
        self.ready().await;
        let durable = self.with(|state| state.log.append(EntryBody::from(message.clone()))).durable;
        let stored = durable.await;
        self.with(|state| {
            self.note_storage(state, stored.err().map(|error| error.to_string()));
            state.messages.push(Arc::new(message.clone()));
            self.sink().emit(&Event::MessageEnd(MessageEnd { kind: Default::default(), message, extra: Extra::new() }));
        });
    }

    /// Tells the client once when the session file cannot be written.
    fn note_storage(&self, state: &mut State, failure: Option<String>) {
        match failure {
            Some(error) if !state.storage_failing => {
                state.storage_failing = true;
                tracing::error!(%error, "session file");
                self.sink().emit(&notice("<session>", "message_end", error));
            }
            Some(_) => {}
            None => state.storage_failing = false,
        }
    }

    fn tool_settings(&self) -> ToolSettings {
        let values = self.inner.settings.get();
        ToolSettings {
            shell_path: values.shell_path(),
            shell_command_prefix: values.shell_command_prefix().map(str::to_owned),
            auto_resize_images: values.images().auto_resize,
        }
    }

    async fn run_settings(&self, basis: Basis, cancel: CancellationToken) -> RunSettings {
        let inner = &self.inner;
        let Basis { model, thinking } = basis;
        let system_prompt = inner.prompt.build(tool_set::prompt_lines(&inner.tools), &model).await;
        RunSettings {
            thinking,
            system_prompt: system_prompt.into(),
            tools: Arc::clone(&inner.tools),
            definitions: tool_set::definitions(&inner.tools),
            tool_settings: Arc::new(self.tool_settings()),
            thinking_budgets: inner.settings.get().thinking_budgets(),
            model,
            cancel,
        }
    }

    /// Ends all work: runs are aborted with their events, shell commands killed. Returns when the run
    /// has ended or has taken too long.
    pub async fn stop(&self) {
        let (run, shells) = self.with(|state| {
            state.closing = true;
            (state.run.clone(), state.bash.values().cloned().collect::<Vec<_>>())
        });
        for shell in shells {
            shell.cancel();
        }
        if let Some(run) = run {
            run.cancel.cancel();
            // A reader that takes nothing must not keep the server alive.
            let patience = tokio::time::sleep(ABORT_WAIT / 2);
            tokio::select! {
                () = run.done.cancelled() => {}
                () = patience => {
                    self.inner.closing.cancel();
                    let _ = tokio::time::timeout(ABORT_WAIT, run.done.cancelled()).await;
                }
            }
        }
        self.inner.closing.cancel();
    }

    /// Writes the session file to its end. What is added later is not stored.
    pub async fn close(&self) {
        self.store_held_bash().await;
        let closed = self.with(|state| state.log.close());
        if let Err(error) = closed.await {
            tracing::error!(%error, "session file not complete");
        }
    }
}

/// A notice that something beside the agent's own work failed.
fn notice(part: &str, event: &str, error: String) -> Event {
    Event::ExtensionError(ExtensionError {
        kind: Default::default(),
        extension_path: part.to_owned(),
        event: event.to_owned(),
        error,
        extra: Extra::new(),
    })
}

/// Unix time in milliseconds.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
