//! Server-sent events, read by the WHATWG standard: bytes in, events out.
//!
//! The parser takes the bytes in pieces of any size. How they are cut has no influence on the events.

use std::collections::VecDeque;

use memchr::memchr2;

/// Largest event that is taken, in bytes. A tool call that writes a big file comes in many small
/// events; only a server that has gone wrong sends one of this size.
pub const MAX_EVENT_BYTES: usize = 32 * 1024 * 1024;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its `event` field; `message` if it has none.
    pub name: String,
    /// Its `data` lines, joined by newlines.
    pub data: String,
    /// The last `id` seen in the stream so far, empty before the first.
    pub last_id: String,
}

/// The stream cannot be read further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {limit} bytes")]
pub struct TooLarge {
    /// The limit that was exceeded, in bytes.
    pub limit: usize,
}

/// An incremental parser.
#[derive(Debug)]
pub struct Parser {
    limit: usize,
    /// The start of a line whose end has not come.
    line: Vec<u8>,
    /// Whether the last byte was a CR, so that an LF now belongs to it.
    after_cr: bool,
    /// Whether the first line is still to come; it may carry a byte order mark.
    at_start: bool,
    name: String,
    data: String,
    /// An event without a `data` field is none, one with an empty `data` field is.
    has_data: bool,
    last_id: String,
    retry: Option<u64>,
    events: VecDeque<Event>,
}

impl Default for Parser {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }
}

