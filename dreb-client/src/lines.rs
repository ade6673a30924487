//! Splits a byte stream into lines, on LF only.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Room made for each read, in bytes.
const CHUNK: usize = 64 << 10;

/// One line, without LF and without a CR before it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Text(Bytes),
    /// A line over the cap, thrown away; its length in bytes.
    TooLong(usize),
}

/// A splitter that never looks at a byte twice and never copies a line.
#[derive(Debug)]
pub(crate) struct LineSplitter {
    buffer: BytesMut,
    /// Up to here the buffer is known to hold no LF.
    searched: usize,
    /// Bytes of the current line that are thrown away already, when it is over the cap.
    skipped: usize,
    cap: usize,
}

impl LineSplitter {
    pub(crate) fn new(cap: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, skipped: 0, cap }
    }

    /// The next whole line that is there already.
    pub(crate) fn next_line(&mut self) -> Option<Line> {
        match memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            Some(offset) => {
                let mut line = self.buffer.split_to(self.searched + offset + 1);
                line.truncate(line.len() - 1);
                self.searched = 0;
                Some(self.finish(line))
            }
            None => {
                self.searched = self.buffer.len();
                // The rest of a line that is thrown away is not gathered first.
                if self.searched > self.cap || self.skipped > 0 {
                    self.skipped += self.searched;
                    // A new buffer, so that the room of a giant line is given back.
                    self.buffer = BytesMut::new();
                    self.searched = 0;
                }
                None
            }
        }
    }

    /// What stands after the last LF, once the stream has ended.
    pub(crate) fn rest(&mut self) -> Option<Line> {
        if self.buffer.is_empty() && self.skipped == 0 {
            return None;
        }
        let line = self.buffer.split();
        self.searched = 0;
        Some(self.finish(line))
    }

    fn finish(&mut self, mut line: BytesMut) -> Line {
        let whole = std::mem::take(&mut self.skipped) + line.len();
        if whole > self.cap {
            return Line::TooLong(whole);
        }
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Line::Text(line.freeze())
    }

    /// Reads some more; the number of bytes, 0 at the end. Cancel-safe: what was read is kept.
    pub(crate) async fn fill<R: AsyncRead + Unpin>(&mut self, reader: &mut R) -> io::Result<usize> {
        self.buffer.reserve(CHUNK);
        reader.read_buf(&mut self.buffer).await
    }

    #[cfg(test)]
    fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn split(chunks: &[&[u8]], cap: usize) -> Vec<Line> {
        let mut splitter = LineSplitter::new(cap);
        let mut lines = Vec::new();
        for chunk in chunks {
            splitter.feed(chunk);
            lines.extend(std::iter::from_fn(|| splitter.next_line()));
        }
        lines.extend(splitter.rest());
        lines
    }

    fn text(bytes: &'static [u8]) -> Line {
        Line::Text(Bytes::from_static(bytes))
    }

    #[test]
    fn only_lf_ends_a_line_wherever_the_chunks_are_cut() {
        let whole = "a\u{2028}b\u{85}\x0bc\rd\r\n\n\r\nlast".as_bytes();
        let expected = [text("a\u{2028}b\u{85}\x0bc\rd".as_bytes()), text(b""), text(b""), text(b"last")];
        assert_eq!(split(&[whole], 100), expected);
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(split(&bytes, 100), expected);
    }

    #[test]
    fn a_line_over_the_cap_is_skipped_and_the_next_one_is_read() {
        let expected = [Line::TooLong(9), text(b"ok"), text(b"12345678")];
        assert_eq!(split(&[b"123456789\nok\n12345678\n"], 8), expected);
        assert_eq!(split(&[b"1234", b"56789", b"\nok\n1234", b"5678\n"], 8), expected);
        assert_eq!(split(&[b"0123456789", b"0123456789", b"012"], 8), [Line::TooLong(23)]);
    }

    #[test]
    fn the_rest_of_a_line_over_the_cap_is_not_kept() {
        let mut splitter = LineSplitter::new(8);
        splitter.feed(b"123456789");
        assert_eq!(splitter.next_line(), None);
        for length in 10..20 {
            splitter.feed(b"x");
            assert_eq!(splitter.next_line(), None);
            assert_eq!((splitter.buffer.len(), splitter.skipped), (0, length));
        }
        splitter.feed(b"\nok\n");
        assert_eq!(splitter.next_line(), Some(Line::TooLong(19)));
        assert_eq!(splitter.next_line(), Some(text(b"ok")));
    }

    #[test]
    fn a_stream_that_ends_with_lf_has_no_rest() {
        assert_eq!(split(&[b"a\n"], 8), [text(b"a")]);
        assert_eq!(split(&[], 8), []);
    }
}
