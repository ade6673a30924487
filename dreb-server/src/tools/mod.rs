//! The tools of the agent, one file each.
//!
//! A tool gets checked arguments and a [`ToolContext`] and returns content for the model. Whether
//! it may run, in which order results are told, and what the client sees is the agent's business.

pub mod bash;
pub mod blocking;
pub mod diff;
pub mod edit;
pub mod file_locks;
pub mod find;
pub mod grep;
pub mod image;
mod listing;
pub mod ls;
pub mod os_error;
pub mod path;
pub mod read;
pub mod safe_write;
pub mod terminal;
#[cfg(test)]
mod testing;
pub mod truncate;
pub mod user_command;
pub mod validate;
mod walk;
pub mod write;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use protocol_schema::ContentBlock;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::llm::ToolDefinition;

/// What a tool returns, in full or so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolOutput {
    /// Text and image blocks for the model.
    pub content: Vec<ContentBlock>,
    /// Data for user interfaces, not shown to the model.
    pub details: Option<Value>,
    /// Whether the turn ends without another answer of the model.
    pub end_turn: bool,
}

impl ToolOutput {
    /// One text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![ContentBlock::text(text)], ..Self::default() }
    }

    /// Adds details.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }
}

/// Progress of a running tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolProgress {
    /// All output so far.
    pub so_far: ToolOutput,
    /// Only the text that is new since the last report, as far as the tool can tell.
    pub new_text: String,
}

/// A tool's failure; the text is what the model and the client read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

impl ToolError {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Where a tool reports progress.
pub trait ProgressSink: Send + Sync {
    /// Takes a report. Waits while the client is slow, so a tool that awaits it is paused.
    fn report(&self, progress: ToolProgress) -> BoxFuture<'_, ()>;
}

/// What a tool needs to know about where it runs.
#[derive(Clone)]
pub struct ToolContext {
    /// Working directory of the session, absolute.
    pub cwd: PathBuf,
    /// Cancelled when the run is aborted.
    pub cancel: CancellationToken,
    /// Where progress goes.
    pub progress: Arc<dyn ProgressSink>,
    /// Settings the tools follow, as they were when the call began.
    pub settings: Arc<ToolSettings>,
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext").field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// Settings that tools follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSettings {
    /// `shellPath`: the shell, `None` for the default search.
    pub shell_path: Option<PathBuf>,
    /// `shellCommandPrefix`: put before each command line.
    pub shell_command_prefix: Option<String>,
    /// `images.autoResize`: whether large images are scaled down.
    pub auto_resize_images: bool,
}

impl Default for ToolSettings {
    fn default() -> Self {
        Self { shell_path: None, shell_command_prefix: None, auto_resize_images: true }
    }
}

/// A tool.
pub trait Tool: Send + Sync + fmt::Debug {
    /// Name, description and argument schema, as the model gets them.
    fn definition(&self) -> &ToolDefinition;

    /// One line for the tool list of the system prompt.
    fn snippet(&self) -> Option<&str> {
        None
    }

    /// Bullets for the guidelines of the system prompt.
    fn guidelines(&self) -> &[&str] {
        &[]
    }

    /// Runs the tool with arguments that fit its schema.
    ///
    /// The future is cancel-safe: dropping it ends the tool's processes.
    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>>;
}

/// The tools for files: read, edit, write, grep, find, ls.
#[must_use]
pub fn file_tools() -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(read::ReadTool::new()),
        Arc::new(edit::EditTool::new()),
        Arc::new(write::WriteTool::new()),
        Arc::new(grep::GrepTool::new()),
        Arc::new(find::FindTool::new()),
        Arc::new(ls::LsTool::new()),
    ]
}

/// The arguments of a call as the tool's own type. They fit the schema already, so this fails only
/// where a tool's schema and type disagree.
fn parse_arguments<T: serde::de::DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, ToolError> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| ToolError::new(format!("Invalid arguments: {error}")))
}

/// A count that a model gave as a number: at least `least`, without its fraction.
fn count(number: Option<f64>, default: usize, least: usize) -> usize {
    // The cast takes what is out of range to the nearest end.
    number.map_or(default, |number| (number as usize).max(least))
}
