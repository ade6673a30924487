//! The `find` tool.

use std::path::Path;

use futures_util::future::BoxFuture;
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::blocking::{Abort, run_blocking};
use super::listing::Listing;
use super::walk::Roots;
use super::{Tool, ToolContext, ToolError, ToolOutput, count, parse_arguments};
use crate::llm::ToolDefinition;

const DEFAULT_LIMIT: usize = 1000;

/// Finds files by name.
#[derive(Debug)]
pub struct FindTool {
    definition: ToolDefinition,
}

#[derive(Deserialize)]
struct Arguments {
    pattern: String,
    path: Option<String>,
    limit: Option<f64>,
}

impl FindTool {
    /// The tool.
    #[must_use]
    pub fn new() -> Self {
        Self {
            definition: ToolDefinition {
                name: "find".to_owned(),
                description: "Finds files and folders by a glob pattern. A pattern without a slash is compared with \
                              the name, one with a slash with the path below the searched folder; a pattern in \
                              lower case matches either case. Hidden files are found, ignored ones are not. Gives \
                              paths relative to the searched folder, folders with a slash at the end. Ends after \
                              1000 results or 50 KB; limit sets the number of results."
                    .to_owned(),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "pattern": {"type": "string", "description": "The glob pattern: *.rs, src/**/*.test.ts, *.{md,txt}"},
                        "path": {"type": "string", "description": "The folder to search; the working directory if left out"},
                        "limit": {"type": "number", "description": "Most results to return (1000 if left out)"}
                    },
                    "required": ["pattern"]
                }),
            },
        }
    }
}

impl Default for FindTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for FindTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn snippet(&self) -> Option<&str> {
        Some("Find files by a glob pattern, leaving out ignored ones")
    }

    fn execute(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let arguments: Arguments = parse_arguments(arguments)?;
            let cwd = context.cwd;
            run_blocking(&context.cancel, move |abort| find(&arguments, &cwd, abort)).await
        })
    }
}

fn find(arguments: &Arguments, cwd: &Path, abort: &Abort) -> Result<ToolOutput, ToolError> {
    let roots = Roots::new(arguments.path.as_deref(), cwd)?;
    if !roots.is_dir {
        return Err(ToolError::new(format!("Not a directory: {}", roots.main.display())));
    }
    let pattern = Pattern::new(&arguments.pattern)?;
    let limit = count(arguments.limit, DEFAULT_LIMIT, 1);
    let mut listing = Listing::new();
    let mut found = 0;
    // The inside of a repository is no work of the user.
    for entry in roots.walk(cwd, |name| name != ".git").require_git(false).build() {
        abort.check()?;
        // What cannot be looked into has nothing to show.
        let Ok(entry) = entry else { continue };
        if entry.path() == roots.main || !pattern.matches(&roots, entry.path()) {
            continue;
        }
        let mut shown = roots.shown(entry.path());
        if entry.file_type().is_some_and(|kind| kind.is_dir()) {
            shown.push('/');
        }
        listing.push(&shown);
        found += 1;
        if found == limit {
            let notice = format!(
                "{limit} results limit reached. Use limit={} for more, or refine pattern",
                limit.saturating_mul(2)
            );
            listing.limit_reached("resultLimitReached", limit, notice);
            break;
        }
    }
    if listing.is_empty() {
        return Ok(ToolOutput::text("No files found matching pattern"));
    }
    Ok(listing.finish(None))
}

struct Pattern {
    matcher: GlobMatcher,
    subject: Subject,
}

enum Subject {
    Name,
    RelativePath,
    AbsolutePath,
}

impl Pattern {
    fn new(text: &str) -> Result<Self, ToolError> {
        let text = text.strip_prefix("./").unwrap_or(text);
        let subject = if text.starts_with('/') {
            Subject::AbsolutePath
        } else if text.contains('/') {
            Subject::RelativePath
        } else {
            Subject::Name
        };
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .case_insensitive(!text.chars().any(char::is_uppercase))
            .build()
            .map_err(|error| ToolError::new(error.to_string()))?;
        Ok(Self { matcher: glob.compile_matcher(), subject })
    }

