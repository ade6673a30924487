//! A home folder of its own for each test.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fake_provider::FakeProvider;
use crate::raw::Launch;

/// The key that the fake's providers are configured with.
pub const FAKE_KEY: &str = "sk-fake-0123456789";

/// A home folder, a project folder and a folder for temporary files, gone when it is dropped.
#[derive(Debug)]
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// Folders without any configuration.
    ///
    /// # Panics
    ///
    /// They cannot be made.
    #[must_use]
    pub fn empty() -> Self {
        let folder = TempDir::with_prefix("dreb-test-").expect("a temporary folder can be made");
        let home = Self { folder };
        for path in [home.agent_dir(), home.cwd(), home.temp_dir()] {
            fs::create_dir_all(path).expect("folders can be made in a temporary folder");
        }
        home
    }

    /// Folders with a models file that points at `fake`, see [`providers`].
    ///
    /// # Panics
    ///
    /// They cannot be made.
    #[must_use]
    pub fn new(fake: &FakeProvider) -> Self {
        Self::at(&fake.url())
    }

    /// Folders with a models file that points at a server with this base address.
    ///
    /// # Panics
    ///
    /// They cannot be made.
    #[must_use]
    pub fn at(url: &str) -> Self {
        let home = Self::empty();
        home.models(&providers(url));
        home
    }

    /// `HOME`. Symbolic links are resolved, as the server shows paths that way.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().canonicalize().expect("the folder exists")
    }

    /// `~/.dreb/agent`.
    #[must_use]
    pub fn agent_dir(&self) -> PathBuf {
        self.path().join(".dreb/agent")
    }

    /// The project the agent works in.
    #[must_use]
    pub fn cwd(&self) -> PathBuf {
        self.path().join("project")
    }

    /// `TMPDIR`.
    #[must_use]
    pub fn temp_dir(&self) -> PathBuf {
        self.path().join("tmp")
    }

    /// Where session files of [`cwd`](Self::cwd) are.
    #[must_use]
    pub fn sessions(&self) -> PathBuf {
        let cwd = self.cwd().to_string_lossy().trim_start_matches('/').replace('/', "-");
        self.agent_dir().join("sessions").join(format!("--{cwd}--"))
    }

    /// Writes the models file.
    ///
    /// # Panics
    ///
    /// It cannot be written.
    pub fn models(&self, models: &Value) {
        fs::write(self.agent_dir().join("models.json"), models.to_string()).expect("the agent folder can be written");
    }

    /// Writes the settings file.
    ///
    /// # Panics
    ///
    /// It cannot be written.
    pub fn settings(&self, settings: &Value) {
        fs::write(self.agent_dir().join("settings.json"), settings.to_string()).expect("as above");
    }

    /// Writes a file of the project and returns its path.
    ///
    /// # Panics
    ///
    /// It cannot be written.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.cwd().join(name);
        fs::create_dir_all(path.parent().expect("the project is above")).expect("as above");
        fs::write(&path, content).expect("as above");
        path
    }

    /// Reads a file of the project.
    ///
    /// # Panics
    ///
    /// It cannot be read or is not UTF-8.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.cwd().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The whole environment of a process that lives here: none of the caller's keys, proxies or
    /// settings, only its `PATH`.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into())),
            ("HOME".into(), self.path().into()),
            ("TMPDIR".into(), self.temp_dir().into()),
            ("LANG".into(), "C.UTF-8".into()),
            ("USER".into(), "tester".into()),
            ("DREB_OFFLINE".into(), "1".into()),
        ]
    }

    /// Prepares `dreb --mode rpc` in this home.
    #[must_use]
    pub fn dreb(&self) -> Launch<'_> {
        Launch::new(self)
    }

    /// The only session file there is.
    ///
    /// # Panics
    ///
    /// There is none, or there are several.
    #[must_use]
    pub fn session_file(&self) -> PathBuf {
        let files = files(&self.sessions());
        assert_eq!(files.len(), 1, "session files: {files:?}");
        files.into_iter().next().expect("there is one")
    }

    /// The lines of the only session file.
    ///
    /// # Panics
    ///
    /// A line is not JSON, or the file does not end with a line feed.
    #[must_use]
    pub fn session_lines(&self) -> Vec<Value> {
        json_lines(&self.session_file())
    }
}

/// The lines of a JSON lines file.
///
/// # Panics
///
/// It cannot be read, a line is not JSON, or it does not end with a line feed.
#[must_use]
pub fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text.ends_with('\n'), "{} does not end with a line feed", path.display());
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The files of a folder, sorted; empty if there is no such folder.
#[must_use]
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|p| p.is_file()).collect();
    files.sort();
    files
}

/// Models whose server has this base address, as a models file has them.
///
/// * `fake/fake-claude` (thinks, sees images) and `fake/fake-mini` (neither) speak
///   `anthropic-messages`;
/// * `fake-openai/fake-gpt` (thinks, sees images) and `fake-openai/fake-gpt-mini` (neither) speak
///   `openai-completions`.
///
/// All cost 3 dollars in, 15 out, 0.3 read and 3.75 written per million tokens, have a window of
/// 200000 tokens and answer with at most 64000.
#[must_use]
pub fn providers(url: &str) -> Value {
    let model = |id: &str, able: bool| {
        json!({
            "id": id,
            "reasoning": able,
            "input": if able { json!(["text", "image"]) } else { json!(["text"]) },
            "contextWindow": 200_000,
            "maxTokens": 64_000,
            "cost": { "input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75 },
        })
    };
    json!({ "providers": {
        "fake": {
            "baseUrl": url,
            "api": "anthropic-messages",
            "apiKey": FAKE_KEY,
            "models": [model("fake-claude", true), model("fake-mini", false)],
        },
        "fake-openai": {
            "baseUrl": format!("{url}/v1"),
            "api": "openai-completions",
            "apiKey": FAKE_KEY,
            "models": [model("fake-gpt", true), model("fake-gpt-mini", false)],
        },
    }})
}
