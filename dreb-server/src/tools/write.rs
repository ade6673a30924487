//! The `write` tool.

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::blocking::run_blocking;
use super::file_locks::FileLocks;
use super::{Tool, ToolContext, ToolError, ToolOutput, parse_arguments, safe_write};
use crate::llm::ToolDefinition;

/// Writes whole files.
#[derive(Debug)]
pub struct WriteTool {
    definition: ToolDefinition,
}

#[derive(Deserialize)]
struct Arguments {
    path: String,
    content: String,
}

impl WriteTool {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        Self {
            definition: ToolDefinition {
                name: "write".to_owned(),
                description: "Writes a file from start to end. A missing file and missing folders above it are \
                              created; an existing file loses its old content. To change part of a file, use edit."
                    .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": "The file, absolute or relative to the working directory"},
                        "content": {"type": "string", "description": "The whole new content"}
                    },
                    "required": ["path", "content"]
                }),
            },
        }
    }
}

impl Default for WriteTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for WriteTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn snippet(&self) -> Option<&str> {
        Some("Create a file or replace its whole content")
    }

    fn guidelines(&self) -> &[&str] {
        &["Use write for new files and complete rewrites only"]
    }

    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        // Taken before the first await, so that calls change a file in their order.
        let turn = FileLocks::of_process().turn();
        Box::pin(async move {
            let Arguments { path, content } = parse_arguments(arguments)?;
            let lock = turn.lock_argument(&path, &context).await?;
            run_blocking(&context.cancel, move |abort| {
                safe_write::create_parents(&lock.path)?;
                safe_write::write_file(&lock.path, content.as_bytes(), abort)?;
                abort.check()?;
                Ok(ToolOutput::text(format!("Successfully wrote {} bytes to {path}", content.len())))
            })
            .await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pretty_assertions::assert_eq;

    use super::*;
    use crate::tools::testing::{Run, run};

    #[tokio::test]
    async fn folders_are_made_and_bytes_counted() {
        let dir = tempfile::tempdir().unwrap();
        let output = run(&WriteTool::new(), dir.path(), json!({"path": "a/b.txt", "content": "é\r\n"})).await.unwrap();
        assert_eq!(output, ToolOutput::text("Successfully wrote 4 bytes to a/b.txt"));
        assert_eq!(fs::read_to_string(dir.path().join("a/b.txt")).unwrap(), "é\r\n");
        let output = run(&WriteTool::new(), dir.path(), json!({"path": "@a/b.txt", "content": ""})).await.unwrap();
        assert_eq!(output, ToolOutput::text("Successfully wrote 0 bytes to @a/b.txt"));
        assert_eq!(fs::read_to_string(dir.path().join("a/b.txt")).unwrap(), "");
    }

    #[tokio::test]
    async fn failures_are_those_of_the_system() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let error = run(&WriteTool::new(), dir.path(), json!({"path": ".", "content": ""})).await.unwrap_err();
        let at = dir.path().display();
        assert_eq!(error.0, format!("EISDIR: illegal operation on a directory, open '{at}'"));
        let error = run(&WriteTool::new(), dir.path(), json!({"path": "file/x", "content": ""})).await.unwrap_err();
        assert_eq!(error.0, format!("EEXIST: file already exists, mkdir '{at}/file'"));
    }

    #[tokio::test]
    async fn the_last_of_many_calls_wins() {
        let dir = tempfile::tempdir().unwrap();
        let tool = WriteTool::new();
        let calls: Vec<_> = (0..30)
            .map(|n| Run::new(dir.path()).start(&tool, json!({"path": "a", "content": n.to_string()})))
            .map(tokio::spawn)
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "29");
    }

    #[tokio::test]
    async fn an_abort_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let call = Run::new(dir.path()).cancelled();
        let error = call.start(&WriteTool::new(), json!({"path": "a", "content": ""})).await.unwrap_err();
        assert_eq!(error.0, "Operation aborted");
    }
}
