//! Reading the arguments of a tool call while they still stream.

use protocol_schema::mend_surrogates;
use serde_json::{Map, Value};

/// Deepest nesting of arguments, the object itself counted.
///
/// JSON readers commonly stop at 128 levels, and events and session files put arguments a few levels
/// deeper still: what is shown or stored must stay readable.
pub const MAX_DEPTH: usize = 100;

/// The object that `text` is the beginning of.
///
/// A whole object is read strictly. One that is cut off is completed: open strings, arrays and
/// objects are closed, a member whose value has not begun is left out. What cannot be read at all,
/// and anything that is not an object or nests deeper than [`MAX_DEPTH`], gives an empty object. Lone
/// surrogates become U+FFFD.
#[must_use]
pub fn parse_object(text: &str) -> Map<String, Value> {
    let text = text.trim();
    if text.is_empty() {
        return Map::new();
    }
    let mended = mend_surrogates(text);
    let object = match serde_json::from_str(&mended) {
        Ok(Value::Object(object)) => object,
        Ok(_) => Map::new(),
        Err(_) => completed_object(text),
    };
    if object.values().all(|value| fits(value, MAX_DEPTH - 1)) { object } else { Map::new() }
}

/// Whether a value nests no deeper than `levels`.
fn fits(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| fits(item, levels - 1)),
        Value::Object(members) => levels > 0 && members.values().all(|member| fits(member, levels - 1)),
        _ => true,
    }
}

/// Whether `text` is a whole JSON object, so that nothing but blanks can follow.
#[must_use]
pub fn is_whole_object(text: &str) -> bool {
    text.trim_end().ends_with('}') && serde_json::from_str::<Map<String, Value>>(&mend_surrogates(text)).is_ok()
}

fn completed_object(text: &str) -> Map<String, Value> {
    let Some(completed) = Completer::new(text).run() else { return Map::new() };
    match serde_json::from_str(&mend_surrogates(&completed)) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// What the innermost container waits for.
#[derive(Clone, Copy, PartialEq)]
enum Expect {
    /// A value or, in an array that has none yet, its end.
    Value,
    /// A key or, in an object that has none yet, its end.
    Key,
    Colon,
    /// A comma or the end of the container.
    Next,
}

#[derive(Clone, Copy)]
struct Container {
    close: char,
    expect: Expect,
    /// Whether the end may come although a value or key is expected.
    may_end: bool,
}

/// Copies JSON text and, where it breaks off, goes back to the last place from which the open
/// containers can be closed.
struct Completer<'a> {
    rest: &'a str,
    out: String,
    stack: Vec<Container>,
    /// Length of `out` that holds complete members only.
    safe: usize,
}

