//! Telling text from terminal escape sequences in a stream.

use std::fmt;

use vte::{Params, Parser, Perform};

/// Longest sequence in bytes. A string sequence without an end would swallow everything after it.
const MAX_SEQUENCE: usize = 1024 * 1024;

const ESC: u8 = 0x1b;

/// What [`EscapeSplitter`] finds.
pub trait EscapeHandler {
    /// Text without ESC; other control characters are in it as they came.
    fn text(&mut self, text: &str);

    /// A control sequence, `ESC [ parameters action`, without private ones such as `ESC [ ?`.
    fn control_sequence(&mut self, _parameters: &Params, _action: char) {}

    /// A plain escape, `ESC action`.
    fn escape(&mut self, _action: u8) {}
}

/// Splits a stream of text into plain text and escape sequences, which may be cut anywhere.
#[derive(Default)]
pub struct EscapeSplitter {
    parser: Parser,
    /// Bytes of the sequence that has begun, 0 outside of one.
    sequence_bytes: usize,
}

impl fmt::Debug for EscapeSplitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EscapeSplitter").field("sequence_bytes", &self.sequence_bytes).finish_non_exhaustive()
    }
}

impl EscapeSplitter {
    /// Takes the next piece of the stream. Costs time linear in its length.
    pub fn push(&mut self, text: &str, handler: &mut impl EscapeHandler) {
        let mut rest = text;
        while !rest.is_empty() {
            if self.sequence_bytes == 0 {
                let plain = memchr::memchr(ESC, rest.as_bytes()).unwrap_or(rest.len());
                if plain > 0 {
                    handler.text(&rest[..plain]);
                }
                rest = &rest[plain..];
            }
            let used = self.push_sequence(rest, handler);
            rest = &rest[used..];
        }
    }

    /// Feeds the parser up to the end of the sequence; returns the number of bytes it took.
    fn push_sequence(&mut self, text: &str, handler: &mut impl EscapeHandler) -> usize {
        for (start, character) in text.char_indices() {
            let end = start + character.len_utf8();
            let mut performer = Performer { handler, is_done: false };
            self.parser.advance(&mut performer, &text.as_bytes()[start..end]);
            self.sequence_bytes += end - start;
            if performer.is_done {
                self.sequence_bytes = 0;
                return end;
            }
            if self.sequence_bytes > MAX_SEQUENCE {
                *self = Self::default();
                return end;
            }
        }
        text.len()
    }
}

/// Passes on what the parser reports while it is inside a sequence.
struct Performer<'a, H> {
    handler: &'a mut H,
    is_done: bool,
}

impl<H: EscapeHandler> Perform for Performer<'_, H> {
    /// Only ground text is printed, so the sequence ended without a report.
    fn print(&mut self, character: char) {
        self.handler.text(character.encode_utf8(&mut [0; 4]));
        self.is_done = true;
    }

    /// Control characters take effect in the middle of a sequence, as in a terminal; CAN and SUB end it.
    fn execute(&mut self, byte: u8) {
        match byte {
            0x18 | 0x1a => self.is_done = true,
            _ => self.handler.text(char::from(byte).encode_utf8(&mut [0; 4])),
        }
    }

    fn csi_dispatch(&mut self, parameters: &Params, intermediates: &[u8], ignore: bool, action: char) {
        if intermediates.is_empty() && !ignore {
            self.handler.control_sequence(parameters, action);
        }
        self.is_done = true;
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], ignore: bool, byte: u8) {
        if intermediates.is_empty() && !ignore {
            self.handler.escape(byte);
        }
        self.is_done = true;
    }

    /// With another end than BEL, the rest of the end is still to come.
    fn osc_dispatch(&mut self, _: &[&[u8]], bell_terminated: bool) {
        self.is_done |= bell_terminated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Log(String);

    impl EscapeHandler for Log {
        fn text(&mut self, text: &str) {
            self.0.push_str(text);
        }

        fn control_sequence(&mut self, parameters: &Params, action: char) {
            let numbers: Vec<_> = parameters.iter().map(|parameter| parameter[0].to_string()).collect();
            self.0.push_str(&format!("<{}{action}>", numbers.join(";")));
        }

        fn escape(&mut self, action: u8) {
            self.0.push_str(&format!("<{}>", action as char));
        }
    }

    fn split(pieces: &[&str]) -> String {
        let mut log = Log::default();
        let mut splitter = EscapeSplitter::default();
        for piece in pieces {
            splitter.push(piece, &mut log);
        }
        log.0
    }

    #[test]
    fn all_kinds_of_sequences_are_found() {
        for (input, expected) in [
            ("a\x1b[1;31mb\x1b[mc", "a<1;31m>b<0m>c"),
            ("a\x1b[?25lb", "ab"),
            ("a\x1b]0;title\x07b", "ab"),
            ("a\x1b]8;;http://x\x1b\\é\x1b]8;;\x1b\\b", "a<\\>é<\\>b"),
            ("a\x1bPq#0;2\x1b\\b", "a<\\>b"),
            ("a\x1b_comment\x1b\\b", "a<\\>b"),
            ("a\x1b7b\x1b(Bc", "a<7>bc"),
            ("a\x1b[3\x18b", "ab"),
            ("a\x1b[3\nAb", "a\n<3A>b"),
            ("a\x1b\x1b[2Kb", "a<2K>b"),
            ("a\x1b[1<mbé\x1b[1mc", "abé<1m>c"),
            ("a\x1b", "a"),
        ] {
            assert_eq!(split(&[input]), expected, "{input:?}");
        }
    }

    #[test]
    fn a_sequence_without_end_swallows_no_more_than_the_limit() {
        let long = "x".repeat(MAX_SEQUENCE);
        assert_eq!(split(&["a\x1b]0;", &long, "b\n"]), "axxxb\n");
    }

    proptest::proptest! {
        #[test]
        fn pieces_make_no_difference(text in "([a-zé\n]|\x1b[\\[\\]P78]|[0-9;]|[mKH\x07\\\\]){0,60}", cut in 0usize..200) {
            let mut cut = cut.min(text.len());
            while !text.is_char_boundary(cut) {
                cut -= 1;
            }
            proptest::prop_assert_eq!(split(&[&text[..cut], &text[cut..]]), split(&[&text]));
        }
    }
}
