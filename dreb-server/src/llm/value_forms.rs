//! The forms a key or a header value may have in a configuration file: `!` and a shell command, the
//! name of an environment variable, or the text itself.

use std::collections::HashMap;
use std::fmt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::Secret;
use crate::environment::{API_KEY_VARIABLE, Environment};

/// How long a command may run.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// Largest output of a command in bytes; a key is far shorter.
const OUTPUT_LIMIT: u64 = 1 << 20;

/// What a command gave: its trimmed output, or why there is none.
type Outcome = Result<Secret, CommandError>;

/// Why a command gave no value. The texts hold neither the command nor its output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The shell could not be started.
    #[error("could not be started: {0}")]
    Start(String),
    /// It ran too long.
    #[error("took longer than {} seconds", COMMAND_LIMIT.as_secs())]
    TimedOut,
    /// It ended with a failure.
    #[error("failed: {0}")]
    Failed(String),
    /// It printed nothing.
    #[error("printed nothing")]
    Empty,
    /// It printed what cannot be a key.
    #[error("printed more than {OUTPUT_LIMIT} bytes or no UTF-8")]
    Unusable,
}

/// Resolves values and remembers for the life of the process what commands gave, failures included.
/// Cheap to clone.
#[derive(Clone)]
pub struct Values {
    environment: Environment,
    limit: Duration,
    commands: Arc<Mutex<HashMap<String, Arc<OnceCell<Outcome>>>>>,
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").finish_non_exhaustive()
    }
}

impl Values {
    /// Values of this environment.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment, limit: COMMAND_LIMIT, commands: Arc::default() }
    }

    /// The value that `text` stands for. A command runs at most once, whoever asks for it.
    ///
    /// # Errors
    ///
    /// The text is a command and it gave nothing usable.
    pub async fn resolve(&self, text: &Secret) -> Outcome {
        let Some(command) = text.expose().strip_prefix('!') else {
            return Ok(self.environment.get(text.expose()).map_or_else(|| text.clone(), Secret::new));
        };
        let cell = self.cell(command);
        cell.get_or_init(|| run(command, self.limit)).await.clone()
    }

    /// The value if it is known without running a command; `None` for a command that has not run.
    #[must_use]
    pub fn known(&self, text: &Secret) -> Option<Outcome> {
        match text.expose().strip_prefix('!') {
            Some(command) => self.cell(command).get().cloned(),
            None => Some(Ok(self.environment.get(text.expose()).map_or_else(|| text.clone(), Secret::new))),
        }
    }

    fn cell(&self, command: &str) -> Arc<OnceCell<Outcome>> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.entry(command.to_owned()).or_default().clone()
    }
}

/// Kills a command's whole process group when the wait for it is given up.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may be gone already.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

async fn run(command: &str, limit: Duration) -> Outcome {
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .env_remove(API_KEY_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| CommandError::Start(error.to_string()))?;
    let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
    let stdout = child.stdout.take();
    let work = async {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(OUTPUT_LIMIT + 1).read_to_end(&mut output).await?;
        }
        if output.len() as u64 > OUTPUT_LIMIT {
            // The rest is not read; the group's guard ends the writer.
            return Ok((output, None));
        }
        Ok::<_, std::io::Error>((output, Some(child.wait().await?)))
    };
    let (output, status) = tokio::time::timeout(limit, work)
        .await
        .map_err(|_| CommandError::TimedOut)?
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    let Some(status) = status else {
        return Err(CommandError::Unusable);
    };
    // The leader has been waited for: its id may soon be another process's.
    group.0 = None;
    if !status.success() {
        return Err(CommandError::Failed(status.to_string()));
    }
    let text = String::from_utf8(output).map_err(|_| CommandError::Unusable)?;
    match text.trim() {
        "" => Err(CommandError::Empty),
        text => Ok(Secret::new(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(variables: &[(&str, &str)]) -> Values {
        Values::new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    async fn resolve(values: &Values, text: &str) -> Result<String, CommandError> {
        values.resolve(&Secret::new(text)).await.map(|secret| secret.expose().to_owned())
    }

    #[tokio::test]
    async fn variables_and_literals() {
        let values = values(&[("KEY", "from-env"), ("EMPTY", "")]);
        assert_eq!(resolve(&values, "KEY").await.unwrap(), "from-env");
        assert_eq!(resolve(&values, "EMPTY").await.unwrap(), "EMPTY");
        assert_eq!(resolve(&values, "sk-literal").await.unwrap(), "sk-literal");
        assert_eq!(values.known(&Secret::new("KEY")), Some(Ok(Secret::new("from-env"))));
    }

    #[tokio::test]
    async fn a_command_runs_once_even_when_asked_for_twice_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let text = format!("!echo x >> {0}; wc -l < {0}", mark.display());
        let values = values(&[]);
        assert_eq!(values.known(&Secret::new(text.as_str())), None);
        let (one, two) = tokio::join!(resolve(&values, &text), resolve(&values, &text));
        assert_eq!((one.unwrap().as_str(), two.unwrap().as_str()), ("1", "1"));
        assert_eq!(resolve(&values, &text).await.unwrap(), "1");
        assert_eq!(values.known(&Secret::new(text)), Some(Ok(Secret::new("1"))));
    }

    #[tokio::test]
    async fn failures_are_told_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let values = values(&[]);
        let text = format!("!test -e {0} && echo ok || {{ touch {0}; exit 3; }}", mark.display());
        for _ in 0..2 {
            assert_eq!(resolve(&values, &text).await, Err(CommandError::Failed("exit status: 3".into())));
        }
        assert_eq!(resolve(&values, "!true").await, Err(CommandError::Empty));
        assert_eq!(resolve(&values, "!printf '\\377'").await, Err(CommandError::Unusable));
        assert_eq!(resolve(&values, "!yes | head -c 2000000; echo").await, Err(CommandError::Unusable));
        assert_eq!(resolve(&values, "!cat").await, Err(CommandError::Empty), "standard input is closed");
    }

    #[tokio::test]
    async fn the_limit_ends_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let mut values = values(&[]);
        values.limit = Duration::from_millis(300);
        let text = format!("!sleep 600 & echo $! > {}; wait", pids.display());
        assert_eq!(resolve(&values, &text).await, Err(CommandError::TimedOut));
        let child: i32 = std::fs::read_to_string(pids).unwrap().trim().parse().unwrap();
        // The kill has been sent; the process goes as soon as it is scheduled.
        let status = format!("/proc/{child}/stat");
        let gone = async {
            while std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z")) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), gone).await.unwrap();
    }

    #[tokio::test]
    async fn no_formatter_prints_a_value() {
        let values = values(&[("KEY", "sesame")]);
        resolve(&values, "!echo sesame").await.unwrap();
        assert!(!format!("{values:?}").contains("sesame"));
    }
}