    fn matches(&self, roots: &Roots, path: &Path) -> bool {
        match self.subject {
            Subject::Name => path.file_name().is_some_and(|name| self.matcher.is_match(name)),
            Subject::RelativePath => self.matcher.is_match(path.strip_prefix(&roots.main).unwrap_or(path)),
            Subject::AbsolutePath => self.matcher.is_match(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pretty_assertions::assert_eq;

    use super::*;
    use crate::tools::testing::{Run, run};

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    async fn find_text(dir: &Path, arguments: Value) -> String {
        let output = run(&FindTool::new(), dir, arguments).await.unwrap();
        output.content[0].as_text().unwrap().to_owned()
    }

    #[tokio::test]
    async fn names_and_paths_are_matched() {
        let dir = tree(&[("a.rs", ""), ("src/b.rs", ""), ("src/deep/c.rs", ""), ("README.md", ""), (".h/d.rs", "")]);
        for (pattern, expected) in [
            ("*.rs", ".h/d.rs\na.rs\nsrc/b.rs\nsrc/deep/c.rs"),
            ("src/**/*.rs", "src/b.rs\nsrc/deep/c.rs"),
            ("./src/*.rs", "src/b.rs"),
            ("**/c.rs", "src/deep/c.rs"),
            ("readme*", "README.md"),
            ("Readme*", "No files found matching pattern"),
            ("{deep,src}", "src/\nsrc/deep/"),
            ("*.none", "No files found matching pattern"),
            ("", "No files found matching pattern"),
        ] {
            assert_eq!(find_text(dir.path(), json!({"pattern": pattern})).await, expected, "{pattern}");
        }
        assert_eq!(find_text(dir.path(), json!({"pattern": "*.rs", "path": "src"})).await, "b.rs\ndeep/c.rs");
        let absolute = format!("{}/src/*.rs", dir.path().display());
        assert_eq!(find_text(dir.path(), json!({"pattern": absolute})).await, "src/b.rs");
    }

    #[tokio::test]
    async fn ignored_files_are_left_out() {
        let dir = tree(&[(".gitignore", "out/\n"), ("out/x.rs", ""), ("in/x.rs", ""), (".git/x.rs", "")]);
        assert_eq!(find_text(dir.path(), json!({"pattern": "x.rs"})).await, "in/x.rs");
        assert_eq!(find_text(dir.path(), json!({"pattern": "x.rs", "path": ".git"})).await, "x.rs");
    }

    #[tokio::test]
    async fn folders_of_the_agent_are_searched_even_if_ignored() {
        let files = [".dreb/memory/x.md", ".dreb/index/x.md", ".dreb/secrets/x.md", ".dreb/agent/x.md", "x.md"];
        let mut files: Vec<(&str, &str)> = files.into_iter().map(|path| (path, "")).collect();
        assert_eq!(find_text(tree(&files).path(), json!({"pattern": "memory"})).await, ".dreb/memory/");
        files.push((".gitignore", ".dreb\n"));
        let dir = tree(&files);
        assert_eq!(find_text(dir.path(), json!({"pattern": "x.md"})).await, "x.md\n.dreb/memory/x.md");
        assert_eq!(find_text(dir.path(), json!({"pattern": "x.md", "path": "."})).await, "x.md");
    }

    #[tokio::test]
    async fn the_limit_is_told() {
        let dir = tree(&[("a", ""), ("b", "")]);
        assert_eq!(
            run(&FindTool::new(), dir.path(), json!({"pattern": "*", "limit": 1})).await,
            Ok(ToolOutput::text("a\n\n[1 results limit reached. Use limit=2 for more, or refine pattern]")
                .with_details(json!({"resultLimitReached": 1})))
        );
    }

    #[tokio::test]
    async fn failures() {
        let dir = tree(&[("a", "")]);
        let at = dir.path().display();
        let error = async |arguments| run(&FindTool::new(), dir.path(), arguments).await.unwrap_err().0;
        assert_eq!(error(json!({"pattern": "*", "path": "none"})).await, format!("Path not found: {at}/none"));
        assert_eq!(error(json!({"pattern": "*", "path": "a"})).await, format!("Not a directory: {at}/a"));
        assert_eq!(
            error(json!({"pattern": "a[b"})).await,
            "error parsing glob 'a[b': unclosed character class; missing ']'"
        );
        let aborted = Run::new(dir.path()).cancelled().start(&FindTool::new(), json!({"pattern": "*"})).await;
        assert_eq!(aborted, Err(ToolError::new("Operation aborted")));
    }
}
