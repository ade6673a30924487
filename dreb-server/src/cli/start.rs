//! Putting a session together and serving it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use protocol_schema::{Model, ThinkingLevel};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::flags::{Flags, TOOL_NAMES};
use super::standard_error::tell;
use crate::agent::{AgentSession, SessionParts};
use crate::context::{PromptOptions, PromptSource};
use crate::environment::{API_KEY_VARIABLE, Environment, Paths};
use crate::llm::anthropic::AnthropicMessages;
use crate::llm::cache_retention::CacheRetention;
use crate::llm::http::{HttpClient, HttpOptions};
use crate::llm::models::Models;
use crate::llm::openai_completions::OpenAiCompletions;
use crate::llm::resolve::{self, ResolveError, StartWishes};
use crate::llm::scripted::ScriptedProvider;
use crate::llm::{Provider, Secret};
use crate::process::Children;
use crate::rpc::output::Output;
use crate::rpc::{Ended, LineSink, input, stdio};
use crate::session::{LogOptions, SessionLog};
use crate::settings::Settings;
use crate::tools::bash::BashTool;
use crate::tools::{Tool, file_tools};

const API_KEY_NEEDS_MODEL: &str =
    "--api-key requires a model to be specified via --model, --provider/--model, or --models";

/// Why the server could not start; the text is for standard error.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// Standard input or output cannot be used.
    #[error("Error: cannot use standard input and output: {0}")]
    Stdio(io::Error),
    /// The working directory is gone or forbidden.
    #[error("Error: cannot use the working directory: {0}")]
    WorkingDirectory(io::Error),
    /// Signal handlers could not be set.
    #[error("Error: cannot handle signals: {0}")]
    Signals(io::Error),
    /// Reading the settings was cut off.
    #[error("Error: cannot read the settings: {0}")]
    Settings(String),
    /// The model flags name no model.
    #[error("{0}")]
    Model(String),
    /// No provider has credentials.
    #[error(
        "No models available.\n\nSet an API key in the environment, for example ANTHROPIC_API_KEY, OPENROUTER_API_KEY or \
         GROQ_API_KEY,\nor describe models of your own in {}.",
        .0.display()
    )]
    NoModels(PathBuf),
    /// The session cannot be stored.
    #[error("Error: {0}")]
    Session(#[from] crate::session::SessionError),
}

/// Serves one client; returns the exit code.
pub(super) async fn serve(flags: &Flags, environment: Environment) -> Result<u8, StartError> {
    let stdout = stdio::take_stdout().map_err(StartError::Stdio)?;
    let cwd = std::env::current_dir().map_err(StartError::WorkingDirectory)?;
    let stop = CancellationToken::new();
    let children = Arc::new(Children::new());
    let signals = Signals::watch(&stop, &children).map_err(StartError::Signals)?;
    let lines = input::spawn(io::stdin(), flags.max_line_bytes).map_err(StartError::Stdio)?;
    let output = Output::spawn(stdout).map_err(StartError::Stdio)?;
    let session = tokio::select! {
        session = open(flags, environment, cwd, &output, &children) => session?,
        // A disk that does not answer must not keep a server that is told to go.
        () = stop.cancelled() => return Ok(signals.exit_code()),
    };
    let ended = crate::rpc::serve(&session, lines, &output, &stop).await;
    children.shut_down().await;
    Ok(match ended {
        Ended::EndOfInput => 0,
        Ended::ReaderGone => 1,
        Ended::Stopped => signals.exit_code(),
    })
}

async fn open(
    flags: &Flags,
    environment: Environment,
    cwd: PathBuf,
    output: &Output,
    children: &Arc<Children>,
) -> Result<AgentSession, StartError> {
    let paths = Paths::new(&environment, cwd);
    warn_root();
    let of_paths = paths.clone();
    let opened = tokio::task::spawn_blocking(move || Settings::open(&of_paths)).await;
    let (settings, warnings) = opened.map_err(|error| StartError::Settings(error.to_string()))?;
    tell_all(&warnings);
    let http = HttpClient::new(HttpOptions::default());
    let wires: Vec<Arc<dyn Provider>> = vec![
        Arc::new(AnthropicMessages::new(http.clone(), CacheRetention::from_environment(&environment))),
        Arc::new(OpenAiCompletions::new(http)),
        Arc::new(ScriptedProvider::new()),
    ];
    let (models, warnings) = Models::open(&paths.agent_dir, environment.clone(), wires).await;
    tell_all(&warnings);
    let (model, thinking) = choose_model(flags, &settings, &models, &environment, &paths)?;
    let log = SessionLog::create(LogOptions {
        cwd: paths.cwd.clone(),
        session_dir: flags.session_dir.clone().or_else(|| settings.get().session_dir()),
        agent_dir: paths.agent_dir.clone(),
        persist: !flags.no_session,
        parent_session: None,
        agent_type: None,
    })?;
    let prompt = PromptSource::new(PromptOptions {
        paths: paths.clone(),
        system_prompt: flags.system_prompt.clone(),
        append_system_prompt: flags.append_system_prompt.clone(),
        ui: "rpc".to_owned(),
    });
    Ok(AgentSession::new(SessionParts {
        sink: Arc::new(LineSink::new(output.clone(), flags.event_detail)),
        log,
        models,
        settings,
        prompt,
        tools: active_tools(flags, children, &environment, &paths),
        children: Arc::clone(children),
        environment,
        cwd: paths.cwd,
        temp_dir: paths.temp_dir,
        model: Some(model),
        thinking,
    }))
}

