//! Reading helpers shared by the wire types: discriminators, escapes of lone surrogates, schemas of
//! open unions.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};

/// The string under `key` at the top level of a JSON object, `None` if it is absent or no string.
///
/// An object that starts with the key is not scanned further, so a known frame costs one look.
///
/// # Errors
///
/// The text is not JSON.
pub(crate) fn discriminator<'a>(text: &'a str, key: &'static str) -> Result<Option<Cow<'a, str>>, serde_json::Error> {
    if let Some(found) = leading(text, key) {
        return Ok(Some(Cow::Borrowed(found)));
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_any(Find { key })
}

fn leading<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text.strip_prefix("{\"")?.strip_prefix(key)?.strip_prefix("\":\"")?;
    let end = rest.find(['"', '\\'])?;
    // An escape inside the word is left to the real parser.
    (rest.as_bytes()[end] == b'"').then(|| &rest[..end])
}

struct Find {
    key: &'static str,
}

impl<'de> Visitor<'de> for Find {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a string `{}`", self.key)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == self.key {
                let value: serde_json::Value = map.next_value()?;
                found = match value {
                    serde_json::Value::String(word) => Some(Cow::Owned(word)),
                    _ => None,
                };
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// The schema of an open union: each known kind by its own definition, any other object besides.
pub(crate) fn open_union_schema(key: &str, kinds: &[&str], mut known: Vec<serde_json::Value>) -> schemars::Schema {
    known.push(serde_json::json!({
        "title": "Unknown",
        "description": "A kind that a later version may add.",
        "type": "object",
        "properties": { key: { "type": "string", "not": { "enum": kinds } } },
    }));
    schemars::json_schema!({ "anyOf": known })
}

/// Replaces the escapes of lone UTF-16 surrogates in JSON text by `\ufffd`.
///
/// JavaScript writes and reads such escapes, strict JSON readers refuse the whole line. Returns the
/// text unchanged, without a copy, when there is nothing to mend.
#[must_use]
pub fn mend_surrogates(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut mended: Option<Vec<u8>> = None;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match surrogate_at(bytes, at) {
            Some(unit) if (0xD800..0xDC00).contains(&unit) => {
                if surrogate_at(bytes, at + 6).is_some_and(|next| (0xDC00..0xE000).contains(&next)) {
                    at += 12;
                } else {
                    replace(&mut mended, bytes, at);
                    at += 6;
                }
            }
            Some(_) => {
                replace(&mut mended, bytes, at);
                at += 6;
            }
            // Skip the escaped character too, so that `\\ud800` is not taken for an escape.
            None => at += 2,
        }
    }
    match mended {
        None => Cow::Borrowed(text),
        // Only ASCII hex digits were overwritten by ASCII hex digits.
        Some(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

fn replace(mended: &mut Option<Vec<u8>>, bytes: &[u8], at: usize) {
    mended.get_or_insert_with(|| bytes.to_vec())[at..at + 6].copy_from_slice(b"\\ufffd");
}

/// The code unit of a `\u` escape at `at`, if it is a surrogate.
fn surrogate_at(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at + 6)?;
    if escape[0] != b'\\' || escape[1] != b'u' {
        return None;
    }
    let digits = std::str::from_utf8(&escape[2..]).ok()?;
    let unit = u16::from_str_radix(digits, 16).ok()?;
    (0xD800..0xE000).contains(&unit).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_discriminator_is_found_without_parsing_the_rest() {
        assert_eq!(discriminator(r#"{"type":"text_delta", garbage"#, "type").unwrap().as_deref(), Some("text_delta"));
    }

    #[test]
    fn a_late_escaped_or_missing_discriminator_is_read_in_full() {
        assert_eq!(discriminator(r#"{"a":[1,{"type":"x"}],"type":"y"}"#, "type").unwrap().as_deref(), Some("y"));
        assert_eq!(discriminator(r#"{"type":"a\u0062"}"#, "type").unwrap().as_deref(), Some("ab"));
        assert_eq!(discriminator(r#"{"type":5}"#, "type").unwrap(), None);
        assert_eq!(discriminator("[1]", "type").unwrap(), None);
        assert!(discriminator(r#"{"a":"#, "type").is_err());
    }

    #[test]
    fn lone_surrogates_become_replacement_characters_and_pairs_stay() {
        assert_eq!(mend_surrogates(r#""\ud83d\ude00""#), r#""\ud83d\ude00""#);
        assert_eq!(mend_surrogates(r#""lone \ud83d end""#), r#""lone \ufffd end""#);
        assert_eq!(mend_surrogates(r#""\ude00\uD800\uD800\uDC00""#), r#""\ufffd\ufffd\uD800\uDC00""#);
        assert_eq!(mend_surrogates(r#""\\ud800""#), r#""\\ud800""#);
        assert_eq!(mend_surrogates(r#""\ud8"#), r#""\ud8"#);
    }
}
