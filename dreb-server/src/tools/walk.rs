//! Where `grep` and `find` look.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ignore::WalkBuilder;

use super::{ToolError, path};

/// The project's own folder of the agent.
const AGENT_FOLDER: &str = ".dreb";
/// Its folders that hold nothing to search for.
const NOT_SEARCHED: [&str; 3] = ["index", "agent", "secrets"];

/// The starting points of a search.
#[derive(Debug)]
pub(super) struct Roots {
    /// The folder or file that was named, or the working directory.
    pub(super) main: PathBuf,
    /// Whether `main` is a folder.
    pub(super) is_dir: bool,
    /// Folders below `main` that are searched even if they are ignored.
    extra: Vec<PathBuf>,
}

impl Roots {
    /// The roots for a path argument. Asks the file system, so it blocks.
    ///
    /// # Errors
    ///
    /// `Path not found: ...`.
    pub(super) fn new(argument: Option<&str>, cwd: &Path) -> Result<Self, ToolError> {
        let argument = argument.filter(|text| !text.is_empty());
        let main = path::resolve(argument.unwrap_or("."), cwd);
        let Ok(metadata) = main.metadata() else {
            return Err(ToolError::new(format!("Path not found: {}", main.display())));
        };
        let extra = if argument.is_none() { agent_folders(&main) } else { Vec::new() };
        Ok(Self { main, is_dir: metadata.is_dir(), extra })
    }

    /// A walk over all of it, each folder in the order of the names, hidden files included, ignore
    /// files honoured. Below the roots, only names that `wanted` accepts are looked at.
    pub(super) fn walk(&self, cwd: &Path, wanted: impl Fn(&OsStr) -> bool + Send + Sync + 'static) -> WalkBuilder {
        let mut builder = WalkBuilder::new(&self.main);
        for extra in &self.extra {
            builder.add(extra);
        }
        let extra = self.extra.clone();
        builder.hidden(false).current_dir(cwd).sort_by_file_path(Ord::cmp).filter_entry(move |entry| {
            // The extra folders have their own walk.
            entry.depth() == 0 || (wanted(entry.file_name()) && !extra.iter().any(|path| path == entry.path()))
        });
        builder
    }

    /// A path as results show it: relative to the searched folder, or the name of the searched file.
    pub(super) fn shown(&self, path: &Path) -> String {
        let base = if self.is_dir { Some(self.main.as_path()) } else { self.main.parent() };
        path::display_relative(path, base.unwrap_or(&self.main)).into_owned()
    }
}

fn agent_folders(project: &Path) -> Vec<PathBuf> {
    let Ok(entries) = project.join(AGENT_FOLDER).read_dir() else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| !NOT_SEARCHED.iter().any(|name| entry.file_name() == *name))
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}
