//! The `bash` tool: a command line in the working directory of the session.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use protocol_schema::Number;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::terminal::{Tail, Terminal};
use super::truncate::{Limits, MAX_BYTES, TruncatedBy, Truncation, format_size, truncate_tail};
use super::{ProgressSink, Tool, ToolContext, ToolError, ToolOutput, ToolProgress};
use crate::environment::Environment;
use crate::llm::ToolDefinition;
use crate::process::{Children, OutputFile, Sanitizer, SavedOutput, ShellOptions, ShellProcess, Utf8Decoder};

/// Least time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The `bash` tool.
#[derive(Debug)]
pub struct BashTool {
    definition: ToolDefinition,
    host: Host,
}

/// What all calls share.
#[derive(Debug, Clone)]
struct Host {
    children: Arc<Children>,
    temp_dir: PathBuf,
    environment: Environment,
}

impl BashTool {
    /// The tool. Long output goes to files in `temp_dir`.
    #[must_use]
    pub fn new(children: Arc<Children>, temp_dir: PathBuf, environment: Environment) -> Self {
        let definition = ToolDefinition {
            name: "bash".into(),
            description: "Runs a command line with bash in the working directory. Each call is a new shell without \
                input. Returns standard output and standard error together; of long output only the last 2000 lines \
                or 50 KB, whichever is less, with the path of a file that holds all of it. An exit status other than \
                0 is an error."
                .into(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "The command line"},
                    "timeout": {
                        "type": "number",
                        "description": "Seconds after which the command is killed; without it, it may run for ever"
                    }
                },
                "required": ["command"]
            }),
        };
        Self { definition, host: Host { children, temp_dir, environment } }
    }
}

impl Tool for BashTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn snippet(&self) -> Option<&str> {
        Some("Run shell commands: build, test, version control, look at the system")
    }

    fn guidelines(&self) -> &[&str] {
        &["Set a timeout for bash commands that may hang; redirect the output of those left running in the background"]
    }

    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        let host = self.host.clone();
        Box::pin(async move {
            let Some(command) = arguments.get("command").and_then(Value::as_str) else {
                return Err(ToolError::new("command must be a string"));
            };
            let timeout = arguments.get("timeout").and_then(Value::as_f64).and_then(Timeout::new);
            run(host, command, timeout, &context).await
        })
    }
}

/// A time limit as it was given.
#[derive(Debug, Clone, Copy)]
struct Timeout {
    seconds: f64,
    duration: Duration,
}

impl Timeout {
    /// None for 0, negative numbers and those beyond all time.
    fn new(seconds: f64) -> Option<Self> {
        let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero())?;
        Some(Self { seconds, duration })
    }
}

/// Why a command was killed.
#[derive(Debug, Clone, Copy)]
enum Interruption {
    Abort,
    Timeout(Timeout),
}

impl Interruption {
    async fn wait(cancel: &CancellationToken, timeout: Option<Timeout>) -> Self {
        let Some(timeout) = timeout else {
            cancel.cancelled().await;
            return Self::Abort;
        };
        tokio::select! {
            () = cancel.cancelled() => Self::Abort,
            () = sleep(timeout.duration) => Self::Timeout(timeout),
        }
    }

    fn message(self) -> String {
        match self {
            Self::Abort => "Command aborted".into(),
            Self::Timeout(Timeout { seconds, .. }) => format!("Command timed out after {} seconds", Number(seconds)),
        }
    }
}

async fn run(
    host: Host,
    command: &str,
    timeout: Option<Timeout>,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let options = ShellOptions {
        cwd: context.cwd.clone(),
        shell_path: context.settings.shell_path.clone(),
        command_prefix: context.settings.shell_command_prefix.clone(),
        environment: host.environment,
    };
    let progress = context.progress.as_ref();
    tokio::select! {
        biased;
        () = context.cancel.cancelled() => return Err(ToolError(Interruption::Abort.message())),
        // Tells that the command starts.
        () = progress.report(ToolProgress { so_far: ToolOutput::default(), new_text: String::new() }) => {}
    }
    let mut shell =
        ShellProcess::spawn(&host.children, command, &options).await.map_err(|error| ToolError(error.to_string()))?;
    let mut output = Output::new(host.temp_dir);

    let interruption = tokio::select! {
        () = output.read(&mut shell, Some(progress)) => None,
        interruption = Interruption::wait(&context.cancel, timeout) => Some(interruption),
    };
    if interruption.is_some() {
        shell.kill().await;
        output.read(&mut shell, None).await;
    }
    let exit = shell.finish();
    if let Some(Interruption::Timeout(_)) = interruption {
        tokio::select! {
            () = output.report_rest(progress) => {}
            () = context.cancel.cancelled() => {}
        }
    }

    let result = output.finish().await;
    match (interruption, exit.code) {
        (Some(interruption), _) if result.is_empty => Err(ToolError(interruption.message())),
        (Some(interruption), _) => Err(ToolError(format!("{}\n\n{}", result.text, interruption.message()))),
        (None, Some(code)) if code != 0 => {
            Err(ToolError(format!("{}\n\nCommand exited with code {code}", result.text)))
        }
        // A shell that a signal killed has no code; what it wrote is a result like any other.
        (None, _) => Ok(ToolOutput { details: result.details, ..ToolOutput::text(result.text) }),
    }
}

