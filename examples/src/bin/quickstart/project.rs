//! The project that the agent is to mend, in a temporary folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

const TESTS: &str = "run-tests.sh";
const FILES: [(&str, &str); 3] = [
    ("README.md", include_str!("../../../fixtures/versions/README.md")),
    ("version.sh", include_str!("../../../fixtures/versions/version.sh")),
    (TESTS, RUN_TESTS),
];
const RUN_TESTS: &str = include_str!("../../../fixtures/versions/run-tests.sh");
const SCRIPT: &str = include_str!("../../../fixtures/mend-versions.json");

/// The project and what belongs to it. The folder is removed on drop.
#[derive(Debug)]
pub(crate) struct Project {
    folder: TempDir,
}

impl Project {
    /// Writes the project to a new folder.
    pub(crate) fn create() -> io::Result<Self> {
        let project = Self { folder: tempfile::Builder::new().prefix("dreb-quickstart-").tempdir()? };
        fs::create_dir(project.root())?;
        fs::create_dir(project.home())?;
        for (name, text) in FILES {
            fs::write(project.root().join(name), text)?;
        }
        fs::write(project.script(), SCRIPT)?;
        Ok(project)
    }

    /// The agent's working directory.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    /// An empty home folder.
    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// What the scripted provider answers.
    pub(crate) fn script(&self) -> PathBuf {
        self.folder.path().join("script.json")
    }

    /// Where the session file goes.
    pub(crate) fn sessions(&self) -> PathBuf {
        self.folder.path().join("sessions")
    }

    /// Runs the project's tests as they were shipped; whoever edits the tests gains nothing by it.
    pub(crate) async fn passes_its_tests(&self) -> io::Result<bool> {
        tokio::fs::write(self.root().join(TESTS), RUN_TESTS).await?;
        let run = Command::new("sh").arg(TESTS).current_dir(self.root()).kill_on_drop(true).output().await?;
        Ok(run.status.success())
    }

    /// Leaves the folder where it is.
    pub(crate) fn keep(&mut self) -> &Path {
        self.folder.disable_cleanup(true);
        self.folder.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_tests_fail_until_the_bug_is_mended() {
        let project = Project::create().unwrap();
        assert!(!project.passes_its_tests().await.unwrap());
        let source = project.root().join("version.sh");
        let mended = fs::read_to_string(&source).unwrap().replace("| sort |", "| sort -t . -k 1,1n -k 2,2n -k 3,3n |");
        fs::write(&source, mended).unwrap();
        assert!(project.passes_its_tests().await.unwrap());
    }

    #[tokio::test]
    async fn tests_that_were_weakened_do_not_count() {
        let project = Project::create().unwrap();
        fs::write(project.root().join(TESTS), "exit 0").unwrap();
        assert!(!project.passes_its_tests().await.unwrap());
    }
}
