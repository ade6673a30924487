//! The one writer of standard output.
//!
//! Everything that is to be written is appended to one buffer in the order in which it was decided;
//! a thread of its own takes the buffer and writes it. Producers wait while more than
//! [`SOFT_LIMIT`] bytes are waiting, so a slow reader slows the agent and memory stays flat.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Above this many waiting bytes events wait for the reader.
pub const SOFT_LIMIT: usize = 256 * 1024;
/// Above this many waiting bytes no further commands are taken, so that answers cannot pile up.
pub const HARD_LIMIT: usize = 4 * 1024 * 1024;
/// A buffer that grew beyond this for one large line is given back.
const KEEP_CAPACITY: usize = 2 * SOFT_LIMIT;

/// Handle to the writer; all clones write to the same stream.
#[derive(Debug, Clone)]
pub struct Output {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the writer: bytes are waiting or the end has come.
    filled: Condvar,
    /// Wakes producers: the writer has taken the buffer.
    taken: Notify,
    /// Cancelled when nothing can be written any more.
    broken: CancellationToken,
    /// Cancelled when everything is written after [`Output::finish`].
    finished: CancellationToken,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    /// Bytes the writer has taken and not written yet.
    in_hand: usize,
    ending: bool,
}

impl Output {
    /// Starts the writing thread.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn spawn(mut target: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            taken: Notify::new(),
            broken: CancellationToken::new(),
            finished: CancellationToken::new(),
        });
        let thread = Arc::clone(&shared);
        std::thread::Builder::new().name("stdout".into()).spawn(move || {
            if let Err(error) = thread.write_all(&mut target) {
                tracing::warn!(%error, "standard output");
                thread.broken.cancel();
                thread.lock().waiting = Vec::new();
                thread.taken.notify_waiters();
            }
            thread.finished.cancel();
        })?;
        Ok(Self { shared })
    }

    /// Appends one line; `write` puts it without its line feed.
    pub fn line(&self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.shared.broken.is_cancelled() {
            return;
        }
        let mut queue = self.shared.lock();
        let start = queue.waiting.len();
        write(&mut queue.waiting);
        if queue.waiting.len() > start {
            queue.waiting.push(b'\n');
            drop(queue);
            self.shared.filled.notify_one();
        }
    }

    /// Whether fewer than `limit` bytes are waiting, or waiting makes no sense any more.
    #[must_use]
    pub fn is_below(&self, limit: usize) -> bool {
        let queue = self.shared.lock();
        queue.waiting.len() + queue.in_hand < limit || self.shared.broken.is_cancelled()
    }

    /// Waits until fewer than `limit` bytes are waiting. Cancel-safe.
    pub async fn below(&self, limit: usize) {
        loop {
            let taken = self.shared.taken.notified();
            tokio::pin!(taken);
            // Registered before the check, so that no wake-up falls between the two.
            taken.as_mut().enable();
            if self.is_below(limit) {
                return;
            }
            taken.await;
        }
    }

    /// Resolves when the reader is gone and nothing can be written any more.
    pub async fn broken(&self) {
        self.shared.broken.cancelled().await;
    }

    /// Writes what is waiting and ends the thread. Later lines are dropped. Cancel-safe.
    pub async fn finish(&self) {
        self.shared.lock().ending = true;
        self.shared.filled.notify_one();
        self.shared.finished.cancelled().await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A producer that panicked while serialising may have left half a line; there is no better
        // state to go back to, and the panic itself has been reported.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, target: &mut impl Write) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            {
                let mut queue = self.lock();
                queue.in_hand = 0;
                while queue.waiting.is_empty() {
                    self.taken.notify_waiters();
                    if queue.ending {
                        return target.flush();
                    }
                    queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                std::mem::swap(&mut buffer, &mut queue.waiting);
                queue.in_hand = buffer.len();
            }
            // One call after the other, so that what has been written counts at once.
            let mut rest = &buffer[..];
            while !rest.is_empty() {
                let piece = rest.len().min(SOFT_LIMIT / 4);
                target.write_all(&rest[..piece])?;
                rest = &rest[piece..];
                self.lock().in_hand = rest.len();
                self.taken.notify_waiters();
            }
            target.flush()?;
            buffer.clear();
            if buffer.capacity() > KEEP_CAPACITY {
                buffer = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A target that takes nothing until it is told to, and shows what it got.
    struct Gate {
        open: mpsc::Receiver<()>,
        opened: bool,
        got: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !self.opened {
                self.open.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
                self.opened = true;
            }
            self.got.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (Output, mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (sender, open) = mpsc::channel();
        let got = Arc::new(Mutex::default());
        let output = Output::spawn(Gate { open, opened: false, got: Arc::clone(&got) }).unwrap();
        (output, sender, got)
    }

    #[tokio::test]
    async fn lines_come_out_in_order_and_whole() {
        let (output, open, got) = gated();
        for n in 0..1000 {
            output.line(|out| out.extend_from_slice(n.to_string().as_bytes()));
        }
        output.line(|_| {});
        open.send(()).unwrap();
        output.finish().await;
        let expected: String = (0..1000).map(|n| format!("{n}\n")).collect();
        assert_eq!(String::from_utf8(got.lock().unwrap().clone()).unwrap(), expected);
    }

    #[tokio::test]
    async fn a_producer_waits_for_a_reader_that_takes_nothing() {
        let (output, open, _) = gated();
        output.line(|out| out.resize(SOFT_LIMIT + 1, b'x'));
        assert!(!output.is_below(SOFT_LIMIT));
        assert!(tokio::time::timeout(Duration::from_millis(20), output.below(SOFT_LIMIT)).await.is_err());
        open.send(()).unwrap();
        output.below(SOFT_LIMIT).await;
    }

    #[tokio::test]
    async fn a_reader_that_goes_frees_everyone() {
        let (output, open, _) = gated();
        output.line(|out| out.resize(SOFT_LIMIT + 1, b'x'));
        drop(open);
        output.broken().await;
        output.below(1).await;
        output.line(|out| out.push(b'x'));
        output.finish().await;
    }
}