impl<'a> Completer<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text, out: String::with_capacity(text.len() + 16), stack: Vec::new(), safe: 0 }
    }

    /// The completed text; `None` if the text is not the beginning of an object.
    fn run(mut self) -> Option<String> {
        if !self.rest.starts_with('{') {
            return None;
        }
        self.open('}');
        self.rest = &self.rest[1..];
        while let Some(top) = self.stack.last().copied() {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
            let Some(next) = self.rest.chars().next() else {
                return Some(self.close_all());
            };
            match (top.expect, next) {
                (Expect::Next, _) if next == top.close => self.close(),
                (Expect::Value | Expect::Key, _) if next == top.close && top.may_end => self.close(),
                (Expect::Next, ',') => {
                    let expect = if top.close == '}' { Expect::Key } else { Expect::Value };
                    self.step(next, expect);
                }
                (Expect::Key, '"') => {
                    // A key that is cut off is worth nothing.
                    if !self.string() {
                        return Some(self.close_all());
                    }
                    self.expect(Expect::Colon);
                }
                (Expect::Colon, ':') => self.step(next, Expect::Value),
                (Expect::Value, '"') => {
                    if !self.string() {
                        self.out.push('"');
                    }
                    self.value_done();
                }
                (Expect::Value, '{') => {
                    self.rest = &self.rest[1..];
                    self.open('}');
                }
                (Expect::Value, '[') => {
                    self.rest = &self.rest[1..];
                    self.open(']');
                }
                (Expect::Value, _) => {
                    if !self.scalar()? {
                        return Some(self.close_all());
                    }
                    self.value_done();
                }
                _ => return None,
            }
        }
        // What follows the object is not part of it.
        Some(self.out)
    }

    fn expect(&mut self, expect: Expect) {
        if let Some(top) = self.stack.last_mut() {
            top.expect = expect;
            top.may_end = false;
        }
    }

    fn step(&mut self, next: char, expect: Expect) {
        self.out.push(next);
        self.rest = &self.rest[next.len_utf8()..];
        self.expect(expect);
    }

    fn open(&mut self, close: char) {
        self.out.push(if close == '}' { '{' } else { '[' });
        let expect = if close == '}' { Expect::Key } else { Expect::Value };
        self.stack.push(Container { close, expect, may_end: true });
        self.safe = self.out.len();
    }

    fn close(&mut self) {
        if let Some(top) = self.stack.pop() {
            self.out.push(top.close);
            self.rest = &self.rest[1..];
        }
        self.value_done();
    }

    fn value_done(&mut self) {
        self.expect(Expect::Next);
        self.safe = self.out.len();
    }

    fn close_all(mut self) -> String {
        self.out.truncate(self.safe);
        while let Some(top) = self.stack.pop() {
            self.out.push(top.close);
        }
        self.out
    }

    /// Copies a string, without its closing quote if the text ends before it; says whether it was
    /// whole. Raw control characters and unknown escapes, which models sometimes write, are mended.
    fn string(&mut self) -> bool {
        self.out.push('"');
        let mut text = &self.rest[1..];
        loop {
            let plain = text.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(text.len());
            self.out.push_str(&text[..plain]);
            text = &text[plain..];
            let used = match text.as_bytes() {
                [] | [b'\\'] => break,
                [b'"', ..] => {
                    self.out.push('"');
                    self.rest = &text[1..];
                    return true;
                }
                [b'\\', b'u', digits @ ..] => match unicode_escape(digits) {
                    Escape::CutOff => break,
                    Escape::Whole => {
                        self.out.push_str(&text[..6]);
                        6
                    }
                    Escape::Invalid => {
                        self.out.push_str("\\\\u");
                        2
                    }
                },
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => {
                    self.out.push_str(&text[..2]);
                    2
                }
                [b'\\', ..] => {
                    self.out.push_str("\\\\");
                    1
                }
                [control, ..] => {
                    self.out.push_str(&format!("\\u{control:04x}"));
                    1
                }
            };
            text = &text[used..];
        }
        self.rest = "";
        false
    }

    /// Copies a number or word. `Some(false)` if too little of it is there, `None` if it is neither.
    fn scalar(&mut self) -> Option<bool> {
        let end = self.rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        let cut_off = rest.is_empty();
        let word =
            ["true", "false", "null"].into_iter().find(|word| *word == token || cut_off && word.starts_with(token));
        if let Some(word) = word {
            self.out.push_str(word);
        } else {
            let digits = if cut_off { token.trim_end_matches(['.', 'e', 'E', '+', '-']) } else { token };
            if digits.is_empty() && token.starts_with('-') {
                return Some(false);
            }
            serde_json::from_str::<serde_json::Number>(digits).ok()?;
            self.out.push_str(digits);
        }
        self.rest = rest;
        Some(true)
    }
}

enum Escape {
    Whole,
    CutOff,
    Invalid,
}

/// Judges a `\u` escape by what follows the `u`.
fn unicode_escape(text: &[u8]) -> Escape {
    let digits = hex_digits(text);
    if digits < 4 {
        return if digits == text.len() { Escape::CutOff } else { Escape::Invalid };
    }
    // The first half of a surrogate pair waits for the second.
    let first_half = matches!(text, [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]);
    let second_cut_off = match &text[4..] {
        [] | [b'\\'] => true,
        [b'\\', b'u', rest @ ..] => rest.len() < 4 && hex_digits(rest) == rest.len(),
        _ => false,
    };
    if first_half && second_cut_off { Escape::CutOff } else { Escape::Whole }
}

