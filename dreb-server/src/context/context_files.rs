//! Instruction files of user and project: `AGENTS.md`, `CLAUDE.md`, `.dreb/CONTEXT.md` and rules.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::environment::Paths;
use crate::small_file;

/// Names looked for in each folder, in this order.
const NAMES: [&str; 8] = [
    "AGENTS.md",
    "AGENTS.MD",
    "CLAUDE.md",
    "CLAUDE.MD",
    ".claude/CLAUDE.md",
    ".claude/CLAUDE.MD",
    ".dreb/CONTEXT.md",
    ".dreb/CONTEXT.MD",
];
/// Folders of rules below the working directory.
const RULES: [&str; 2] = [".dreb/rules", ".claude/rules"];
/// How many folders deep rules are looked for.
const RULES_DEPTH: usize = 10;

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextFile {
    /// Where it is, absolute.
    pub path: PathBuf,
    /// Its text without HTML comments.
    pub content: String,
}

/// All files, in the order of the prompt, and what could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContextFiles {
    /// The files.
    pub files: Vec<ContextFile>,
    /// One sentence for each that could not be read.
    pub warnings: Vec<String>,
}

impl ContextFiles {
    /// Collects the files: the user's, then those of every folder from the root of the file system
    /// down to the working directory, then the rules of the working directory.
    pub async fn load(paths: &Paths) -> Self {
        let paths = paths.clone();
        tokio::task::spawn_blocking(move || Self::load_blocking(&paths)).await.unwrap_or_else(|error| Self {
            files: Vec::new(),
            warnings: vec![format!("Could not load context files: {error}")],
        })
    }

    /// As [`load`](Self::load); blocks on the disk.
    #[must_use]
    pub fn load_blocking(paths: &Paths) -> Self {
        let mut collector = Collector::default();
        for path in [
            paths.agent_dir.join("AGENTS.md"),
            paths.agent_dir.join("CLAUDE.md"),
            paths.home.join(".claude/CLAUDE.md"),
            paths.home.join(".dreb/CONTEXT.md"),
        ] {
            collector.add(path);
        }
        let folders: Vec<&Path> = paths.cwd.ancestors().collect();
        for folder in folders.into_iter().rev() {
            // Two names of one file, as on a file system that ignores case, are one file.
            let mut real = HashSet::new();
            for name in NAMES {
                let path = folder.join(name);
                if fs::canonicalize(&path).is_ok_and(|path| !real.insert(path)) {
                    continue;
                }
                collector.add(path);
            }
        }
        for rules in RULES {
            collector.add_rules(&paths.cwd.join(rules), 1);
        }
        collector.found
    }
}

#[derive(Default)]
struct Collector {
    seen: HashSet<PathBuf>,
    found: ContextFiles,
}

impl Collector {
    /// Takes a file if there is one.
    fn add(&mut self, path: PathBuf) {
        if let Some(content) = self.read(&path) {
            self.take(path, &content);
        }
    }

    fn take(&mut self, path: PathBuf, content: &str) {
        self.found.files.push(ContextFile { path, content: without_comments(content) });
    }

    /// The text of a file not met before.
    fn read(&mut self, path: &Path) -> Option<String> {
        fs::metadata(path).ok()?;
        if !self.seen.insert(path.to_path_buf()) {
            return None;
        }
        match small_file::read(path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => {
                self.found.warnings.push(format!("Could not read {}: {error}", path.display()));
                None
            }
        }
    }

    fn add_rules(&mut self, folder: &Path, depth: usize) {
        let mut entries: Vec<_> = match fs::read_dir(folder) {
            Ok(entries) => entries.filter_map(Result::ok).collect(),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return;
            }
            Err(error) => {
                self.found.warnings.push(format!("Could not read {}: {error}", folder.display()));
                return;
            }
        };
        // Folders come in no order of their own; the prompt should be the same each time.
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            // The type of the entry itself: links to folders are not followed.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder {
                if depth < RULES_DEPTH {
                    self.add_rules(&path, depth + 1);
                }
            } else if path.extension().is_some_and(|extension| extension == "md")
                && path.is_file()
                && let Some(content) = self.read(&path)
                && !is_for_paths(&content)
            {
                self.take(path, &content);
            }
        }
    }
}

/// Whether the front matter of a rule limits it to some paths.
fn is_for_paths(content: &str) -> bool {
    let mut lines = content.trim_start_matches('\u{feff}').lines();
    lines.next().is_some_and(|line| line.trim_end() == "---")
        && lines
            .take_while(|line| line.trim_end() != "---")
            .any(|line| line.strip_prefix("paths").is_some_and(|rest| rest.trim_start().starts_with(':')))
}

