//! The process environment as one value, so that nothing deeper reads globals and tests bring
//! their own.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Variable that holds a key for the chosen model, as `--api-key` does. No child inherits it.
pub const API_KEY_VARIABLE: &str = "DREB_API_KEY";

/// Environment variables, taken once at start. Cheap to clone.
#[derive(Clone, Default)]
pub struct Environment {
    variables: Arc<HashMap<String, String>>,
}

/// Names only: values may be keys.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

impl Environment {
    /// The variables of this process; those that are not Unicode are left out.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The value of a variable, `None` if it is unset or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// This environment with `defaults` added for the names that are not set.
    #[must_use]
    pub fn with_defaults(mut self, defaults: impl Iterator<Item = (String, String)>) -> Self {
        let variables = Arc::make_mut(&mut self.variables);
        for (name, value) in defaults {
            variables.entry(name).or_insert(value);
        }
        self
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self { variables: Arc::new(variables.into_iter().collect()) }
    }
}

/// Folders everything else is found from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The user's home folder.
    pub home: PathBuf,
    /// Settings, models, credentials and sessions: `DREB_CODING_AGENT_DIR`, else `~/.dreb/agent`.
    pub agent_dir: PathBuf,
    /// Working directory of the process, absolute.
    pub cwd: PathBuf,
    /// Folder for temporary files: `TMPDIR`, else `/tmp`.
    pub temp_dir: PathBuf,
}

impl Paths {
    /// The folders this environment names.
    #[must_use]
    pub fn new(environment: &Environment, cwd: PathBuf) -> Self {
        let home = environment.get("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
        let agent_dir = environment
            .get("DREB_CODING_AGENT_DIR")
            .map_or_else(|| home.join(".dreb/agent"), |text| expand_tilde(text, &home));
        let temp_dir = environment.get("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        Self { home, agent_dir, cwd, temp_dir }
    }
}

/// Replaces a leading `~` or `~/` by the home folder.
#[must_use]
pub fn expand_tilde(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix('~') {
        Some("") => home.to_path_buf(),
        Some(rest) if rest.starts_with('/') => home.join(&rest[1..]),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_folder_follows_its_variable() {
        let environment: Environment = [("HOME", "/h"), ("DREB_CODING_AGENT_DIR", "~/x")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
            .collect();
        let paths = Paths::new(&environment, "/c".into());
        assert_eq!(paths.agent_dir, Path::new("/h/x"));
        assert_eq!(expand_tilde("~user/x", Path::new("/h")), Path::new("~user/x"));
    }
}