fn hex_digits(text: &[u8]) -> usize {
    text.iter().take(4).take_while(|byte| byte.is_ascii_hexdigit()).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> Value {
        Value::Object(parse_object(text))
    }

    #[test]
    fn blank_broken_and_other_values_give_an_empty_object() {
        for text in
            ["", " \n", "[1]", "\"x\"", "null", "tru", "{]", "{\"a\" 1", "{\"a\":1,,", "{\"a\":bad,", "{a:1}", "{,"]
        {
            assert_eq!(parsed(text), json!({}), "{text}");
        }
    }

    #[test]
    fn open_structures_are_completed() {
        for (text, expected) in [
            ("{", json!({})),
            (r#"{"pa"#, json!({})),
            (r#"{"path""#, json!({})),
            (r#"{"path":"#, json!({})),
            (r#"{"path": "tru"#, json!({"path": "tru"})),
            (r#"{"a":1,"#, json!({"a": 1})),
            (r#"{"a":1,"b"#, json!({"a": 1})),
            (r#"{"a":[1,{"b":[tr"#, json!({"a": [1, {"b": [true]}]})),
            (r#"{"a":[1,"#, json!({"a": [1]})),
            (r#"{"a":[],"b":{}"#, json!({"a": [], "b": {}})),
            (r#"{"a":-"#, json!({})),
            (r#"{"a":12."#, json!({"a": 12})),
            (r#"{"a":1.5e-"#, json!({"a": 1.5})),
            (r#"{"a":"x\"#, json!({"a": "x"})),
            (r#"{"a":"x\n\u00e"#, json!({"a": "x\n"})),
            (r#"{"a":"x\ud83d"#, json!({"a": "x"})),
            (r#"{"a":"x\ud83d\ude"#, json!({"a": "x"})),
            (r#"{"a":"x\ud83d\ude00"#, json!({"a": "x😀"})),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }

    #[test]
    fn small_faults_are_mended() {
        assert_eq!(parsed("{\"a\":\"x\ny\"}"), json!({"a": "x\ny"}));
        assert_eq!(parsed(r#"{"a":"\d+\u12"}"#), json!({"a": "\\d+\\u12"}));
        assert_eq!(parsed(r#"{"a":1}{"b":2}"#), json!({"a": 1}));
        assert_eq!(parsed(r#"{"a":"\ud83d!"}"#), json!({"a": "\u{fffd}!"}));
        assert_eq!(parsed(r#"{"a":"\ude00","b":"c"#), json!({"a": "\u{fffd}", "b": "c"}));
    }

    #[test]
    fn nesting_beyond_the_reader_is_an_empty_object_and_no_overflow() {
        assert_eq!(parsed(&r#"{"a":"#.repeat(100_000)), json!({}));
    }

    #[test]
    fn nesting_is_taken_up_to_the_limit() {
        for (levels, taken) in [(MAX_DEPTH - 1, true), (MAX_DEPTH, false)] {
            let text = format!(r#"{{"a":{}1{}}}"#, "[".repeat(levels), "]".repeat(levels));
            assert_eq!(parse_object(&text).contains_key("a"), taken, "{levels}");
            assert_eq!(parse_object(&text[..text.len() - 9]).contains_key("a"), taken, "{levels}, cut off");
        }
    }

    #[test]
    fn whole_objects_are_told_from_beginnings() {
        assert!(is_whole_object(r#" {"a":"}"} "#));
        for text in ["", "{", r#"{"a":"}"#, r#"{"a":{}"#, "[{}]", "{} {}"] {
            assert!(!is_whole_object(text), "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                object(inner).prop_map(Value::Object),
            ]
        })
    }

    fn object(values: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::btree_map(".{0,6}", values, 0..4).prop_map(|map| map.into_iter().collect())
    }

    /// Whether `part` is what of `whole` can be known from a beginning of its text.
    fn begins(part: &Value, whole: &Value) -> bool {
        match (part, whole) {
            (Value::Object(part), Value::Object(whole)) => {
                part.len() <= whole.len()
                    && part.iter().zip(whole).all(|((key, value), (of, whole))| key == of && begins(value, whole))
            }
            (Value::Array(part), Value::Array(whole)) => {
                part.len() <= whole.len() && part.iter().zip(whole).all(|(value, whole)| begins(value, whole))
            }
            (Value::String(part), Value::String(whole)) => whole.starts_with(part.as_str()),
            // The digits of a number that is cut off are another number.
            (Value::Number(_), Value::Number(_)) => true,
            _ => part == whole,
        }
    }

    proptest! {
        #[test]
        fn every_beginning_gives_a_beginning(object in object(value()), ascii in any::<bool>(), pretty in any::<bool>()) {
            let whole = Value::Object(object.clone());
            let text = if pretty { serde_json::to_string_pretty(&whole) } else { serde_json::to_string(&whole) }.unwrap();
            let text = if ascii { escaped(&text) } else { text };
            for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
                let part = parsed(&text[..end]);
                prop_assert!(begins(&part, &whole), "{} gives {}", &text[..end], part);
            }
            prop_assert_eq!(parse_object(&text), object);
            prop_assert!(is_whole_object(&text));
        }

        #[test]
        fn any_text_gives_an_object(text in r#"\{?[{}\[\]",:\\u0-9a-f \nd8]{0,40}"#) {
            let object = parse_object(&text);
            if let Ok(Value::Object(strict)) = serde_json::from_str(&text) {
                prop_assert_eq!(object, strict);
            }
        }
    }

    /// The JSON text with everything beyond ASCII escaped.
    fn escaped(text: &str) -> String {
        let mut units = [0; 2];
        text.chars().fold(String::new(), |mut out, next| {
            if next.is_ascii() {
                out.push(next);
            } else {
                next.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
            out
        })
    }
}
