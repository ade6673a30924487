//! JSON with comments and trailing commas.
//!
//! Comments and commas are blanked, not removed, so that lines and columns in the errors of the real
//! parser stay those of the file.

use std::borrow::Cow;

/// JSON text without comments, trailing commas and a leading byte order mark, of the same shape.
///
/// What is not JSON afterwards is left to the parser; so is a block comment without an end.
#[must_use]
pub(crate) fn to_json(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let bytes = text.as_bytes();
    let mut out: Option<Vec<u8>> = None;
    // The last comma that only blanks and comments have followed so far.
    let mut comma = None;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                comma = None;
                at = string_end(bytes, at);
            }
            b'/' => match comment_end(bytes, at) {
                Some(end) => {
                    let out = out.get_or_insert_with(|| bytes.to_vec());
                    for byte in &mut out[at..end] {
                        if !matches!(*byte, b'\n' | b'\r') {
                            *byte = b' ';
                        }
                    }
                    at = end;
                }
                None => {
                    comma = None;
                    at += 1;
                }
            },
            b',' => {
                comma = Some(at);
                at += 1;
            }
            byte => {
                if matches!(byte, b']' | b'}')
                    && let Some(comma) = comma
                {
                    out.get_or_insert_with(|| bytes.to_vec())[comma] = b' ';
                }
                if !byte.is_ascii_whitespace() {
                    comma = None;
                }
                at += 1;
            }
        }
    }
    match out {
        None => Cow::Borrowed(text),
        // Whole characters were overwritten by ASCII blanks.
        Some(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Where the string that begins at `start` ends, past its closing quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Where the comment that begins at `start` ends; a line's end does not belong to it.
fn comment_end(bytes: &[u8], start: usize) -> Option<usize> {
    let rest = bytes.get(start + 2..)?;
    match bytes.get(start + 1)? {
        b'/' => Some(memchr::memchr(b'\n', rest).map_or(bytes.len(), |at| start + 2 + at)),
        b'*' => memchr::memmem::find(rest, b"*/").map(|at| start + 2 + at + 2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn comments_and_trailing_commas_are_taken() {
        let text = "\u{feff}{ // eins\n \"a\": [1, 2, /* ü */ ], /* x\n y */ \"b\": \"// no, ]\\\" /*\",\n}";
        let value: Value = serde_json::from_str(&to_json(text)).unwrap();
        assert_eq!(value, json!({ "a": [1, 2], "b": "// no, ]\" /*" }));
    }

    #[test]
    fn positions_stay() {
        let text = "{\n  // a comment with ü\n  \"a\": 1 2\n}";
        let error = serde_json::from_str::<Value>(&to_json(text)).unwrap_err();
        assert_eq!((error.line(), error.column()), (3, 10));
    }

    #[test]
    fn what_is_no_json_stays_an_error() {
        for text in ["[1,,]", "{,}x", "[1 /* open ]", "[1] / [2]", "[,1]", "\"open", "/", "[1]/"] {
            assert!(serde_json::from_str::<Value>(&to_json(text)).is_err(), "{text}");
        }
        // A list that is nothing but a comma is the price of not parsing here.
        assert_eq!(to_json("[,]"), "[ ]");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn json_passes_unchanged(text in r#"(\[|\]|\{|\}|,|:|"[^"\\]*"|[0-9]| |\n){0,40}"#) {
            if serde_json::from_str::<Value>(&text).is_ok() {
                prop_assert_eq!(to_json(&text), text.as_str());
            }
        }

        #[test]
        fn any_text_is_survived(text in ".{0,60}") {
            prop_assert!(to_json(&text).len() <= text.len());
        }
    }
}