/// The output of a running command.
struct Output {
    decoder: Utf8Decoder,
    terminal: Terminal,
    file: OutputFile,
    plain: Sanitizer,
    /// Plain text since the last report.
    new_text: String,
    has_news: bool,
    last_report: Instant,
}

/// The output as the model gets it.
struct FinalOutput {
    text: String,
    is_empty: bool,
    details: Option<Value>,
}

impl Output {
    fn new(temp_dir: PathBuf) -> Self {
        Self {
            decoder: Utf8Decoder::default(),
            terminal: Terminal::default(),
            file: OutputFile::new(temp_dir),
            plain: Sanitizer::keeping_carriage_returns(),
            new_text: String::new(),
            has_news: false,
            last_report: Instant::now(),
        }
    }

    /// Reads to the end, reporting now and then and at last. Cancel-safe.
    async fn read(&mut self, shell: &mut ShellProcess, progress: Option<&dyn ProgressSink>) {
        loop {
            let is_due = progress.filter(|_| self.has_news);
            tokio::select! {
                chunk = shell.next_chunk() => {
                    let Some(chunk) = chunk else { break };
                    self.push(chunk);
                    self.file.flush().await;
                }
                () = sleep_until(self.last_report + REPORT_INTERVAL), if is_due.is_some() => {}
            }
            if let Some(progress) = progress
                && self.has_news
                && self.last_report.elapsed() >= REPORT_INTERVAL
            {
                self.report(progress).await;
            }
        }
        let rest = std::mem::take(&mut self.decoder).finish();
        self.push_text(rest);
        if let Some(progress) = progress {
            self.report_rest(progress).await;
        }
    }

    fn push(&mut self, chunk: Bytes) {
        let text = self.decoder.push(&chunk);
        self.push_text(&text);
        let length = chunk.len();
        self.file.push(chunk, length);
    }

    fn push_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.terminal.push(text);
        self.new_text.push_str(&self.plain.push(text));
        if self.new_text.len() > 2 * MAX_BYTES {
            self.shorten_new_text();
        }
        self.has_news = true;
    }

    /// A report holds no more new text than it holds text at all.
    fn shorten_new_text(&mut self) {
        let mut cut = self.new_text.len().saturating_sub(MAX_BYTES);
        while !self.new_text.is_char_boundary(cut) {
            cut += 1;
        }
        self.new_text.drain(..cut);
    }

    async fn report_rest(&mut self, progress: &dyn ProgressSink) {
        if self.has_news {
            self.report(progress).await;
        }
    }

    async fn report(&mut self, progress: &dyn ProgressSink) {
        let truncation = truncate(&self.terminal.tail());
        let details = details(&truncation, &self.file.saved());
        let so_far = match truncation.content {
            text if text.is_empty() => ToolOutput::default(),
            text => ToolOutput::text(text),
        };
        self.shorten_new_text();
        let report = ToolProgress { so_far: so_far.with_details(details), new_text: self.new_text.clone() };
        progress.report(report).await;
        // Only now: a report that was cut off while it waited is made again.
        self.new_text.clear();
        self.has_news = false;
        self.last_report = Instant::now();
    }

    async fn finish(mut self) -> FinalOutput {
        let tail = self.terminal.tail();
        let truncation = truncate(&tail);
        if truncation.truncated {
            self.file.write().await;
        }
        let saved = self.file.finish().await;
        let is_empty = truncation.content.is_empty();
        let mut text = if is_empty { "(no output)".to_owned() } else { truncation.content.clone() };
        if let Some(notice) = notice(&truncation, tail.last_line_bytes, &saved) {
            text.push_str(&notice);
        }
        let details = truncation.truncated.then(|| details(&truncation, &saved));
        FinalOutput { text, is_empty: is_empty && !truncation.truncated, details }
    }
}

/// The last lines, with totals that count what the terminal has forgotten.
fn truncate(tail: &Tail) -> Truncation {
    let mut truncation = truncate_tail(&tail.text, Limits::default());
    truncation.total_lines += tail.dropped_lines;
    truncation.total_bytes += tail.dropped_bytes;
    if tail.dropped_bytes > 0 {
        truncation.truncated = true;
        truncation.truncated_by.get_or_insert(TruncatedBy::Bytes);
    }
    truncation
}

fn details(truncation: &Truncation, saved: &SavedOutput) -> Value {
    json!({
        "truncation": truncation.truncated.then_some(truncation),
        "fullOutputPath": saved.path.as_ref().filter(|_| truncation.truncated).map(|path| path.display().to_string()),
    })
}

/// What is said below a cut output.
fn notice(truncation: &Truncation, last_line_bytes: usize, saved: &SavedOutput) -> Option<String> {
    let cut_by = truncation.truncated_by.filter(|_| truncation.truncated)?;
    let total = truncation.total_lines;
    let first = total + 1 - truncation.output_lines.min(total);
    let file = saved.describe();
    Some(if truncation.last_line_partial {
        let shown = format_size(truncation.output_bytes);
        let line = format_size(last_line_bytes);
        format!("\n\n[Showing last {shown} of line {total} (line is {line}). Full output: {file}]")
    } else {
        let limit = match cut_by {
            TruncatedBy::Lines => String::new(),
            TruncatedBy::Bytes => format!(" ({} limit)", format_size(truncation.max_bytes)),
        };
        format!("\n\n[Showing lines {first}-{total} of {total}{limit}. Full output: {file}]")
    })
}

#[cfg(test)]
mod tests;
