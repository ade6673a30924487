//! Settings files: the user's and the project's.
//!
//! * [`mod@file`] reads and writes one file, under a lock other programs honour;
//! * [`values`] is the merged view with a getter for each setting;
//! * [`Settings`] holds both files and is what the rest of the server sees.

pub mod file;
mod lock;
mod merge;
pub mod values;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Map, Value};

use crate::environment::Paths;
use file::LoadError;
pub use values::{CompactionSettings, ImageSettings, RetrySettings, Transport, Values};

/// One of the two settings files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The user's, in the agent folder.
    Global,
    /// The project's, below the working directory.
    Project,
}

impl Scope {
    /// `global` or `project`, as messages have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Project => "project",
        }
    }
}

/// Why settings could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file could not be read when it was loaded, so it is not touched.
    #[error(
        "Cannot write settings: the {} settings file failed to load (fix or remove the corrupt settings.json first)",
        .0.as_str()
    )]
    Corrupt(Scope),
    /// The file could not be locked, read again or replaced.
    #[error("Failed to persist settings: {}: {cause}", scope.as_str())]
    Persist {
        /// Which file.
        scope: Scope,
        /// What went wrong.
        cause: String,
    },
}

/// Both settings files. Cheap to clone; the clones share what they know.
#[derive(Debug, Clone)]
pub struct Settings {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    global_path: PathBuf,
    project_path: PathBuf,
    state: RwLock<State>,
    /// Writers of this process take turns here rather than at the lock.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    global: Loaded,
    project: Loaded,
    values: Arc<Values>,
}

/// What is known of one file.
#[derive(Debug, Clone, Default)]
struct Loaded {
    values: Map<String, Value>,
    error: Option<String>,
}

impl Settings {
    /// Reads both files, `settings.json` of the agent folder and `.dreb/settings.json` of the working
    /// directory. A file that cannot be read counts as empty; the second value says so in words.
    ///
    /// Blocks on the disk; within a runtime for its blocking threads.
    #[must_use]
    pub fn open(paths: &Paths) -> (Self, Vec<String>) {
        let inner = Inner {
            global_path: paths.agent_dir.join("settings.json"),
            project_path: paths.cwd.join(".dreb").join("settings.json"),
            state: RwLock::default(),
            turn: Arc::default(),
        };
        let warnings = inner.load("startup");
        (Self { inner: Arc::new(inner) }, warnings)
    }

    /// The merged settings as they are now.
    #[must_use]
    pub fn get(&self) -> Arc<Values> {
        Arc::clone(&self.inner.read().values)
    }

    /// Path of a settings file.
    #[must_use]
    pub fn path(&self, scope: Scope) -> &Path {
        match scope {
            Scope::Global => &self.inner.global_path,
            Scope::Project => &self.inner.project_path,
        }
    }

    /// Why a file could not be loaded; `None` if it could.
    #[must_use]
    pub fn load_error(&self, scope: Scope) -> Option<String> {
        let state = self.inner.read();
        match scope {
            Scope::Global => state.global.error.clone(),
            Scope::Project => state.project.error.clone(),
        }
    }

    /// Reads both files again, and returns warnings as [`open`](Self::open) does.
    pub async fn reload(&self) -> Vec<String> {
        let turn = self.inner.take_turn().await;
        let inner = Arc::clone(&self.inner);
        let work = move || {
            let _turn = turn;
            inner.load("reload")
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| vec![format!("Warning (reload): {error}")])
    }

    /// Changes settings in the global file: each change is a key, or a path of keys joined by dots,
    /// and its new value. `null` removes the key. All changes go to disk in one step, or none does.
    ///
    /// When this returns, the change is on disk and in [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// The file failed to load before, or it cannot be locked or replaced.
    pub async fn update(&self, changes: &[(&str, Value)]) -> Result<(), SettingsError> {
        let changes =
            changes.iter().map(|(path, value)| (path.split('.').map(str::to_owned).collect(), value.clone())).collect();
        self.update_paths(changes).await
    }

    /// As [`update`](Self::update), with paths whose keys may hold dots, as the ids of models do.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update).
    pub async fn update_paths(&self, changes: Vec<(Vec<String>, Value)>) -> Result<(), SettingsError> {
        let turn = self.inner.take_turn().await;
        if self.inner.read().global.error.is_some() {
            return Err(SettingsError::Corrupt(Scope::Global));
        }
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || {
            // Here, for the work goes on when the caller no longer waits for it.
            let _turn = turn;
            let values = file::update(&inner.global_path, |values| merge::apply(values, &changes))?;
            inner.replace_global(values);
            Ok(())
        })
        .await
        .unwrap_or_else(|error| Err(file::UpdateError::Interrupted(error.to_string())))
        .map_err(|error| match error {
            file::UpdateError::Load(LoadError::Syntax(_)) => SettingsError::Corrupt(Scope::Global),
            error => SettingsError::Persist { scope: Scope::Global, cause: error.to_string() },
        })
    }
}

impl Inner {
    async fn take_turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        // Nothing panics while it writes; if it did, the state would still be whole.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, context: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut load = |path: &Path, scope: Scope| match file::load(path) {
            Ok(values) => Loaded { values, error: None },
            Err(error) => {
                let text = format!("{}: {error}", path.display());
                warnings.push(format!("Warning ({context}, {} settings): {text}", scope.as_str()));
                Loaded { values: Map::new(), error: Some(text) }
            }
        };
        let global = load(&self.global_path, Scope::Global);
        let project = load(&self.project_path, Scope::Project);
        let values = Arc::new(Values::new(global.values.clone(), project.values.clone()));
        *self.write() = State { global, project, values };
        warnings
    }

    fn replace_global(&self, values: Map<String, Value>) {
        let mut state = self.write();
        state.values = Arc::new(Values::new(values.clone(), state.project.values.clone()));
        state.global = Loaded { values, error: None };
    }
}

#[cfg(test)]
mod tests;
