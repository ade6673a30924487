//! Where the project stands when a session begins, by asking git.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::environment::API_KEY_VARIABLE;

/// Longest wait for one call of git.
const LIMIT: Duration = Duration::from_secs(5);
/// How many commits are shown.
const COMMITS: &str = "-3";

/// State of a git working tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProjectState {
    /// The branch, `detached` if there is none.
    pub branch: String,
    /// Files with changes that are not committed; `None` if git did not say in time.
    pub uncommitted: Option<usize>,
    /// The newest commits, the newest first: short hash and subject.
    pub commits: Vec<String>,
}

impl ProjectState {
    /// Asks git about the working tree `cwd` is in. `None` outside of one, or without git.
    ///
    /// Takes up to five seconds in a large or slow tree, so nothing should wait for it. Dropping the
    /// future ends the processes.
    pub async fn gather(cwd: &Path) -> Option<Self> {
        Self::gather_within(cwd, "git", LIMIT).await
    }

    async fn gather_within(cwd: &Path, program: &str, limit: Duration) -> Option<Self> {
        let git = |arguments: &'static [&'static str]| run(program, cwd, arguments, limit);
        let (branch, status, log) = tokio::join!(
            git(&["branch", "--show-current"]),
            git(&["status", "--porcelain"]),
            git(&["log", COMMITS, "--format=%h %s"]),
        );
        let branch = branch?;
        let branch = branch.trim();
        Some(Self {
            branch: if branch.is_empty() { "detached" } else { branch }.to_owned(),
            uncommitted: status.map(|status| status.lines().count()),
            commits: log.unwrap_or_default().lines().map(str::to_owned).collect(),
        })
    }
}

/// Standard output of git, `None` if it fails or takes too long.
async fn run(program: &str, cwd: &Path, arguments: &[&str], limit: Duration) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(cwd)
        // A repository can make git run commands of its own.
        .env_remove(API_KEY_VARIABLE)
        // Looking must not take the lock of the index away from the user's own git.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(limit, output).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;

    fn git(cwd: &Path, arguments: &[&str]) {
        let status = std::process::Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"])
            .args(arguments)
            .current_dir(cwd)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "git {arguments:?}");
    }

    #[tokio::test]
    async fn a_working_tree_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path();
        git(cwd, &["init", "-q", "-b", "topic/x"]);
        let state = ProjectState::gather(cwd).await.unwrap();
        assert_eq!(state, ProjectState { branch: "topic/x".into(), uncommitted: Some(0), commits: Vec::new() });
        for number in 1..=4 {
            git(cwd, &["commit", "-q", "--allow-empty", "-m", &format!("Step {number}")]);
        }
        std::fs::write(cwd.join("a"), "").unwrap();
        std::fs::write(cwd.join("b"), "").unwrap();
        let state = ProjectState::gather(cwd).await.unwrap();
        assert_eq!((state.branch.as_str(), state.uncommitted), ("topic/x", Some(2)));
        let subjects: Vec<_> = state.commits.iter().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(subjects, ["Step 4", "Step 3", "Step 2"]);
        git(cwd, &["checkout", "-q", "--detach"]);
        assert_eq!(ProjectState::gather(cwd).await.unwrap().branch, "detached");
    }

    #[tokio::test]
    async fn outside_of_a_tree_or_without_git_there_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ProjectState::gather(folder.path()).await, None);
        assert_eq!(ProjectState::gather_within(folder.path(), "no-such-program", LIMIT).await, None);
        assert_eq!(ProjectState::gather(&folder.path().join("gone")).await, None);
    }

    #[tokio::test]
    async fn a_slow_git_is_given_up() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("slow");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let limit = Duration::from_millis(50);
        assert_eq!(ProjectState::gather_within(folder.path(), program.to_str().unwrap(), limit).await, None);
    }
}
