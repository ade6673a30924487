//! What can go wrong: starting, a call, the end of the server.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Why a client could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No `dreb` binary was found.
    #[error("no dreb binary found; looked at {}", looked_at.join(", "))]
    BinaryNotFound {
        /// The places that were tried, in order, each with why it was no good.
        looked_at: Vec<String>,
    },
    /// The working directory cannot be used.
    #[error("cannot use the working directory {}", path.display())]
    WorkingDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// The operating system refused to start the program.
    #[error("cannot start {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server ended before it answered.
    #[error("the server ended before it answered: {0}")]
    EarlyExit(ExitNotice),
    /// The server did not answer in time. It has been told to end.
    #[error("the server did not answer within {after:?}{}", shown_tail(stderr_tail))]
    HandshakeTimeout {
        /// How long was waited.
        after: Duration,
        /// The end of what it wrote to standard error.
        stderr_tail: String,
    },
    /// The server's first answer is not what the protocol says.
    #[error("the server's first answer is malformed")]
    Protocol(#[source] CallError),
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The command cannot be written as JSON. Nothing was sent.
    #[error("cannot encode the command {command}")]
    Encode {
        /// The command's name.
        command: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// No answer came in time. The server may still carry the command out.
    #[error("no answer to {command} ({id}) within {after:?}; the server may still complete it")]
    Timeout {
        /// The command's name.
        command: String,
        /// The request's id on the wire.
        id: String,
        /// How long was waited.
        after: Duration,
    },
    /// The server refused the command or failed to carry it out.
    #[error("{command} failed: {message}")]
    Failed {
        /// The command's name.
        command: String,
        /// The request's id on the wire.
        id: String,
        /// The server's words.
        message: String,
    },
    /// The server's answer is malformed.
    #[error("malformed answer to {command} ({id}): {reason}")]
    Protocol {
        /// The command's name.
        command: String,
        /// The request's id on the wire.
        id: String,
        /// What is malformed.
        reason: String,
    },
    /// The server ended, or the connection to it. Whether the command took effect is unknown.
    #[error("the server is gone: {0}")]
    Exited(ExitNotice),
    /// This client was shut down.
    #[error("the client was shut down")]
    Closed,
}

/// How the server ended. Cheap to clone.
#[derive(Clone)]
pub struct ExitNotice(Arc<Exit>);

/// As `Display`, for this is what a `main` that returns the error prints.
impl fmt::Debug for ExitNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExitNotice({self})")
    }
}

struct Exit {
    reason: ExitReason,
    requested: bool,
    stderr_tail: String,
}

/// What ended the server or the connection to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ExitReason {
    /// The process ended with this status.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
    /// The peer closed its side; there is no process to ask.
    Disconnected,
    /// Reading, writing or waiting failed.
    Io(Arc<io::Error>),
    /// The tokio runtime that drove the connection was dropped; a child process was killed.
    RuntimeStopped,
}

impl ExitNotice {
    pub(crate) fn new(reason: ExitReason, requested: bool, stderr_tail: String) -> Self {
        Self(Arc::new(Exit { reason, requested, stderr_tail }))
    }

    /// What ended it.
    #[must_use]
    pub fn reason(&self) -> &ExitReason {
        &self.0.reason
    }

    /// The exit status, if the process ended by itself.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self.0.reason {
            ExitReason::Code(code) => Some(code),
            _ => None,
        }
    }

    /// The signal that killed the process, if one did.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        match self.0.reason {
            ExitReason::Signal(signal) => Some(signal),
            _ => None,
        }
    }

    /// Whether this client asked for it, by [`shutdown`](crate::RpcClient::shutdown) or by dropping
    /// the last handle.
    #[must_use]
    pub fn was_requested(&self) -> bool {
        self.0.requested
    }

    /// The end of what the process wrote to standard error, at most 64 KiB.
    #[must_use]
    pub fn stderr_tail(&self) -> &str {
        &self.0.stderr_tail
    }
}

impl fmt::Display for ExitNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.reason {
            ExitReason::Code(code) => write!(f, "exited with status {code}")?,
            ExitReason::Signal(number) => match nix::sys::signal::Signal::try_from(*number) {
                Ok(signal) => write!(f, "killed by {}", signal.as_str())?,
                Err(_) => write!(f, "killed by signal {number}")?,
            },
            ExitReason::Disconnected => f.write_str("the connection was closed by the server")?,
            ExitReason::Io(error) => write!(f, "the connection failed: {error}")?,
            ExitReason::RuntimeStopped => f.write_str("the runtime that drove the connection was dropped")?,
        }
        f.write_str(&shown_tail(&self.0.stderr_tail))
    }
}

/// How much of standard error a message quotes, in bytes; the rest is in `stderr_tail`.
const QUOTED: usize = 2048;

fn shown_tail(tail: &str) -> String {
    let tail = tail.trim();
    if tail.is_empty() {
        return String::new();
    }
    let least = tail.len().saturating_sub(QUOTED);
    let start = (least..tail.len()).find(|index| tail.is_char_boundary(*index)).unwrap_or(least);
    let cut = if start > 0 { "..." } else { "" };
    format!("; standard error: {cut}{}", &tail[start..])
}

/// Why nothing can be asked any more.
#[derive(Debug, Clone)]
pub(crate) enum Cause {
    Closed,
    Exited(ExitNotice),
}

impl From<Cause> for CallError {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Closed => Self::Closed,
            Cause::Exited(notice) => Self::Exited(notice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_says_how_it_ended_and_quotes_only_the_end_of_a_long_tail() {
        let notice = ExitNotice::new(ExitReason::Code(3), false, "boom\n".into());
        assert_eq!(notice.to_string(), "exited with status 3; standard error: boom");
        assert_eq!((notice.code(), notice.signal()), (Some(3), None));
        let notice = ExitNotice::new(ExitReason::Signal(9), false, String::new());
        assert_eq!(notice.to_string(), "killed by SIGKILL");
        assert_eq!((notice.code(), notice.signal()), (None, Some(9)));
        let notice = ExitNotice::new(ExitReason::Disconnected, false, "é".repeat(3000));
        let text = notice.to_string();
        assert!(text.starts_with("the connection was closed by the server; standard error: ...é"), "{text}");
        assert!(text.len() < 2200);
    }
}
