//! Arguments of a tool call while their JSON text is still arriving.
//!
//! Each update of the wire shows the arguments so far as a whole object. Parsing the text anew for
//! each piece would cost the square of its length; this scanner looks at each byte once and says
//! where the text can be cut and how it is closed.

use crate::llm::partial_json::MAX_DEPTH;

/// A scanner that completes the JSON text it has seen so far.
#[derive(Debug, Default)]
pub(super) struct ArgumentText {
    text: String,
    /// Bytes already scanned.
    scanned: usize,
    /// Open objects (`}`) and arrays (`]`), outermost first, with what they expect next.
    stack: Vec<Frame>,
    token: Token,
    /// Up to here the text is whole values and can be closed.
    safe: usize,
    /// The stack at `safe`, as closing brackets, innermost last.
    closers: Vec<u8>,
    /// The text is no JSON object; what remains is shown as it was.
    broken: bool,
    done: bool,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    array: bool,
    expect: Expect,
}

/// What may come next in an open object or array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// A key or the end.
    FirstKey,
    Key,
    Colon,
    Value,
    /// A value or the end of an array.
    FirstItem,
    /// A comma or the end.
    Comma,
}

impl Frame {
    fn closer(self) -> u8 {
        if self.array { b']' } else { b'}' }
    }

    fn takes_value(self) -> bool {
        matches!(self.expect, Expect::Value | Expect::FirstItem)
    }

