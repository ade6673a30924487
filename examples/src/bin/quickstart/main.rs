//! An agent at work, from start to end: starts the bundled server, lets it mend a small project whose
//! tests fail, shows the events while they stream, and checks for itself that the tests pass.
//!
//! Without options a script plays the model, so neither a key nor a network is needed.

mod options;
mod project;
mod view;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use dreb_client::protocol::AgentMessage;
use dreb_client::{ClientEvent, RpcClient, RpcClientOptions, RunOutcome};

use options::{HELP, Options};
use project::Project;
use view::{Style, View};

const PROMPT: &str = "The tests fail (sh run-tests.sh). Find out why and mend it.";

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    // First of all: the client starts this program once more, and there this becomes the server.
    dreb_client::bundled::init();

    let options = match Options::parse(env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned())) {
        Ok(options) => options,
        Err(mistake) => {
            eprintln!("Error: {mistake}");
            return ExitCode::from(2);
        }
    };
    match quickstart(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn quickstart(options: &Options) -> Result<(), Failure> {
    let mut view = View::of_stdout();
    if options.help {
        return Ok(view.line(Style::Plain, HELP.trim_end())?);
    }
    let mut project = Project::create()?;
    if options.keep {
        let folder = project.keep();
        view.line(Style::Dim, format_args!("Kept in  {}", folder.display()))?;
    }
    if project.passes_its_tests().await? {
        return Err("the project is meant to be broken, but its tests pass".into());
    }

    let client = RpcClient::start(server_options(options, &project)).await?;
    let worked = work(&client, &mut view).await;
    // Whatever happened: afterwards no process is left.
    let ended = client.shutdown().await;
    view.end_line()?;
    let outcome = worked?;

    if let Some(error) = outcome.error_message() {
        return Err(format!("the agent gave up: {error}").into());
    }
    if !project.passes_its_tests().await? {
        return Err("the agent has ended, but the tests still fail".into());
    }
    if ended.code() != Some(0) {
        return Err(format!("the server did not end in order: {ended}").into());
    }
    view.gap()?;
    view.line(Style::Good, "Checked: the project's tests pass.")?;
    let answers = outcome.messages.iter().filter(|message| matches!(message, AgentMessage::Assistant(_))).count();
    view.usage(answers, &outcome.usage)?;
    Ok(())
}

/// How the server is started: with the given model, or with the script and a home folder of its own.
fn server_options(options: &Options, project: &Project) -> RpcClientOptions {
    let mut server = RpcClientOptions::new().bundled().cwd(project.root()).session_dir(project.sessions());
    match &options.model {
        Some(model) => {
            server = server.model(model).env_remove("DREB_SCRIPT");
            if let Some(provider) = &options.provider {
                server = server.provider(provider);
            }
        }
        None => {
            server = server
                .provider("scripted")
                .model("scripted")
                .env("DREB_SCRIPT", project.script())
                .env("HOME", project.home())
                .env_remove("DREB_CODING_AGENT_DIR");
        }
    }
    match &options.thinking {
        Some(level) => server.thinking(level.clone()),
        None => server,
    }
}

/// Sends the prompt and shows the events until the run is over.
async fn work(client: &RpcClient, view: &mut View<std::io::Stdout>) -> Result<RunOutcome, Failure> {
    let state = client.get_state().await?;
    if let Some(model) = &state.model {
        let (provider, id) = (&model.provider, &model.id);
        view.line(Style::Dim, format_args!("Model    {provider}/{id}, thinking {}", state.thinking_level))?;
    }
    view.line(Style::Dim, format_args!("Prompt   {PROMPT}"))?;

    let mut events = client.events_lossless();
    let run = client.prompt_and_wait(PROMPT);
    tokio::pin!(run);
    loop {
        tokio::select! {
            // Events first, so that all of the run is shown before it counts as over.
            biased;
            Some(event) = events.next() => match event {
                ClientEvent::Event(event) => view.event(&event)?,
                ClientEvent::Malformed(line) => view.line(Style::Bad, format_args!("Malformed line: {}", line.error))?,
                // The run fails with the end of the server; a lossless subscription never lags.
                _ => {}
            },
            outcome = &mut run => return Ok(outcome?),
            signal = tokio::signal::ctrl_c() => return Err(signal.err().map_or("interrupted".into(), Failure::from)),
        }
    }
}

/// An error and what led to it.
fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