impl Parser {
    /// A parser that takes events of up to `limit` bytes.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            after_cr: false,
            at_start: true,
            name: String::new(),
            data: String::new(),
            has_data: false,
            last_id: String::new(),
            retry: None,
            events: VecDeque::new(),
        }
    }

    /// Takes the next bytes. Complete events are then found with [`Parser::next_event`]; an event
    /// that the end of the stream cuts off is, by the standard, none.
    ///
    /// # Errors
    ///
    /// An event exceeds the limit. Events complete before it can still be taken.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr2(b'\r', b'\n', bytes) else {
                self.check(self.line.len() + bytes.len())?;
                self.line.extend_from_slice(bytes);
                return Ok(());
            };
            self.check(self.line.len() + end)?;
            if self.line.is_empty() {
                self.take_line(&bytes[..end]);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.take_line(&line);
                line.clear();
                self.line = line;
            }
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
        }
        Ok(())
    }

    /// The next complete event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The reconnection time that the server last asked for, in milliseconds.
    #[must_use]
    pub fn retry(&self) -> Option<u64> {
        self.retry
    }

    fn check(&self, line: usize) -> Result<(), TooLarge> {
        if self.data.len() + self.name.len() + line > self.limit {
            return Err(TooLarge { limit: self.limit });
        }
        Ok(())
    }

    fn take_line(&mut self, mut line: &[u8]) {
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix(BOM).unwrap_or(line);
        }
        if line.is_empty() {
            self.dispatch();
            return;
        }
        let (field, value) = match memchr::memchr(b':', line) {
            // A comment.
            Some(0) => return,
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &[][..]),
        };
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(&String::from_utf8_lossy(value));
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => self.last_id = String::from_utf8_lossy(value).into_owned(),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                // Only digits, so the one failure is a number that is too large.
                self.retry = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).or(self.retry);
            }
            _ => {}
        }
    }

    fn dispatch(&mut self) {
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data) {
            let name = if name.is_empty() { "message".to_owned() } else { name };
            self.events.push_back(Event { name, data, last_id: self.last_id.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<Event> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece).unwrap();
            events.extend(std::iter::from_fn(|| parser.next_event()));
        }
        events
    }

    fn event(name: &str, data: &str, last_id: &str) -> Event {
        Event { name: name.into(), data: data.into(), last_id: last_id.into() }
    }

    #[test]
    fn the_examples_of_the_standard() {
        let text = b"data: YHOO\ndata: +2\ndata: 10\n\n";
        assert_eq!(parse(&[text]), [event("message", "YHOO\n+2\n10", "")]);

        let text = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n";
        assert_eq!(
            parse(&[text]),
            [
                event("message", "first event", "1"),
                event("message", "second event", ""),
                event("message", " third event", "")
            ]
        );

        let text = b"data\n\ndata\ndata\n\ndata:";
        assert_eq!(parse(&[text]), [event("message", "", ""), event("message", "\n", "")]);
    }

    #[test]
    fn every_line_ending_counts_once() {
        let expected = [event("a", "1\n2", ""), event("message", "3", "")];
        for end in ["\n", "\r", "\r\n"] {
            let text = format!("event: a{end}data: 1{end}data: 2{end}{end}data: 3{end}{end}");
            assert_eq!(parse(&[text.as_bytes()]), expected, "{end:?}");
        }
        assert_eq!(parse(&[b"data: 1\r", b"\ndata: 2\r", b"\n\r\n"]), [event("message", "1\n2", "")]);
    }

    #[test]
    fn a_byte_order_mark_is_dropped_at_the_start_only() {
        let text = "\u{feff}data: x\n\n\u{feff}data: y\n\n";
        assert_eq!(parse(&[text.as_bytes()]), [event("message", "x", "")]);
    }

    #[test]
    fn a_name_without_data_is_no_event_and_does_not_leak_into_the_next() {
        assert_eq!(parse(&[b"event: ping\n\ndata: x\n\n"]), [event("message", "x", "")]);
    }

    #[test]
    fn ids_and_retry_times_are_kept_when_they_are_valid() {
        let mut parser = Parser::default();
        parser.feed(b"id: 7\nretry: 250\ndata: x\n\nid: a\0b\nretry: 1s\nretry:\ndata: y\n\n").unwrap();
        assert_eq!(parser.retry(), Some(250));
        assert_eq!(parser.next_event(), Some(event("message", "x", "7")));
        assert_eq!(parser.next_event(), Some(event("message", "y", "7")));
        assert_eq!(parser.next_event(), None);
    }

    #[test]
    fn bytes_that_are_no_utf8_are_replaced() {
        assert_eq!(parse(&[b"data: \xff!\n\n"]), [event("message", "\u{fffd}!", "")]);
    }

    #[test]
    fn an_event_at_the_limit_passes_and_one_above_does_not() {
        let mut parser = Parser::with_limit(20);
        parser.feed(b"data: ok\n\n").unwrap();
        parser.feed(b"data: 0123456789abcd").unwrap();
        assert_eq!(parser.feed(b"e"), Err(TooLarge { limit: 20 }));
        assert_eq!(parser.next_event(), Some(event("message", "ok", "")));

        let mut parser = Parser::with_limit(20);
        let error = parser.feed(&b"data: 0123456\n".repeat(3)).unwrap_err();
        assert_eq!(error.to_string(), "an event of the stream is larger than 20 bytes");
    }

    fn line() -> impl Strategy<Value = Vec<u8>> {
        let field = prop_oneof![Just("data"), Just("event"), Just("id"), Just("retry"), Just(""), Just("other")];
        let value = prop_oneof![".{0,12}".prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..8)];
        (field, prop_oneof![Just(""), Just(":"), Just(": ")], value, prop_oneof![Just("\n"), Just("\r"), Just("\r\n")])
            .prop_map(|(field, colon, value, end)| {
                [field.as_bytes(), colon.as_bytes(), &value, end.as_bytes()].concat()
            })
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_does_not_matter(
            bom in any::<bool>(),
            lines in prop::collection::vec(prop_oneof![3 => line(), 1 => Just(b"\n".to_vec()), 1 => Just(b"\r\n".to_vec())], 0..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut bytes = if bom { BOM.to_vec() } else { Vec::new() };
            bytes.extend(lines.concat());
            let whole = parse(&[&bytes]);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(&whole, &parse(&pieces));
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(&whole, &parse(&single));
        }
    }
}