    fn may_end(self) -> bool {
        matches!(self.expect, Expect::FirstKey | Expect::FirstItem | Expect::Comma)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Token {
    #[default]
    None,
    /// In a string; `escape` counts the characters of an unfinished escape, `start` is where it began.
    Str { escape: u8, unicode: bool },
    /// In a number or a literal that began here.
    Word { start: usize },
}

impl ArgumentText {
    /// Adds a piece.
    pub(super) fn push(&mut self, piece: &str) {
        self.text.push_str(piece);
        while self.scanned < self.text.len() && !self.broken {
            let at = self.scanned;
            let byte = self.text.as_bytes()[at];
            self.scanned += 1;
            self.step(at, byte);
        }
    }

    /// The whole text so far.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Writes the completed object.
    pub(super) fn write_completed(&self, out: &mut Vec<u8>) {
        if self.safe == 0 {
            out.extend_from_slice(b"{}");
            return;
        }
        let bytes = self.text.as_bytes();
        out.extend_from_slice(&bytes[..self.safe]);
        match self.token {
            // A string value that is still arriving is shown as far as it is whole characters.
            Token::Str { escape, unicode } if !self.broken && self.value_position() => {
                out.extend_from_slice(&bytes[self.safe..bytes.len() - self.pending_escape(escape, unicode)]);
                out.push(b'"');
                for frame in self.stack.iter().rev() {
                    out.push(frame.closer());
                }
            }
            _ => {
                for closer in self.closers.iter().rev() {
                    out.push(*closer);
                }
            }
        }
    }

    /// Whether a value is due, so that an open string is one and not a key.
    fn value_position(&self) -> bool {
        self.stack.last().is_some_and(|frame| frame.takes_value())
    }

    /// Bytes at the end that belong to an unfinished escape. A high surrogate whose partner has not
    /// come counts too, for half a pair is no character.
    fn pending_escape(&self, escape: u8, unicode: bool) -> usize {
        let open = if escape == 0 { 0 } else { 1 + usize::from(unicode) + usize::from(escape - 1) };
        let bytes = &self.text.as_bytes()[..self.text.len() - open];
        let lone_high = bytes.len().checked_sub(6).and_then(|start| {
            let tail = &bytes[start..];
            let is_escape = tail.starts_with(b"\\u") && preceding_backslashes(bytes, start).is_multiple_of(2);
            (is_escape && matches!(&tail[2..4], [b'd' | b'D', b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B'])).then_some(6)
        });
        open + lone_high.unwrap_or(0)
    }

    fn step(&mut self, at: usize, byte: u8) {
        match self.token {
            Token::Str { escape: 0, .. } => match byte {
                b'\\' => self.token = Token::Str { escape: 1, unicode: false },
                b'"' => {
                    self.token = Token::None;
                    match self.stack.last_mut() {
                        Some(frame) if matches!(frame.expect, Expect::Key | Expect::FirstKey) => {
                            frame.expect = Expect::Colon;
                        }
                        _ => self.value_ended(at + 1),
                    }
                }
                0..0x20 => self.broken = true,
                _ => {}
            },
            Token::Str { escape, unicode } => {
                let (escape, unicode) = match (unicode, escape) {
                    (false, _) if byte == b'u' => (1, true),
                    (false, _) if b"\"\\/bfnrt".contains(&byte) => (0, false),
                    (true, 1..=4) if byte.is_ascii_hexdigit() => {
                        if escape == 4 {
                            (0, false)
                        } else {
                            (escape + 1, true)
                        }
                    }
                    _ => {
                        self.broken = true;
                        return;
                    }
                };
                self.token = Token::Str { escape, unicode };
            }
            Token::Word { start } => match byte {
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' => {
                    if serde_json::from_str::<serde::de::IgnoredAny>(&self.text[start..at]).is_err() {
                        self.broken = true;
                        return;
                    }
                    self.token = Token::None;
                    self.value_ended(at);
                    self.structure(at, byte);
                }
                _ => {}
            },
            Token::None => self.structure(at, byte),
        }
    }

    fn structure(&mut self, at: usize, byte: u8) {
        if byte.is_ascii_whitespace() {
            return;
        }
        let Some(frame) = self.stack.last_mut() else {
            if byte == b'{' && !self.done {
                self.open(at, false);
            } else {
                self.broken = true;
            }
            return;
        };
        match (byte, frame.expect) {
            (b'}' | b']', _) if frame.may_end() && frame.closer() == byte => {
                self.stack.pop();
                self.value_ended(at + 1);
            }
            (b'"', Expect::FirstKey | Expect::Key | Expect::Value | Expect::FirstItem) => {
                self.token = Token::Str { escape: 0, unicode: false };
            }
            (b':', Expect::Colon) => frame.expect = Expect::Value,
            (b',', Expect::Comma) => frame.expect = if frame.array { Expect::Value } else { Expect::Key },
            (b'{' | b'[', Expect::Value | Expect::FirstItem) => self.open(at, byte == b'['),
            (b'-' | b'0'..=b'9' | b't' | b'f' | b'n', Expect::Value | Expect::FirstItem) => {
                self.token = Token::Word { start: at };
            }
            _ => self.broken = true,
        }
    }

    fn open(&mut self, at: usize, array: bool) {
        if self.stack.len() == MAX_DEPTH {
            self.broken = true;
            return;
        }
        self.stack.push(Frame { array, expect: if array { Expect::FirstItem } else { Expect::FirstKey } });
        self.mark(at + 1);
    }

    fn value_ended(&mut self, end: usize) {
        match self.stack.last_mut() {
            Some(frame) => frame.expect = Expect::Comma,
            None => self.done = true,
        }
        self.mark(end);
    }

    fn mark(&mut self, end: usize) {
        self.safe = end;
        self.closers.clear();
        self.closers.extend(self.stack.iter().map(|frame| frame.closer()));
    }
}

fn preceding_backslashes(bytes: &[u8], at: usize) -> usize {
    bytes[..at].iter().rev().take_while(|byte| **byte == b'\\').count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn completed(text: &str) -> Value {
        let mut arguments = ArgumentText::default();
        arguments.push(text);
        let mut out = Vec::new();
        arguments.write_completed(&mut out);
        serde_json::from_slice(&out)
            .unwrap_or_else(|error| panic!("{text:?} -> {:?}: {error}", String::from_utf8_lossy(&out)))
    }

    #[test]
    fn a_cut_off_text_is_completed() {
        for (text, expected) in [
            ("", json!({})),
            ("  ", json!({})),
            ("{", json!({})),
            (r#"{"pa"#, json!({})),
            (r#"{"path""#, json!({})),
            (r#"{"path":"#, json!({})),
            (r#"{"path": "tru"#, json!({"path": "tru"})),
            (r#"{"path": "a\"#, json!({"path": "a"})),
            (r#"{"path": "a\u00e"#, json!({"path": "a"})),
            (r#"{"path": "a\ud83d"#, json!({"path": "a"})),
            (r#"{"path": "a\ud83d\ude0"#, json!({"path": "a"})),
            (r#"{"path": "a\ud83d\ude00"#, json!({"path": "a😀"})),
            (r#"{"path": "a\\ud83d"#, json!({"path": "a\\ud83d"})),
            (r#"{"a": 12"#, json!({})),
            (r#"{"a": 12,"#, json!({"a": 12})),
            (r#"{"a": [1, {"b": "x"}, ["#, json!({"a": [1, {"b": "x"}, []]})),
            (r#"{"a": [1, {"b": "x"#, json!({"a": [1, {"b": "x"}]})),
            (r#"{"a": true, "b"#, json!({"a": true})),
            (r#"{"a": true} "#, json!({"a": true})),
            (r#"{"a": true} x"#, json!({"a": true})),
            ("[1]", json!({})),
            ("nonsense", json!({})),
        ] {
            assert_eq!(completed(text), expected, "{text}");
        }
    }

    #[test]
    fn a_text_that_nests_too_deep_ends_at_the_limit() {
        let mut arguments = ArgumentText::default();
        arguments.push(r#"{"a":"#);
        // Far more than could be copied for each bracket.
        arguments.push(&"[".repeat(1_000_000));
        let mut out = Vec::new();
        arguments.write_completed(&mut out);
        let levels = MAX_DEPTH - 1;
        let expected = format!(r#"{{"a":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((".*", inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_prefix_completes_and_the_whole_text_is_itself(
            fields in prop::collection::vec((".{0,8}", any_json()), 0..5),
            pretty in any::<bool>(),
        ) {
            let value = Value::Object(fields.into_iter().collect());
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let mut arguments = ArgumentText::default();
            for piece in text.split_inclusive(|_: char| true) {
                arguments.push(piece);
                let mut out = Vec::new();
                arguments.write_completed(&mut out);
                prop_assert!(serde_json::from_slice::<serde_json::Map<String, Value>>(&out).is_ok(), "{}", String::from_utf8_lossy(&out));
            }
            prop_assert_eq!(completed(&text), value);
        }

        #[test]
        fn any_text_at_all_completes_to_an_object(text in ".{0,40}", json_like in "[\\[\\]{}:,\"\\\\a1 .eu-]{0,40}") {
            for text in [text, json_like.clone(), format!("{{\"a\":{json_like}")] {
                let mut arguments = ArgumentText::default();
                arguments.push(&text);
                let mut out = Vec::new();
                arguments.write_completed(&mut out);
                prop_assert!(serde_json::from_slice::<serde_json::Map<String, Value>>(&out).is_ok(), "{text:?} {}", String::from_utf8_lossy(&out));
            }
        }
    }
}
