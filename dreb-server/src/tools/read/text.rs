//! Reading a stretch of lines of a text of any length in little memory.

use std::io::{self, Read};

use super::super::blocking::Abort;
use super::super::truncate::{HeadTruncator, Limits, Truncation};
use super::super::{ToolError, os_error};

/// Bytes read at a time.
const CHUNK: usize = 64 * 1024;

/// The lines that are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Lines before the first one.
    pub(super) skip: usize,
    /// Most lines; `None` for all.
    pub(super) limit: Option<usize>,
}

/// What was read.
#[derive(Debug)]
pub(super) struct TextRead {
    /// Lines of the whole text.
    pub(super) total_lines: usize,
    /// Length of the first line of the window, in bytes of the decoded text.
    pub(super) first_line_bytes: usize,
    /// The window within the limits; `None` if it begins behind the end of the text.
    pub(super) truncation: Option<Truncation>,
}

/// Reads the text to its end, for the number of its lines, and keeps what the window shows.
///
/// What is not UTF-8 becomes replacement characters.
pub(super) fn read(mut source: impl Read, window: Window, abort: &Abort) -> Result<TextRead, ToolError> {
    let mut lines = WindowReader {
        window: window.skip..window.limit.map_or(usize::MAX, |limit| window.skip.saturating_add(limit)),
        line: 0,
        head: HeadTruncator::new(Limits::default()),
    };
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        abort.check()?;
        let length = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ToolError::new(os_error::on_open_file(&error, "read"))),
        };
        decoder.push(&buffer[..length], |text| lines.push(text));
    }
    decoder.finish(|text| lines.push(text));
    Ok(TextRead {
        total_lines: lines.line + 1,
        first_line_bytes: lines.head.first_line_bytes(),
        truncation: (window.skip <= lines.line).then(|| lines.head.finish()),
    })
}

struct WindowReader {
    window: std::ops::Range<usize>,
    /// Index of the current line.
    line: usize,
    head: HeadTruncator,
}

impl WindowReader {
    fn push(&mut self, mut text: &str) {
        while self.line < self.window.start {
            let Some(end) = memchr::memchr(b'\n', text.as_bytes()) else {
                return;
            };
            self.line += 1;
            text = &text[end + 1..];
        }
        while self.line < self.window.end {
            let Some(end) = memchr::memchr(b'\n', text.as_bytes()) else {
                self.head.push(text);
                return;
            };
            self.line += 1;
            // The line break belongs to the window if the next line does.
            self.head.push(&text[..end + usize::from(self.line < self.window.end)]);
            text = &text[end + 1..];
        }
        self.line += memchr::memchr_iter(b'\n', text.as_bytes()).count();
    }
}

/// UTF-8 in pieces that may end within a character.
#[derive(Default)]
struct Decoder {
    /// The start of a character whose end is still to come.
    open: Vec<u8>,
}

impl Decoder {
    fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&str)) {
        let joined;
        let bytes = if self.open.is_empty() {
            bytes
        } else {
            joined = [&self.open, bytes].concat();
            self.open.clear();
            &joined
        };
        let mut position = 0;
        for chunk in bytes.utf8_chunks() {
            take(chunk.valid());
            let invalid = chunk.invalid();
            position += chunk.valid().len() + invalid.len();
            if invalid.is_empty() {
                continue;
            }
            let unfinished = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if unfinished && position == bytes.len() {
                self.open.extend_from_slice(invalid);
            } else {
                take("\u{fffd}");
            }
        }
    }

    fn finish(self, mut take: impl FnMut(&str)) {
        if !self.open.is_empty() {
            take("\u{fffd}");
        }
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_does_not_depend_on_the_pieces(
            bytes in prop::collection::vec(prop_oneof![Just(b'a'), 0x80u8..=0xff, Just(0xe2), Just(0x82)], 0..40),
            size in 1usize..7,
        ) {
            let mut text = String::new();
            let mut decoder = Decoder::default();
            for piece in bytes.chunks(size) {
                decoder.push(piece, |piece| text.push_str(piece));
            }
            decoder.finish(|piece| text.push_str(piece));
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn the_window_is_a_stretch_of_the_lines(
            text in "[ab\n]{0,40}", skip in 0usize..8, limit in prop::option::of(0usize..8), size in 1usize..7,
        ) {
            let mut reader = WindowReader {
                window: skip..limit.map_or(usize::MAX, |limit| skip + limit),
                line: 0,
                head: HeadTruncator::new(Limits::default()),
            };
            for piece in text.as_bytes().chunks(size) {
                reader.push(std::str::from_utf8(piece).unwrap());
            }
            let lines: Vec<&str> = text.split('\n').collect();
            prop_assert_eq!(reader.line + 1, lines.len());
            let wanted: Vec<&str> = lines.into_iter().skip(skip).take(limit.unwrap_or(usize::MAX)).collect();
            prop_assert_eq!(reader.head.finish().content, wanted.join("\n"));
        }
    }

    #[test]
    fn an_abort_ends_an_endless_text() {
        let token = tokio_util::sync::CancellationToken::new();
        let abort = Abort::new(token.clone());
        let mut reads = 0;
        let source = std::iter::from_fn(|| {
            reads += 1;
            if reads == 3 {
                token.cancel();
            }
            Some(())
        });
        struct Endless<I>(I);
        impl<I: Iterator<Item = ()>> Read for Endless<I> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.next();
                buffer.fill(b'x');
                Ok(buffer.len())
            }
        }
        let error = read(Endless(source), Window { skip: 0, limit: None }, &abort).unwrap_err();
        assert_eq!((error.0.as_str(), reads), ("Operation aborted", 3));
    }
}
