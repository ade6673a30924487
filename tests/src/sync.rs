//! Waiting, always with a limit.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Longest wait for a single thing. Generous, since a test machine may be busy; a sound run never
/// comes near it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for `future` for at most [`DEADLINE`].
///
/// # Panics
///
/// It took longer; the message names `what`.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {DEADLINE:?} in vain for {what}"),
    }
}

/// Asks `probe` every few milliseconds until it gives a value, for at most `limit`; for things that
/// cannot be awaited, as the end of a process that is not our child.
///
/// # Panics
///
/// It took longer; the message names `what`.
pub async fn poll_until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + limit;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(tokio::time::Instant::now() < end, "waited {limit:?} in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A point at which a scripted answer waits until the test lets it go on. Cloning gives another
/// handle of the same gate.
#[derive(Debug, Clone)]
pub struct Gate {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    reached: watch::Sender<bool>,
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::new(State { reached: watch::Sender::new(false), open: watch::Sender::new(false) }) }
    }

    /// Lets whatever waits here, now or later, go on.
    pub fn release(&self) {
        self.state.open.send_replace(true);
    }

    /// Waits until something waits here.
    ///
    /// # Panics
    ///
    /// Nothing came within [`DEADLINE`].
    pub async fn reached(&self) {
        within("a gate to be reached", until_true(&self.state.reached)).await;
    }

    pub(crate) async fn pass(&self) {
        self.state.reached.send_replace(true);
        until_true(&self.state.open).await;
    }
}

async fn until_true(flag: &watch::Sender<bool>) {
    // The sender is borrowed, so it cannot be gone.
    let _ = flag.subscribe().wait_for(|set| *set).await;
}