/// The text without `<!-- … -->`; a comment that is not closed stays.
#[must_use]
pub fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("<!--") {
        let Some(end) = rest[start + 4..].find("-->") else { break };
        kept.push_str(&rest[..start]);
        rest = &rest[start + 4 + end + 3..];
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;

    struct Tree {
        folder: tempfile::TempDir,
        paths: Paths,
    }

    impl Tree {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            let paths = Paths {
                home: root.join("home"),
                agent_dir: root.join("home/.dreb/agent"),
                cwd: root.join("home/me/app"),
                temp_dir: root.join("tmp"),
            };
            fs::create_dir_all(&paths.cwd).unwrap();
            Self { folder, paths }
        }

        fn root(&self) -> PathBuf {
            self.folder.path().canonicalize().unwrap()
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.root().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        /// Names relative to the tree with their text; files of the machine above it are left out.
        fn found(&self) -> (Vec<(String, String)>, Vec<String>) {
            let root = self.root();
            let found = ContextFiles::load_blocking(&self.paths);
            let files = found
                .files
                .into_iter()
                .filter_map(|file| Some((file.path.strip_prefix(&root).ok()?.to_str()?.to_owned(), file.content)))
                .collect();
            let root = root.to_str().unwrap();
            (files, found.warnings.into_iter().filter(|text| text.contains(root)).collect())
        }

        fn names(&self) -> Vec<String> {
            self.found().0.into_iter().map(|(name, _)| name).collect()
        }
    }

    #[test]
    fn files_come_in_the_order_of_the_prompt() {
        let tree = Tree::new();
        for path in [
            "home/me/app/.dreb/rules/b/deep.md",
            "home/me/app/.dreb/rules/a.md",
            "home/me/app/.dreb/rules/no.txt",
            "home/me/app/.claude/rules/c.md",
            "home/me/app/.dreb/CONTEXT.md",
            "home/me/app/.claude/CLAUDE.md",
            "home/me/app/CLAUDE.md",
            "home/me/app/AGENTS.md",
            "home/me/AGENTS.md",
            "home/AGENTS.md",
            "AGENTS.md",
            "home/.dreb/CONTEXT.md",
            "home/.claude/CLAUDE.md",
            "home/.dreb/agent/CLAUDE.md",
            "home/.dreb/agent/AGENTS.md",
            "home/me/app/sub/AGENTS.md",
        ] {
            tree.write(path, path);
        }
        assert_eq!(
            tree.names(),
            [
                "home/.dreb/agent/AGENTS.md",
                "home/.dreb/agent/CLAUDE.md",
                "home/.claude/CLAUDE.md",
                "home/.dreb/CONTEXT.md",
                "AGENTS.md",
                "home/AGENTS.md",
                "home/me/AGENTS.md",
                "home/me/app/AGENTS.md",
                "home/me/app/CLAUDE.md",
                "home/me/app/.claude/CLAUDE.md",
                "home/me/app/.dreb/CONTEXT.md",
                "home/me/app/.dreb/rules/a.md",
                "home/me/app/.dreb/rules/b/deep.md",
                "home/me/app/.claude/rules/c.md",
            ]
        );
    }

    #[test]
    fn one_file_under_two_names_in_a_folder_is_taken_once() {
        let tree = Tree::new();
        tree.write("home/me/app/AGENTS.md", "a");
        std::os::unix::fs::symlink("AGENTS.md", tree.paths.cwd.join("CLAUDE.md")).unwrap();
        tree.write("home/me/AGENTS.md", "b");
        std::os::unix::fs::symlink("../AGENTS.md", tree.paths.cwd.join("x")).unwrap();
        assert_eq!(tree.names(), ["home/me/AGENTS.md", "home/me/app/AGENTS.md"]);
    }

    #[test]
    fn rules_for_paths_and_linked_folders_are_skipped() {
        let tree = Tree::new();
        tree.write("home/me/app/.dreb/rules/all.md", "---\ndescription: x\n---\npaths: text");
        tree.write("home/me/app/.dreb/rules/some.md", "---\ndescription: x\npaths:\n  - src/**\n---\ntext");
        tree.write("elsewhere/rule.md", "x");
        std::os::unix::fs::symlink(tree.root().join("elsewhere"), tree.paths.cwd.join(".dreb/rules/link")).unwrap();
        let deep = "d/".repeat(10);
        tree.write(&format!("home/me/app/.dreb/rules/{deep}far.md"), "x");
        tree.write(&format!("home/me/app/.dreb/rules/{}near.md", &deep[2..]), "x");
        assert_eq!(
            tree.names(),
            ["home/me/app/.dreb/rules/all.md".to_owned(), format!("home/me/app/.dreb/rules/{}near.md", &deep[2..])]
        );
    }

    #[test]
    fn comments_are_removed_and_unreadable_files_named() {
        let tree = Tree::new();
        tree.write("home/me/AGENTS.md", "a<!-- x\ny -->b<!---->c <!-- open");
        fs::create_dir(tree.paths.cwd.join("CLAUDE.md")).unwrap();
        fs::write(tree.paths.cwd.join("AGENTS.md"), b"bad \xff byte").unwrap();
        let (files, warnings) = tree.found();
        assert_eq!(
            files,
            [
                ("home/me/AGENTS.md".to_owned(), "abc <!-- open".to_owned()),
                ("home/me/app/AGENTS.md".to_owned(), "bad \u{fffd} byte".to_owned()),
            ]
        );
        assert_eq!(
            warnings,
            [format!("Could not read {}: Is a directory (os error 21)", tree.paths.cwd.join("CLAUDE.md").display())]
        );
    }

    #[tokio::test]
    async fn loading_in_the_background_finds_the_same() {
        let tree = Tree::new();
        tree.write("home/AGENTS.md", "x");
        assert_eq!(ContextFiles::load(&tree.paths).await, ContextFiles::load_blocking(&tree.paths));
    }
}
