//! The `grep` tool.

mod sink;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use futures_util::future::BoxFuture;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::overrides::{Override, OverrideBuilder};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::sink::{Found, LineSink, MAX_LINE_CHARS};
use super::blocking::{Abort, run_blocking};
use super::walk::Roots;
use super::{Tool, ToolContext, ToolError, ToolOutput, count, os_error, parse_arguments, safe_write};
use crate::llm::ToolDefinition;

const DEFAULT_LIMIT: usize = 100;
/// More lines around a match than a result can show are not worth their memory.
const MAX_CONTEXT: usize = 10_000;
/// Memory for the longest line of a file, in bytes; a file with a longer one counts as unreadable.
const MAX_LINE_BYTES: usize = 256 * 1024 * 1024;
/// Most unreadable files that are named.
const MAX_UNREADABLE_SHOWN: usize = 20;

/// Searches the contents of files.
#[derive(Debug)]
pub struct GrepTool {
    definition: ToolDefinition,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    ignore_case: Option<bool>,
    literal: Option<bool>,
    context: Option<f64>,
    limit: Option<f64>,
}

impl GrepTool {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        Self {
            definition: ToolDefinition {
                name: "grep".to_owned(),
                description: "Searches file contents for a regular expression, line by line, and gives path, line \
                              number and text of each match. Hidden files are searched, files named in ignore files \
                              and binary files are not. Ends after 100 matches or 50 KB, lines are cut at 500 \
                              characters; limit sets the number of matches."
                    .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "pattern": {"type": "string", "description": "The regular expression, or the text with literal"},
                        "path": {"type": "string", "description": "The file or folder to search; the working directory if left out"},
                        "glob": {"type": "string", "description": "Only files that match this glob: *.rs, src/**/*.test.ts; with ! in front only others"},
                        "ignoreCase": {"type": "boolean", "description": "Whether upper and lower case are the same (false if left out)"},
                        "literal": {"type": "boolean", "description": "Whether the pattern is plain text (false if left out)"},
                        "context": {"type": "number", "description": "Lines to show before and after each match (0 if left out)"},
                        "limit": {"type": "number", "description": "Most matches to return (100 if left out)"}
                    },
                    "required": ["pattern"]
                }),
            },
        }
    }
}

impl Default for GrepTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for GrepTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn snippet(&self) -> Option<&str> {
        Some("Search file contents for a pattern, leaving out ignored files")
    }

    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let arguments: Arguments = parse_arguments(arguments)?;
            let cwd = context.cwd;
            run_blocking(&context.cancel, move |abort| grep(&arguments, &cwd, abort)).await
        })
    }
}

fn grep(arguments: &Arguments, cwd: &Path, abort: &Abort) -> Result<ToolOutput, ToolError> {
    let roots = Roots::new(arguments.path.as_deref(), cwd)?;
    let matcher = matcher(arguments)?;
    let context = count(arguments.context, 0, 0).min(MAX_CONTEXT);
    let limit = count(arguments.limit, DEFAULT_LIMIT, 1);
    let mut searcher = SearcherBuilder::new()
        .line_number(true)
        .before_context(context)
        .after_context(context)
        .heap_limit(Some(MAX_LINE_BYTES))
        .build();
    let mut found = Found::new(limit);
    let mut unreadable = Vec::new();

    let mut walk = roots.walk(cwd, |_| true);
    if let Some(glob) = &arguments.glob {
        walk.overrides(overrides(glob, &roots, cwd)?);
    }
    for entry in walk.build() {
        abort.check()?;
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                if let Some(path) = path_of(&error) {
                    unreadable.push(roots.shown(path));
                }
                continue;
            }
        };
        let is_root = entry.depth() == 0 && !roots.is_dir;
        if is_root {
            let metadata = entry.path().metadata().map_err(|error| open_error(&error, entry.path()))?;
            if !metadata.is_file() {
                return Err(safe_write::not_regular(entry.path(), &metadata));
            }
        } else if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        // As ripgrep does: binary files are left out unless they are named.
        searcher.set_binary_detection(if is_root { BinaryDetection::convert(0) } else { BinaryDetection::quit(0) });
        let shown = roots.shown(entry.path());
        if let Err(error) =
            search(&mut searcher, &matcher, entry.path(), LineSink::new(&shown, context, &mut found), abort)
        {
            abort.check()?;
            if is_root {
                return Err(open_error(&error, entry.path()));
            }
            unreadable.push(shown);
        }
        if found.is_full() {
            break;
        }
    }
    Ok(output(found, limit, &unreadable))
}

