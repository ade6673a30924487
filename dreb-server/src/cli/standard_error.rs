//! Standard error, which a client may have closed or may never read. Neither must stop the server.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

/// Log lines that may wait for the reader; beyond that they are dropped.
const WAITING_LINES: usize = 1024;
/// How long the end of the server waits for the last of them to be written.
const FLUSH_WAIT: Duration = Duration::from_millis(200);

/// Writes a text for people and a line feed. Nobody may be there to read it, so a failure is none.
pub(super) fn tell(text: impl Display) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

enum Note {
    Line(Vec<u8>),
    /// Answered when all lines before it are written.
    Flush(SyncSender<()>),
}

/// Writes lines on a thread of its own. A line that finds too many waiting is dropped.
#[derive(Clone)]
pub(super) struct LogLines {
    notes: SyncSender<Note>,
}

impl LogLines {
    /// Starts the thread. It ends with the process or with the last clone.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn spawn(target: impl Write + Send + 'static) -> io::Result<Self> {
        let (notes, received) = mpsc::sync_channel(WAITING_LINES);
        thread::Builder::new().name("log".into()).spawn(move || write_all(target, &received))?;
        Ok(Self { notes })
    }

    /// Waits a moment for what was written so far to reach its target.
    pub(super) fn flush(&self) {
        let (written, done) = mpsc::sync_channel(1);
        if self.notes.try_send(Note::Flush(written)).is_ok() {
            let _ = done.recv_timeout(FLUSH_WAIT);
        }
    }
}

fn write_all(mut target: impl Write, notes: &Receiver<Note>) {
    for note in notes {
        match note {
            // A reader that is gone is no reason to do anything.
            Note::Line(line) => drop(target.write_all(&line)),
            Note::Flush(written) => drop(written.try_send(())),
        }
    }
}

/// One call is one line.
impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.notes.try_send(Note::Line(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes bytes only as fast as the other end receives them.
    struct Rendezvous(SyncSender<Vec<u8>>);

    impl Write for Rendezvous {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_target_that_takes_nothing_holds_nobody_up() {
        let (sender, receiver) = mpsc::sync_channel(0);
        let mut lines = LogLines::spawn(Rendezvous(sender)).unwrap();
        for n in 0..10 * WAITING_LINES {
            lines.write_all(format!("{n}\n").as_bytes()).unwrap();
        }
        // The first lines were kept, in order.
        for n in 0..WAITING_LINES {
            assert_eq!(receiver.recv().unwrap(), format!("{n}\n").as_bytes());
        }
    }

    #[test]
    fn a_target_that_is_gone_is_no_failure() {
        let (sender, receiver) = mpsc::sync_channel(0);
        drop(receiver);
        let mut lines = LogLines::spawn(Rendezvous(sender)).unwrap();
        lines.write_all(b"a\n").unwrap();
        LogLines::flush(&lines);
        lines.write_all(b"b\n").unwrap();
    }
}
