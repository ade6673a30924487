//! The `read` tool, and `tmp_read`, which is `read` for `/tmp` only.

mod text;

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use protocol_schema::{ContentBlock, ImageContent};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::text::{TextRead, Window};
use super::blocking::{Abort, run_blocking};
use super::truncate::{MAX_BYTES, TruncatedBy, Truncation, format_size};
use super::{Tool, ToolContext, ToolError, ToolOutput, count, image, os_error, parse_arguments, path, safe_write};
use crate::llm::ToolDefinition;

/// Largest image file that is taken into memory, in bytes.
const MAX_IMAGE_FILE: u64 = 128 * 1024 * 1024;

/// Reads text files in parts and images.
#[derive(Debug)]
pub struct ReadTool {
    definition: ToolDefinition,
    /// The only folder it may read, with its real path found at each call; `None` for all.
    root: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Arguments {
    path: String,
    offset: Option<f64>,
    limit: Option<f64>,
}

impl ReadTool {
    /// `read`: any file.
    #[must_use]
    pub fn new() -> Self {
        Self {
            definition: definition(
                "read",
                "Reads a file. Text comes as it stands in the file; jpeg, png, gif and webp files come as images. \
                 At most 2000 lines or 50 KB of text are returned, whichever is reached first; where there is \
                 more, the end of the result names the offset to continue with.",
                "The file, absolute or relative to the working directory",
            ),
            root: None,
        }
    }

    /// `tmp_read`: files below `/tmp` only.
    #[must_use]
    pub fn below_tmp() -> Self {
        Self::below(PathBuf::from("/tmp"))
    }

    fn below(root: PathBuf) -> Self {
        Self {
            definition: definition(
                "tmp_read",
                "Reads a file below /tmp, for example the full output of a command. Works as read does: text or \
                 images, at most 2000 lines or 50 KB of text at a time, continued with offset.",
                "The file, absolute or relative to /tmp",
            ),
            root: Some(root),
        }
    }
}

fn definition(name: &str, description: &str, path: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": path},
                "offset": {"type": "number", "description": "Number of the first line to read, from 1"},
                "limit": {"type": "number", "description": "Number of lines to read"}
            },
            "required": ["path"]
        }),
    }
}

impl Default for ReadTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for ReadTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn snippet(&self) -> Option<&str> {
        Some(if self.root.is_some() { "Read a file below /tmp" } else { "Read a text file or an image" })
    }

    fn guidelines(&self) -> &[&str] {
        if self.root.is_some() { &[] } else { &["Look at files with read, not with cat or sed"] }
    }

    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        let root = self.root.clone();
        Box::pin(async move {
            let arguments: Arguments = parse_arguments(arguments)?;
            let ToolContext { cwd, cancel, settings, .. } = context;
            run_blocking(&cancel, move |abort| {
                let mut path = path::resolve_for_reading(&arguments.path, root.as_deref().unwrap_or(&cwd));
                if let Some(root) = &root {
                    match confined(&path, root) {
                        Ok(real) => path = real,
                        Err(refusal) => return Ok(ToolOutput::text(refusal)),
                    }
                }
                read(&path, &arguments, settings.auto_resize_images, abort)
            })
            .await
        })
    }
}

/// The real path of a file below `root`, or why it may not be read. A file that is missing keeps its
/// path, so that the failure to open it is told.
fn confined(path: &Path, root: &Path) -> Result<PathBuf, String> {
    let real_root = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
    let (real, inside) = match path.canonicalize() {
        Ok(real) => {
            let inside = real.starts_with(&real_root);
            (real, inside)
        }
        Err(_) => {
            (path.to_path_buf(), path.starts_with(root) && !path.components().any(|part| part.as_os_str() == ".."))
        }
    };
    if inside {
        return Ok(real);
    }
    Err(format!(
        "Error: Access denied. tmp_read can only read files under {}. Resolved path: {}",
        root.display(),
        real.display()
    ))
}

