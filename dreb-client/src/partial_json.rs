//! Reads the beginning of a JSON object, as tool arguments stream in.

use protocol_schema::mend_surrogates;
use serde_json::{Map, Value};

/// The object that `text` is the beginning of, as far as it is known. A string that is not closed
/// yet counts as far as it goes; a key without a value does not count.
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
    parse(closers(&text[..scan.usable], if scan.in_string { "\"" } else { "" }))
        .or_else(|| parse(closers(&text[..scan.cut], "")))
        .unwrap_or_default()
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
                if at + length > bytes.len() {
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
            (r#"{"path":"a","limit":1"#, r#"{"path":"a","limit":1}"#),
            (r#"{"path":"a","on":tr"#, r#"{"path":"a"}"#),
            (r#"{"edits":[{"a":1},{"b":"x,]"#, r#"{"edits":[{"a":1},{"b":"x,]"}]}"#),
            (r#"{"edits":[{"a":1},{"b":"#, r#"{"edits":[{"a":1},{}]}"#),
            (r#"{"a":{"b":1},"#, r#"{"a":{"b":1}}"#),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":"\ud83d"#, "{\"a\":\"\u{fffd}\"}"),
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