fn matcher(arguments: &Arguments) -> Result<RegexMatcher, ToolError> {
    RegexMatcherBuilder::new()
        .multi_line(true)
        .line_terminator(Some(b'\n'))
        .case_insensitive(arguments.ignore_case.unwrap_or(false))
        .fixed_strings(arguments.literal.unwrap_or(false))
        .build(&arguments.pattern)
        .map_err(|error| rg_error(&error))
}

/// The files that a glob admits. With a slash it may be meant from the working directory or from the
/// searched folder, so both are tried.
fn overrides(glob: &str, roots: &Roots, cwd: &Path) -> Result<Override, ToolError> {
    let failure = |error: ignore::Error| rg_error(&error);
    let base = if roots.main.starts_with(cwd) { cwd } else { &roots.main };
    let mut builder = OverrideBuilder::new(base);
    builder.add(glob).map_err(failure)?;
    let (sign, pattern) = glob.strip_prefix('!').map_or(("", glob), |rest| ("!", rest));
    let below = roots.main.strip_prefix(base).unwrap_or(Path::new("")).to_string_lossy();
    let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
    if pattern.contains('/') && !below.is_empty() {
        builder.add(&format!("{sign}/{}/{pattern}", globset::escape(&below))).map_err(failure)?;
    }
    builder.build().map_err(failure)
}

fn search(
    searcher: &mut Searcher,
    matcher: &RegexMatcher,
    path: &Path,
    mut sink: LineSink<'_>,
    abort: &Abort,
) -> io::Result<()> {
    let file = AbortableFile { file: File::open(path)?, abort };
    searcher.search_reader(matcher, file, &mut sink)
}

/// A file that fails to read once nobody waits any more, so that a huge one cannot hold up an abort.
struct AbortableFile<'a> {
    file: File,
    abort: &'a Abort,
}

impl Read for AbortableFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.abort.is_set() {
            return Err(io::Error::other("aborted"));
        }
        self.file.read(buffer)
    }
}

fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } => path_of(err),
        _ => None,
    }
}

/// A wrong pattern or glob, in the words and under the name of ripgrep, whose library found it.
fn rg_error(error: &dyn std::error::Error) -> ToolError {
    ToolError::new(format!("rg: {error}"))
}

fn open_error(error: &io::Error, path: &Path) -> ToolError {
    ToolError::new(os_error::on_path(error, "open", path))
}

fn output(found: Found, limit: usize, unreadable: &[String]) -> ToolOutput {
    let is_full = found.is_full();
    let Found { mut listing, lines_truncated, .. } = found;
    let mut output = if listing.is_empty() {
        ToolOutput::text("No matches found")
    } else {
        if is_full {
            let notice = format!(
                "{limit} matches limit reached. Use limit={} for more, or refine pattern",
                limit.saturating_mul(2)
            );
            listing.limit_reached("matchLimitReached", limit, notice);
        }
        let notice = format!("Some lines truncated to {MAX_LINE_CHARS} chars. Use read tool to see full lines");
        listing.finish(lines_truncated.then_some(("linesTruncated", &*notice)))
    };
    if let (false, Some(protocol_schema::ContentBlock::Text(block))) =
        (unreadable.is_empty(), output.content.first_mut())
    {
        let mut names = unreadable[..unreadable.len().min(MAX_UNREADABLE_SHOWN)].join(", ");
        if unreadable.len() > MAX_UNREADABLE_SHOWN {
            names = format!("{names} and {} more", unreadable.len() - MAX_UNREADABLE_SHOWN);
        }
        block.text = format!("{}\n\nWarning: Failed to read {} file(s): {names}", block.text, unreadable.len());
    }
    output
}

#[cfg(test)]
mod tests;