fn read(path: &Path, arguments: &Arguments, resize: bool, abort: &Abort) -> Result<ToolOutput, ToolError> {
    let mut file = open(path)?;
    let mut start = Vec::with_capacity(image::SNIFF_BYTES);
    file.by_ref().take(image::SNIFF_BYTES as u64).read_to_end(&mut start).map_err(|error| read_error(&error))?;
    if let Some(format) = image::sniff(&start) {
        return read_image(start, file, format, resize, abort);
    }
    read_text(start.chain(file), arguments, abort)
}

fn open(path: &Path) -> Result<File, ToolError> {
    let failure = |error: io::Error| ToolError::new(os_error::on_path(&error, "access", path));
    let metadata = path.metadata().map_err(failure)?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(safe_write::not_regular(path, &metadata));
    }
    // Should the file have become a pipe since, opening it must not wait.
    let file =
        OpenOptions::new().read(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(path).map_err(failure)?;
    let metadata = file.metadata().map_err(failure)?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(safe_write::not_regular(path, &metadata));
    }
    Ok(file)
}

fn read_error(error: &io::Error) -> ToolError {
    ToolError::new(os_error::on_open_file(error, "read"))
}

fn read_image(
    mut data: Vec<u8>,
    file: File,
    format: image::Format,
    resize: bool,
    abort: &Abort,
) -> Result<ToolOutput, ToolError> {
    let omitted = || ToolOutput::text(format!("Read image file [{}]\n{}", format.mime_type(), image::OMITTED));
    abort.check()?;
    let size = file.metadata().map_err(|error| read_error(&error))?.len();
    if size > MAX_IMAGE_FILE {
        return Ok(omitted());
    }
    file.take(MAX_IMAGE_FILE).read_to_end(&mut data).map_err(|error| read_error(&error))?;
    abort.check()?;
    let image = if resize {
        let Some(image) = image::fit(data, format, abort)? else {
            return Ok(omitted());
        };
        image
    } else {
        image::Fitted::unchanged(&data, format)
    };
    let mut text = format!("Read image file [{}]", image.mime_type);
    if let Some(note) = image.note() {
        text = format!("{text}\n{note}");
    }
    Ok(ToolOutput {
        content: vec![ContentBlock::text(text), ContentBlock::Image(ImageContent::new(image.base64, image.mime_type))],
        ..ToolOutput::default()
    })
}

fn read_text(source: impl Read, arguments: &Arguments, abort: &Abort) -> Result<ToolOutput, ToolError> {
    let first = count(arguments.offset, 1, 1);
    let limit = arguments.limit.map(|_| count(arguments.limit, 0, 0));
    let TextRead { total_lines, first_line_bytes, truncation } =
        text::read(source, Window { skip: first - 1, limit }, abort)?;
    let Some(truncation) = truncation else {
        let offset = arguments.offset.unwrap_or_default();
        return Err(ToolError::new(format!("Offset {offset} is beyond end of file ({total_lines} lines total)")));
    };
    if truncation.first_line_exceeds_limit {
        let size = format_size(first_line_bytes);
        let notice = format!(
            "[Line {first} is {size}, exceeds {} limit. Use bash: sed -n '{first}p' {} | head -c {MAX_BYTES}]",
            format_size(MAX_BYTES),
            arguments.path
        );
        return Ok(with_truncation(notice, &truncation));
    }
    if truncation.truncated {
        let last = first + truncation.output_lines - 1;
        let limit = match truncation.truncated_by {
            Some(TruncatedBy::Bytes) => format!(" ({} limit)", format_size(MAX_BYTES)),
            _ => String::new(),
        };
        let text = format!(
            "{}\n\n[Showing lines {first}-{last} of {total_lines}{limit}. Use offset={} to continue.]",
            truncation.content,
            last + 1
        );
        return Ok(with_truncation(text, &truncation));
    }
    let next = limit.map_or(total_lines, |limit| (first - 1).saturating_add(limit));
    if next < total_lines {
        let more = total_lines - next;
        return Ok(ToolOutput::text(format!(
            "{}\n\n[{more} more lines in file. Use offset={} to continue.]",
            truncation.content,
            next + 1
        )));
    }
    Ok(ToolOutput::text(truncation.content))
}

fn with_truncation(text: String, truncation: &Truncation) -> ToolOutput {
    ToolOutput::text(text).with_details(json!({"truncation": truncation}))
}

#[cfg(test)]
mod tests;
