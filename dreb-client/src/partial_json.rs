//! Reads the beginning of a JSON object, as tool arguments stream in.

use protocol_schema::mend_surrogates;
use serde_json::{Map, Value};

/// The object that `text` is the beginning of, as far as it is known. A string that is not closed
/// yet counts as far as it goes; a key without a value does not count, nor does a number or a
/// word that may go on. This is what servers show that send whole messages.
pub(crate) fn object_so_far(text: &str) -> Map<String, Value> {
    let scan = scan(text);
    let closers = |head: &str, quote: &str| {
        let mut whole = String::with_capacity(head.len() + quote.len() + scan.open.len());
        whole.push_str(head);
        whole.push_str(quote);
        whole.extend(scan.open.iter().rev());
        whole
    };
    let parse = |whole: String| serde_json::from_str::<Map<String, Value>>(&mend_surrogates(&whole)).ok();
    let whole = || parse(closers(&text[..scan.usable], if scan.in_string { "\"" } else { "" }));
    let whole = if scan.in_string || !ends_in_word(text) { whole() } else { None };
    whole.or_else(|| parse(closers(&text[..scan.cut], ""))).unwrap_or_default()
}

/// Whether the text, which does not end inside a string, ends in a number, `true`, `false` or `null`, or in
/// the beginning of one.
fn ends_in_word(text: &str) -> bool {
    !text.ends_with([',', ':', '[', ']', '{', '}', '"', ' ', '\t', '\n', '\r'])
}

struct Scan {
    /// Closing brackets that are owed, the outermost first. The same at `cut` and at the end: every
    /// bracket moves `cut`.
    open: Vec<char>,
    in_string: bool,
    /// End of the text without an escape that is not complete yet.
    usable: usize,
    /// The last place where the text can be cut and closed for certain.
    cut: usize,
}

fn scan(text: &str) -> Scan {
    let bytes = text.as_bytes();
    let mut scan = Scan { open: Vec::new(), in_string: false, usable: text.len(), cut: 0 };
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (scan.in_string, byte) {
            (true, b'\\') => {
                let length = if bytes.get(at + 1) == Some(&b'u') { 6 } else { 2 };
                if at + length > bytes.len() || waits_for_its_half(&bytes[at..]) {
                    scan.usable = at;
                    break;
                }
                at += length;
                continue;
            }
            (_, b'"') => scan.in_string = !scan.in_string,
            (true, _) => {}
            (false, b'{' | b'[') => {
                scan.open.push(if byte == b'{' { '}' } else { ']' });
                scan.cut = at + 1;
            }
            (false, b'}' | b']') => {
                scan.open.pop();
                scan.cut = at + 1;
            }
            (false, b',') => scan.cut = at,
            (false, _) => {}
        }
        at += 1;
    }
    scan
}

/// Whether the text is the escape of a high surrogate, whole, and what may become that of the low one.
fn waits_for_its_half(text: &[u8]) -> bool {
    let is_high = matches!(text, [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', _, _, ..]);
    is_high && text.len() < 12 && matches!(&text[6..], [] | [b'\\'] | [b'\\', b'u', ..])
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn every_beginning_gives_what_is_known() {
        for (text, expected) in [
            ("", "{}"),
            ("{", "{}"),
            (r#"{"pa"#, "{}"),
            (r#"{"path""#, "{}"),
            (r#"{"path":"#, "{}"),
            (r#"{"path":""#, r#"{"path":""}"#),
            (r#"{"path":"a/b"#, r#"{"path":"a/b"}"#),
            (r#"{"path":"a\"#, r#"{"path":"a"}"#),
            (r#"{"path":"a\u00e"#, r#"{"path":"a"}"#),
            (r#"{"path":"a\n"#, r#"{"path":"a\n"}"#),
            (r#"{"path":"a","li"#, r#"{"path":"a"}"#),
            (r#"{"path":"a","limit":1"#, r#"{"path":"a"}"#),
            (r#"{"path":"a","limit":1 "#, r#"{"path":"a","limit":1}"#),
            (r#"{"path":"a","limit":1,"#, r#"{"path":"a","limit":1}"#),
            (r#"{"all":[-1,2.5e"#, r#"{"all":[-1]}"#),
            (r#"{"all":[-"#, r#"{"all":[]}"#),
            (r#"{"on":true"#, "{}"),
            (r#"{"on":true}"#, r#"{"on":true}"#),
            (r#"{"path":"a 1"#, r#"{"path":"a 1"}"#),
            (r#"{"path":"a","on":tr"#, r#"{"path":"a"}"#),
            (r#"{"edits":[{"a":1},{"b":"x,]"#, r#"{"edits":[{"a":1},{"b":"x,]"}]}"#),
            (r#"{"edits":[{"a":1},{"b":"#, r#"{"edits":[{"a":1},{}]}"#),
            (r#"{"a":{"b":1},"#, r#"{"a":{"b":1}}"#),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":"x\ud83d"#, r#"{"a":"x"}"#),
            (r#"{"a":"x\uD83D\ude0"#, r#"{"a":"x"}"#),
            (r#"{"a":"x\ud83d\ude00"#, "{\"a\":\"x\u{1f600}\"}"),
            (r#"{"a":"x\ud83dy"#, "{\"a\":\"x\u{fffd}y\"}"),
            (r#"{"a":"x\ud83d\n"#, "{\"a\":\"x\u{fffd}\\n\"}"),
            (r#"{"a":"x\ud83d""#, "{\"a\":\"x\u{fffd}\"}"),
            ("[1,2", "{}"),
            ("garbage", "{}"),
        ] {
            assert_eq!(Value::Object(object_so_far(text)).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn no_cut_of_a_real_call_panics_and_the_whole_is_exact() {
        let whole =
            r#"{"path":"ä/\"b\".rs","edits":[{"old":"{[","new":"\u00e4\\"},[],{}],"n":-1.5e3,"t":true,"z":null}"#;
        for (end, _) in whole.char_indices() {
            object_so_far(&whole[..end]);
        }
        assert_eq!(object_so_far(whole), serde_json::from_str::<Map<String, Value>>(whole).unwrap());
    }
}
