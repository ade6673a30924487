//! Running a tool in tests.

use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{ProgressSink, Tool, ToolContext, ToolError, ToolOutput, ToolProgress, ToolSettings};

struct NoProgress;

impl ProgressSink for NoProgress {
    fn report(&self, _: ToolProgress) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Where a call runs.
pub(super) struct Run(pub(super) ToolContext);

impl Run {
    pub(super) fn new(cwd: &Path) -> Self {
        Self(ToolContext {
            cwd: cwd.to_path_buf(),
            cancel: CancellationToken::new(),
            progress: Arc::new(NoProgress),
            settings: Arc::default(),
        })
    }

    pub(super) fn cancelled(self) -> Self {
        self.0.cancel.cancel();
        self
    }

    pub(super) fn with_settings(mut self, settings: ToolSettings) -> Self {
        self.0.settings = Arc::new(settings);
        self
    }

    pub(super) fn start(self, tool: &dyn Tool, arguments: Value) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        tool.execute(arguments, self.0)
    }
}

/// Runs a call in a folder.
pub(super) async fn run(tool: &dyn Tool, cwd: &Path, arguments: Value) -> Result<ToolOutput, ToolError> {
    Run::new(cwd).start(tool, arguments).await
}

/// The text of the first block.
pub(super) fn text(output: &ToolOutput) -> &str {
    output.content[0].as_text().expect("the first block is text")
}