/// The model and the thinking level to begin with, by the flags, the settings and what has credentials.
fn choose_model(
    flags: &Flags,
    settings: &Settings,
    models: &Models,
    environment: &Environment,
    paths: &Paths,
) -> Result<(Arc<Model>, ThinkingLevel), StartError> {
    if flags.api_key.is_some() && flags.model.is_none() {
        return Err(StartError::Model(API_KEY_NEEDS_MODEL.to_owned()));
    }
    let values = settings.get();
    let wishes = StartWishes {
        provider: flags.provider.as_deref(),
        model: flags.model.as_deref(),
        thinking: flags.thinking.clone(),
        default_model: values.default_provider().zip(values.default_model()),
        default_thinking: values.default_thinking_level(),
        ..StartWishes::default()
    };
    let start = resolve::start(models, &wishes).map_err(|error| match error {
        ResolveError::NoneAvailable => StartError::NoModels(paths.agent_dir.join("models.json")),
        other => StartError::Model(other.to_string()),
    })?;
    if let Some(warning) = start.warning {
        tell(format_args!("Warning: {warning}"));
    }
    if !models.has_wire(&start.model) {
        let Model { provider, id, api, .. } = &*start.model;
        tell(format_args!("Warning: {provider}/{id} cannot be used: this version does not speak its API, {api}."));
    }
    if let Some(key) = flags.api_key.as_deref().or_else(|| environment.get(API_KEY_VARIABLE)) {
        models.set_runtime_key(&start.model.provider, Secret::new(key));
    }
    Ok((start.model, start.thinking))
}

/// The tools in the order the model sees them.
fn active_tools(
    flags: &Flags,
    children: &Arc<Children>,
    environment: &Environment,
    paths: &Paths,
) -> Vec<Arc<dyn Tool>> {
    let mut tools = file_tools();
    tools.push(Arc::new(BashTool::new(Arc::clone(children), paths.temp_dir.clone(), environment.clone())));
    let place = |tool: &Arc<dyn Tool>| TOOL_NAMES.iter().position(|name| *name == tool.definition().name);
    tools.sort_by_key(place);
    if let Some(wanted) = &flags.tools {
        tools.retain(|tool| wanted.contains(&tool.definition().name));
    }
    tools
}

fn tell_all(warnings: &[String]) {
    warnings.iter().for_each(tell);
}

fn warn_root() {
    if nix::unistd::geteuid().is_root() {
        tell("Warning: running as root (UID 0); the agent's commands have full rights on this machine.");
    }
}

/// The signals that end the server in order; a second one ends it at once.
struct Signals {
    /// Number of the first signal that came.
    first: Arc<std::sync::atomic::AtomicU8>,
    task: tokio::task::JoinHandle<()>,
}

impl Signals {
    fn watch(stop: &CancellationToken, children: &Arc<Children>) -> io::Result<Self> {
        let first = Arc::new(std::sync::atomic::AtomicU8::new(0));
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (stop, children, number) = (stop.clone(), Arc::clone(children), Arc::clone(&first));
        let task = tokio::spawn(async move {
            loop {
                let came = tokio::select! {
                    _ = hangup.recv() => 1,
                    _ = interrupt.recv() => 2,
                    _ = terminate.recv() => 15,
                };
                if stop.is_cancelled() {
                    children.kill_all();
                    std::process::exit(128 + came);
                }
                number.store(u8::try_from(came).unwrap_or_default(), std::sync::atomic::Ordering::Relaxed);
                stop.cancel();
            }
        });
        Ok(Self { first, task })
    }

    /// 128 plus the signal's number, as shells have it.
    fn exit_code(&self) -> u8 {
        128 + self.first.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.task.abort();
    }
}
