//! Blocking work of a tool, off the runtime's threads and stopped by an abort.

use tokio_util::sync::CancellationToken;

use super::ToolError;

/// Tells blocking work that nobody waits for it any more.
#[derive(Debug, Clone)]
pub struct Abort(CancellationToken);

impl Abort {
    /// An abort that follows this token.
    #[must_use]
    pub fn new(token: CancellationToken) -> Self {
        Self(token)
    }

    /// Whether to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Passes on while there is no reason to stop.
    ///
    /// # Errors
    ///
    /// `Operation aborted` once there is.
    pub fn check(&self) -> Result<(), ToolError> {
        if self.is_set() { Err(aborted()) } else { Ok(()) }
    }
}

/// The failure of an aborted tool.
#[must_use]
pub fn aborted() -> ToolError {
    ToolError::new("Operation aborted")
}

/// Runs `work` on the pool for blocking work.
///
/// Returns at once when `cancel` is cancelled. Then, or when the future is dropped, the work's
/// [`Abort`] is set; what the work holds is released when it has noticed.
///
/// # Errors
///
/// Those of the work, `Operation aborted`, or the message of a panic.
pub async fn run_blocking<T, F>(cancel: &CancellationToken, work: F) -> Result<T, ToolError>
where
    T: Send + 'static,
    F: FnOnce(&Abort) -> Result<T, ToolError> + Send + 'static,
{
    let token = cancel.child_token();
    let abort = Abort(token.clone());
    let _stop_on_drop = token.drop_guard();
    if cancel.is_cancelled() {
        return Err(aborted());
    }
    let task = tokio::task::spawn_blocking(move || {
        abort.check()?;
        work(&abort)
    });
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(aborted()),
        result = task => result.unwrap_or_else(|error| Err(ToolError::new(format!("The tool failed unexpectedly: {error}")))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_dropped_future_stops_the_work() {
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (stopped, has_stopped) = mpsc::channel();
        let cancel = CancellationToken::new();
        let run = run_blocking(&cancel, move |abort| {
            started.send(()).unwrap();
            while !abort.is_set() {
                std::thread::yield_now();
            }
            stopped.send(()).unwrap();
            abort.check()
        });
        tokio::select! {
            _ = run => panic!("the work ends only when it is stopped"),
            started = has_started => started.unwrap(),
        }
        has_stopped.recv().unwrap();
    }

    #[tokio::test]
    async fn an_abort_returns_at_once() {
        let cancel = CancellationToken::new();
        let (release, held) = mpsc::channel::<()>();
        let run = run_blocking(&cancel, move |_| {
            let _ = held.recv();
            Ok(())
        });
        let (result, ()) = tokio::join!(run, async { cancel.cancel() });
        assert_eq!(result, Err(ToolError::new("Operation aborted")));
        drop(release);
    }
}
