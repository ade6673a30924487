//! The end of what the server wrote to standard error.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::options::StderrCallback;

/// How much is kept, in bytes.
const KEPT: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct StderrTail {
    bytes: Mutex<VecDeque<u8>>,
}

impl StderrTail {
    /// What is kept, as text. A character cut in half at the beginning is left out.
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.lock().iter().copied().collect();
        let mut start = 0;
        if bytes.len() == KEPT {
            while start < 3 && bytes.get(start).is_some_and(|byte| byte & 0xC0 == 0x80) {
                start += 1;
            }
        }
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    fn push(&self, chunk: &[u8]) {
        let chunk = &chunk[chunk.len().saturating_sub(KEPT)..];
        let mut bytes = self.lock();
        let excess = (bytes.len() + chunk.len()).saturating_sub(KEPT);
        bytes.drain(..excess);
        bytes.extend(chunk);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads to the end.
    pub(crate) async fn collect<R: AsyncRead + Unpin>(&self, mut reader: R, on_line: Option<StderrCallback>) {
        let mut chunk = vec![0; 8 << 10];
        let mut line = Vec::new();
        // An error here says no more than the end does: the process tells how it fared.
        while let Ok(count @ 1..) = reader.read(&mut chunk).await {
            self.push(&chunk[..count]);
            if let Some(on_line) = &on_line {
                for piece in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(piece);
                    if line.ends_with(b"\n") || line.len() >= KEPT {
                        emit(on_line, &mut line);
                    }
                }
            }
        }
        if let Some(on_line) = &on_line
            && !line.is_empty()
        {
            emit(on_line, &mut line);
        }
    }
}

fn emit(on_line: &StderrCallback, line: &mut Vec<u8>) {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let text = String::from_utf8_lossy(text);
    // A callback that panics must not close the pipe on the server.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_line(&text)));
    line.clear();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn lines_are_reported_and_the_end_is_kept() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let callback: StderrCallback = {
            let seen = Arc::clone(&seen);
            Arc::new(move |line: &str| seen.lock().unwrap().push(line.to_owned()))
        };
        let tail = StderrTail::default();
        tail.collect(&b"one\r\ntwo\n\nlast"[..], Some(callback)).await;
        assert_eq!(*seen.lock().unwrap(), ["one", "two", "", "last"]);
        assert_eq!(tail.text(), "one\r\ntwo\n\nlast");
    }

    #[tokio::test]
    async fn only_the_last_64_kib_stay_and_start_at_a_character() {
        let tail = StderrTail::default();
        let text = "ä".repeat(100_000) + "!";
        tail.collect(text.as_bytes(), None).await;
        // 65,536 bytes end in `!`, so the first kept byte is the second half of an `ä`.
        assert_eq!(tail.text(), "ä".repeat(32_767) + "!");
    }
}
