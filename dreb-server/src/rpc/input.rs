//! Lines of the client.
//!
//! A thread of its own reads standard input, for a read of a pipe cannot be cancelled and must not
//! block the runtime. Lines end with LF; a CR before it is dropped; nothing else separates them.

use std::io::{self, BufRead, BufReader, Read};

use tokio::sync::mpsc;

/// Longest line by default, in bytes.
pub const DEFAULT_LINE_CAP: usize = 256 * 1024 * 1024;
/// Lines that may wait for the dispatcher; beyond that the client's pipe fills.
const WAITING_LINES: usize = 16;
const READ_BUFFER: usize = 64 * 1024;

/// What the reader found.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A line without its end.
    Line(String),
    /// A line that is no UTF-8.
    NotUtf8,
    /// A line over the cap; it was skipped.
    TooLong {
        /// The cap in bytes.
        cap: usize,
    },
}

/// Starts the reading thread. The channel closes at the end of input.
///
/// # Errors
///
/// The thread cannot be started.
pub fn spawn(source: impl Read + Send + 'static, cap: usize) -> io::Result<mpsc::Receiver<Input>> {
    let (sender, receiver) = mpsc::channel(WAITING_LINES);
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut lines = Lines { source: BufReader::with_capacity(READ_BUFFER, source), cap };
        loop {
            match lines.next() {
                Ok(Some(input)) => {
                    if sender.blocking_send(input).is_err() {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "standard input");
                    return;
                }
            }
        }
    })?;
    Ok(receiver)
}

struct Lines<R> {
    source: R,
    cap: usize,
}

impl<R: BufRead> Lines<R> {
    /// The next line that is not blank; the last one needs no line feed.
    fn next(&mut self) -> io::Result<Option<Input>> {
        loop {
            let mut line = Vec::new();
            let mut too_long = false;
            let mut ended = false;
            while !ended {
                let chunk = match self.source.fill_buf() {
                    Ok(chunk) => chunk,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                if chunk.is_empty() {
                    if line.is_empty() && !too_long {
                        return Ok(None);
                    }
                    break;
                }
                let (part, used) = match memchr::memchr(b'\n', chunk) {
                    Some(at) => {
                        ended = true;
                        (&chunk[..at], at + 1)
                    }
                    None => (chunk, chunk.len()),
                };
                if line.len() + part.len() > self.cap {
                    too_long = true;
                    line = Vec::new();
                } else if !too_long {
                    line.extend_from_slice(part);
                }
                self.source.consume(used);
            }
            if too_long {
                return Ok(Some(Input::TooLong { cap: self.cap }));
            }
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return Ok(Some(String::from_utf8(line).map_or(Input::NotUtf8, Input::Line)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reader that gives its bytes in pieces of the given sizes.
    struct Pieces {
        bytes: Vec<u8>,
        sizes: Vec<usize>,
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let size = self.sizes.pop().unwrap_or(7).clamp(1, buffer.len()).min(self.bytes.len());
            buffer[..size].copy_from_slice(&self.bytes[..size]);
            self.bytes.drain(..size);
            Ok(size)
        }
    }

    fn read(bytes: &[u8], sizes: Vec<usize>, cap: usize) -> Vec<Input> {
        let source = Pieces { bytes: bytes.to_vec(), sizes };
        let mut lines = Lines { source: BufReader::with_capacity(16, source), cap };
        std::iter::from_fn(|| lines.next().unwrap()).collect()
    }

    fn line(text: &str) -> Input {
        Input::Line(text.to_owned())
    }

    #[test]
    fn only_line_feeds_separate_and_blank_lines_are_skipped() {
        assert_eq!(
            read("a\r\n\n \t\nb\u{2028}c\rd\nlast".as_bytes(), vec![], 100),
            [line("a"), line("b\u{2028}c\rd"), line("last")]
        );
    }

    #[test]
    fn a_line_over_the_cap_is_skipped_whole() {
        assert_eq!(
            read(b"0123456789\n01234567890\nok\n01234567890", vec![], 10),
            [line("0123456789"), Input::TooLong { cap: 10 }, line("ok"), Input::TooLong { cap: 10 }]
        );
    }

    #[test]
    fn invalid_utf8_is_told_and_reading_goes_on() {
        assert_eq!(read(b"\xff\xfe\nok\n", vec![], 10), [Input::NotUtf8, line("ok")]);
    }

    proptest! {
        #[test]
        fn the_split_of_the_bytes_does_not_matter(text in "[a\n\ré ]{0,60}", sizes in prop::collection::vec(1usize..9, 0..40)) {
            prop_assert_eq!(read(text.as_bytes(), sizes, 20), read(text.as_bytes(), vec![100], 20));
        }
    }
}
