//! The `edit` tool.

mod fuzzy;
mod replace;
mod text;

use std::fs::OpenOptions;
use std::io::Read;
use std::path::Path;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::replace::ReplaceError;
use self::text::FileText;
use super::blocking::{Abort, run_blocking};
use super::diff::line_diff;
use super::file_locks::FileLocks;
use super::{Tool, ToolContext, ToolError, ToolOutput, os_error, parse_arguments, safe_write};
use crate::llm::ToolDefinition;

/// Replaces one piece of text in a file.
#[derive(Debug)]
pub struct EditTool {
    definition: ToolDefinition,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    path: String,
    old_text: String,
    new_text: String,
}

impl EditTool {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        Self {
            definition: ToolDefinition {
                name: "edit".to_owned(),
                description: "Replaces one piece of text in a file. oldText must be in the file exactly once, with \
                              all its whitespace and line breaks; take in enough lines around it to make it unique."
                    .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": "The file, absolute or relative to the working directory"},
                        "oldText": {"type": "string", "description": "The text to replace, exactly as it is in the file"},
                        "newText": {"type": "string", "description": "The text to put in its place"}
                    },
                    "required": ["path", "oldText", "newText"]
                }),
            },
        }
    }
}

impl Default for EditTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for EditTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn snippet(&self) -> Option<&str> {
        Some("Replace a piece of text in a file")
    }

    fn guidelines(&self) -> &[&str] {
        &["Change existing files with edit; oldText has to match the file to the letter"]
    }

    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        // Taken before the first await, so that calls change a file in their order.
        let turn = FileLocks::of_process().turn();
        Box::pin(async move {
            let arguments: Arguments = parse_arguments(arguments)?;
            let lock = turn.lock_argument(&arguments.path, &context).await?;
            run_blocking(&context.cancel, move |abort| edit(&lock.path, &arguments, abort)).await
        })
    }
}

fn edit(path: &Path, arguments: &Arguments, abort: &Abort) -> Result<ToolOutput, ToolError> {
    let shown = &arguments.path;
    let bytes = read(path, shown)?;
    abort.check()?;
    let file = FileText::decode(&bytes)
        .ok_or_else(|| ToolError::new(format!("Could not edit {shown}: it is neither UTF-8 nor plain bytes.")))?;
    drop(bytes);
    let old_text = text::with_line_feeds(&arguments.old_text);
    let new_text = text::with_line_feeds(&arguments.new_text);
    let new = replace::replace(&file.text, &old_text, &new_text).map_err(|error| {
        ToolError::new(match error {
            ReplaceError::NotFound => format!(
                "Could not find the exact text in {shown}. The old text must match exactly including all whitespace \
                 and newlines."
            ),
            ReplaceError::Several(number) => format!(
                "Found {number} occurrences of the text in {shown}. The text must be unique. Please provide more \
                 context to make it unique."
            ),
            ReplaceError::NoChange => format!(
                "No changes made to {shown}. The replacement produced identical content. This might indicate an \
                 issue with special characters or the text not existing as expected."
            ),
        })
    })?;
    abort.check()?;
    safe_write::write_file(path, &file.encode(&new), abort)?;
    let diff = line_diff(&file.readable(&file.text), &file.readable(&new));
    Ok(ToolOutput::text(format!("Successfully replaced text in {shown}."))
        .with_details(json!({"diff": diff.text, "firstChangedLine": diff.first_changed_line})))
}

fn read(path: &Path, shown: &str) -> Result<Vec<u8>, ToolError> {
    let no_access = |error: std::io::Error| {
        ToolError::new(format!("Could not access file: {shown}. Error code: {}", os_error::code(&error)))
    };
    let metadata = path.metadata().map_err(no_access)?;
    if metadata.is_dir() {
        let error = std::io::Error::from_raw_os_error(nix::errno::Errno::EISDIR as i32);
        return Err(ToolError::new(os_error::on_open_file(&error, "read")));
    }
    if !metadata.is_file() {
        return Err(safe_write::not_regular(path, &metadata));
    }
    let mut bytes = Vec::new();
    // Opened for writing too: without the right to write there is no use in searching.
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(no_access)?;
    file.read_to_end(&mut bytes).map_err(|error| ToolError::new(os_error::on_open_file(&error, "read")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
