//! The text of a file, free of what an edit must keep: byte order mark, line endings, stray bytes.

use std::borrow::Cow;

/// Invalid bytes are held as characters from here on, one each, so that they can be written back. The
/// range is private use that no text has a reason to use; a text that does and has invalid bytes
/// too is refused.
const STRAY_BYTES: u32 = 0x10_FF00;

const BOM: char = '\u{feff}';

/// A decoded file.
#[derive(Debug)]
pub(super) struct FileText {
    /// The text, lines ended by LF, without byte order mark.
    pub(super) text: String,
    has_bom: bool,
    has_crlf: bool,
    has_stray_bytes: bool,
}

impl FileText {
    /// Takes a file apart. `None` if it could not be put together again.
    ///
    /// Its line ending is that of its first line break; in a file with several kinds all become that.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (decoded, has_stray_bytes) = match std::str::from_utf8(bytes) {
            Ok(text) => (Cow::Borrowed(text), false),
            Err(_) => (Cow::Owned(decode_with_stray_bytes(bytes)?), true),
        };
        let text = decoded.strip_prefix(BOM).unwrap_or(&decoded);
        let has_crlf = text.find('\n').is_some_and(|end| text[..end].ends_with('\r'));
        Some(Self {
            has_bom: text.len() != decoded.len(),
            has_crlf,
            has_stray_bytes,
            text: with_line_feeds(text).into_owned(),
        })
    }

    /// The bytes of the file with a new text.
    pub(super) fn encode(&self, text: &str) -> Vec<u8> {
        let mut result = String::with_capacity(text.len() + BOM.len_utf8());
        if self.has_bom {
            result.push(BOM);
        }
        if self.has_crlf {
            result.push_str(&text.replace('\n', "\r\n"));
        } else {
            result.push_str(text);
        }
        if !self.has_stray_bytes {
            return result.into_bytes();
        }
        let mut bytes = Vec::with_capacity(result.len());
        for c in result.chars() {
            match stray_byte(c) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes
    }

    /// A text of this file with replacement characters for stray bytes.
    pub(super) fn readable<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.has_stray_bytes {
            Cow::Owned(text.replace(|c| stray_byte(c).is_some(), "\u{fffd}"))
        } else {
            Cow::Borrowed(text)
        }
    }
}

/// CRLF and lone CR become LF.
pub(super) fn with_line_feeds(text: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\r', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n"))
}

/// The byte that a character of a decoded file stands for.
pub(super) fn stray_byte(c: char) -> Option<u8> {
    u32::from(c).checked_sub(STRAY_BYTES).and_then(|byte| u8::try_from(byte).ok()).filter(|byte| !byte.is_ascii())
}

fn decode_with_stray_bytes(bytes: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        if chunk.valid().contains(|c| stray_byte(c).is_some()) {
            return None;
        }
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(STRAY_BYTES + u32::from(*byte))));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mark_and_line_endings_are_set_aside_and_restored() {
        for (bytes, text, new, expected) in [
            ("a\nb", "a\nb", "x\ny\n", "x\ny\n"),
            ("\u{feff}a\r\nb\r\n", "a\nb\n", "x\ny\n", "\u{feff}x\r\ny\r\n"),
            ("a\r\nb\nc\rd", "a\nb\nc\nd", "a\nb\nc\nd", "a\r\nb\r\nc\r\nd"),
            ("a\nb\r\n", "a\nb\n", "a\nb\n", "a\nb\n"),
            ("a\rb", "a\nb", "a\nb", "a\nb"),
            ("", "", "x", "x"),
        ] {
            let file = FileText::decode(bytes.as_bytes()).unwrap();
            assert_eq!(file.text, text);
            assert_eq!(file.encode(new), expected.as_bytes());
        }
    }

    #[test]
    fn characters_of_the_reserved_range_are_kept_in_valid_text() {
        let text = "a\u{10ff80}\n";
        let file = FileText::decode(text.as_bytes()).unwrap();
        assert_eq!(file.encode(&file.text), text.as_bytes());
        assert!(FileText::decode(b"\xf4\x8f\xbe\x80\xff").is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>().prop_filter("line endings", |b| *b != b'\r'), 0..40)) {
            let file = FileText::decode(&bytes).unwrap();
            prop_assert_eq!(file.encode(&file.text), bytes);
            prop_assert!(!file.readable(&file.text).contains(|c| file.has_stray_bytes && stray_byte(c).is_some()));
        }
    }
}
