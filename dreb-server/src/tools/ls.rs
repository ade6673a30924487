//! The `ls` tool.

use std::fs;
use std::io;
use std::path::Path;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::blocking::{Abort, run_blocking};
use super::listing::Listing;
use super::{Tool, ToolContext, ToolError, ToolOutput, count, os_error, parse_arguments, path};
use crate::llm::ToolDefinition;

const DEFAULT_LIMIT: usize = 500;

/// Lists a folder.
#[derive(Debug)]
pub struct LsTool {
    definition: ToolDefinition,
}

#[derive(Deserialize)]
struct Arguments {
    path: Option<String>,
    limit: Option<f64>,
}

impl LsTool {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        Self {
            definition: ToolDefinition {
                name: "ls".to_owned(),
                description: "Lists a folder, hidden entries too, in alphabetical order; folders end with a slash. \
                              Ends after 500 entries or 50 KB; limit sets the number of entries."
                    .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": "The folder; the working directory if left out"},
                        "limit": {"type": "number", "description": "Most entries to return (500 if left out)"}
                    }
                }),
            },
        }
    }
}

impl Default for LsTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for LsTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn snippet(&self) -> Option<&str> {
        Some("List the entries of a folder")
    }

    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let arguments: Arguments = parse_arguments(arguments)?;
            let cwd = context.cwd;
            run_blocking(&context.cancel, move |abort| {
                let folder = path::resolve(arguments.path.as_deref().unwrap_or("."), &cwd);
                list(&folder, count(arguments.limit, DEFAULT_LIMIT, 1), abort)
            })
            .await
        })
    }
}

fn list(folder: &Path, limit: usize, abort: &Abort) -> Result<ToolOutput, ToolError> {
    match folder.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(ToolError::new(format!("Not a directory: {}", folder.display()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(ToolError::new(format!("Path not found: {}", folder.display())));
        }
        Err(error) => return Err(cannot_read(&error, folder)),
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| cannot_read(&error, folder))? {
        abort.check()?;
        names.push(entry.map_err(|error| cannot_read(&error, folder))?.file_name());
    }
    names.sort_by_cached_key(|name| (name.to_string_lossy().to_lowercase(), name.clone()));

    let mut listing = Listing::new();
    let mut shown = 0;
    for name in names {
        abort.check()?;
        if shown == limit {
            let notice = format!("{limit} entries limit reached. Use limit={} for more", limit.saturating_mul(2));
            listing.limit_reached("entryLimitReached", limit, notice);
            break;
        }
        // Gone meanwhile, or a link to nowhere.
        let Ok(metadata) = folder.join(&name).metadata() else {
            continue;
        };
        let name = name.to_string_lossy();
        listing.push(&if metadata.is_dir() { format!("{name}/").into() } else { name });
        shown += 1;
    }
    if listing.is_empty() {
        return Ok(ToolOutput::text("(empty directory)"));
    }
    Ok(listing.finish(None))
}

fn cannot_read(error: &io::Error, folder: &Path) -> ToolError {
    ToolError::new(format!("Cannot read directory: {}", os_error::on_path(error, "scandir", folder)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use pretty_assertions::assert_eq;

    use super::*;
    use crate::tools::testing::{Run, run};

    async fn ls(cwd: &Path, arguments: Value) -> Result<ToolOutput, ToolError> {
        run(&LsTool::new(), cwd, arguments).await
    }

    #[tokio::test]
    async fn entries_are_sorted_without_regard_to_case() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ls(dir.path(), json!({})).await, Ok(ToolOutput::text("(empty directory)")));
        for name in ["b.txt", "A.txt", ".hidden", "C"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("Sub")).unwrap();
        symlink("Sub", dir.path().join("aa-link")).unwrap();
        symlink("nowhere", dir.path().join("broken")).unwrap();
        assert_eq!(
            ls(dir.path(), json!({"path": "."})).await,
            Ok(ToolOutput::text(".hidden\nA.txt\naa-link/\nb.txt\nC\nSub/"))
        );
        assert_eq!(ls(dir.path(), json!({"path": "Sub"})).await, Ok(ToolOutput::text("(empty directory)")));
    }

    #[tokio::test]
    async fn the_limit_is_told_when_there_is_more() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(
            ls(dir.path(), json!({"limit": 2})).await,
            Ok(ToolOutput::text("a\nb\n\n[2 entries limit reached. Use limit=4 for more]")
                .with_details(json!({"entryLimitReached": 2})))
        );
        assert_eq!(ls(dir.path(), json!({"limit": 3})).await, Ok(ToolOutput::text("a\nb\nc")));
    }

    #[tokio::test]
    async fn what_is_no_folder_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.txt"), "").unwrap();
        let at = dir.path().display();
        let error = async |path: &str| ls(dir.path(), json!({"path": path})).await.unwrap_err().0;
        assert_eq!(error("missing").await, format!("Path not found: {at}/missing"));
        assert_eq!(error("a.txt").await, format!("Not a directory: {at}/a.txt"));
        let aborted = Run::new(dir.path()).cancelled().start(&LsTool::new(), json!({})).await;
        assert_eq!(aborted, Err(ToolError::new("Operation aborted")));
    }
}
