//! Running a command line in the user's shell.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};

use super::registry::{Children, ProcessTree};
use crate::environment::Environment;

/// How long output is awaited after the shell has exited but something else holds the pipe.
const EXIT_GRACE: Duration = Duration::from_millis(100);
/// How long a killed shell is waited for; it may hang in the kernel.
const REAP_PATIENCE: Duration = Duration::from_millis(500);
/// Most a pipe may hold without privileges, so most that was written before the exit.
const MAX_PIPE_CAPACITY: usize = 1024 * 1024;
/// Room for one read.
const READ_SIZE: usize = 64 * 1024;
/// Folders searched if there is no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Where and how a command line runs.
#[derive(Debug, Clone)]
pub struct ShellOptions {
    /// Working directory.
    pub cwd: PathBuf,
    /// The shell, `None` for the default search.
    pub shell_path: Option<PathBuf>,
    /// Put before the command line, on lines of its own.
    pub command_prefix: Option<String>,
    /// Where `PATH` comes from. Everything else is inherited from this process.
    pub environment: Environment,
}

/// A command line that did not start.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The working directory is missing.
    #[error("Working directory does not exist: {}\nCannot execute bash commands.", .0.display())]
    MissingDirectory(PathBuf),
    /// The shell of the settings is missing.
    #[error("Shell not found: {} (setting shellPath)", .0.display())]
    MissingShell(PathBuf),
    /// The system refused to start the shell.
    #[error("Could not start {}: {source}", .shell.display())]
    Spawn {
        /// The shell.
        shell: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// How a shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit status; `None` if it was killed by a signal or could not be waited for.
    pub code: Option<i32>,
}

/// The shell to use: the given one, `/bin/bash`, `bash` on the `PATH`, or `sh`.
///
/// # Errors
/// The given shell is not a file.
pub fn find_shell(shell_path: Option<&Path>, environment: &Environment) -> Result<PathBuf, ShellError> {
    if let Some(path) = shell_path {
        return if path.is_file() { Ok(path.to_owned()) } else { Err(ShellError::MissingShell(path.to_owned())) };
    }
    let search_path = environment.get("PATH").unwrap_or(DEFAULT_PATH);
    Ok(std::iter::once(PathBuf::from("/bin"))
        .chain(std::env::split_paths(search_path))
        .map(|folder| folder.join("bash"))
        .find(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from("sh")))
}

/// `PATH` for children: the folder of this executable, then that of the environment.
fn child_path(environment: &Environment) -> String {
    let inherited = environment.get("PATH").unwrap_or(DEFAULT_PATH);
    let own_folder = std::env::current_exe().ok();
    match own_folder.as_deref().and_then(Path::parent).and_then(Path::to_str) {
        // A colon cannot be escaped.
        Some(folder) if !folder.contains(':') => format!("{folder}:{inherited}"),
        _ => inherited.to_owned(),
    }
}

/// A running shell. Dropping it kills it with all its descendants.
///
/// Standard output and standard error share one pipe, so their order is kept. The pipe is read only
/// in [`next_chunk`](Self::next_chunk): a slow reader slows the command.
#[derive(Debug)]
pub struct ShellProcess {
    child: Child,
    tree: ProcessTree,
    reader: pipe::Receiver,
    buffer: BytesMut,
    is_at_eof: bool,
    status: Option<ExitStatus>,
    /// Set once the shell is gone: when to stop waiting for more output.
    closing: Option<Instant>,
    read_while_closing: usize,
    /// Whether processes were left after a kill.
    has_survivors: bool,
}

impl ShellProcess {
    /// Starts a command line.
    ///
    /// # Errors
    /// The working directory or the shell is missing, or the system refuses.
    pub async fn spawn(children: &Arc<Children>, command: &str, options: &ShellOptions) -> Result<Self, ShellError> {
        let checked = options.clone();
        let shell = tokio::task::spawn_blocking(move || {
            if !checked.cwd.is_dir() {
                return Err(ShellError::MissingDirectory(checked.cwd));
            }
            find_shell(checked.shell_path.as_deref(), &checked.environment)
        })
        .await
        .map_err(|error| ShellError::Spawn { shell: PathBuf::new(), source: io::Error::other(error) })??;

        let command_line = match options.command_prefix.as_deref() {
            Some(prefix) if !prefix.is_empty() => format!("{prefix}\n{command}"),
            _ => command.to_owned(),
        };
        Self::start(children, &shell, &command_line, options).map_err(|source| ShellError::Spawn { shell, source })
    }

    fn start(children: &Arc<Children>, shell: &Path, command_line: &str, options: &ShellOptions) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let reader = pipe::Receiver::from_owned_fd(reader.into())?;
        let mut command = Command::new(shell);
        command
            .arg("-c")
            .arg(command_line)
            .current_dir(&options.cwd)
            .env("PATH", child_path(&options.environment))
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let (child, tree) = children.spawn(&mut command)?;
        // `command` holds our ends of the pipe for writing; it ends here, so the pipe can close.
        Ok(Self {
            child,
            tree,
            reader,
            buffer: BytesMut::new(),
            is_at_eof: false,
            status: None,
            closing: None,
            read_while_closing: 0,
            has_survivors: false,
        })
    }

    /// The next output. `None` when the shell has exited and the pipe is closed, or a moment after
    /// the exit if a process in the background holds it. Cancel-safe.
    pub async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            let closing = self.closing;
            if let Some(end) = closing
                && (self.is_at_eof || (Instant::now() >= end && self.read_while_closing >= MAX_PIPE_CAPACITY))
            {
                return None;
            }
            if self.buffer.capacity() < READ_SIZE / 4 {
                self.buffer.reserve(READ_SIZE);
            }
            // Not biased: a background process that never stops writing must not hide the exit.
            let read = tokio::select! {
                read = self.reader.read_buf(&mut self.buffer), if !self.is_at_eof => read,
                status = self.child.wait(), if closing.is_none() => {
                    self.status = status.ok();
                    self.closing = Some(Instant::now() + EXIT_GRACE);
                    continue;
                }
                () = sleep_until(closing.unwrap_or_else(Instant::now)), if closing.is_some() => {
                    match self.reader.try_read_buf(&mut self.buffer) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                        read => read,
                    }
                }
            };
            match read {
                Ok(0) | Err(_) => self.is_at_eof = true,
                Ok(length) => {
                    if closing.is_some() {
                        self.read_while_closing += length;
                    }
                    return Some(self.buffer.split().freeze());
                }
            }
        }
    }

    /// Whether nothing holds the pipe any more.
    #[cfg(test)]
    pub(super) fn is_at_eof(&self) -> bool {
        self.is_at_eof
    }

    /// Kills the shell and all its descendants. Takes up to one and a half seconds if one of them
    /// hangs in the kernel. What was written before is still to be had from
    /// [`next_chunk`](Self::next_chunk).
    pub async fn kill(&mut self) {
        self.has_survivors = self.tree.kill().await > 0;
        if self.closing.is_none() {
            if let Ok(status) = timeout(REAP_PATIENCE, self.child.wait()).await {
                self.status = status.ok();
            }
            self.closing = Some(Instant::now() + EXIT_GRACE);
        }
    }

    /// Ends reading. A shell that has exited leaves its background processes running; one that has
    /// not is killed.
    #[must_use]
    pub fn finish(self) -> Exit {
        if self.closing.is_some() && !self.has_survivors {
            self.tree.release();
        }
        Exit { code: self.status.and_then(|status| status.code()) }
    }
}
