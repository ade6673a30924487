//! The frames around commands and responses.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::registry::{Command, Request, ResponseData};

/// Why a line is not a command.
///
/// Each case keeps what could be read of the frame, so that the answer carries `id` and `command`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The line is not JSON.
    #[error("Failed to parse command: {0}")]
    Syntax(#[source] serde_json::Error),
    /// There is no command of this type.
    #[error("Unknown command: {shown}")]
    UnknownCommand {
        /// The request's `id`.
        id: Option<Box<RawValue>>,
        /// The value of `type`, `unknown` when it is not a string.
        command: String,
        /// `type` as it is shown in the message.
        shown: String,
    },
    /// A field is missing or of the wrong kind.
    #[error("Invalid {command}: {error}")]
    Fields {
        /// The request's `id`.
        id: Option<Box<RawValue>>,
        /// The command's name.
        command: String,
        /// Which field, and what is expected.
        error: FieldError,
    },
}

/// A field of a command that is missing or of the wrong kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {expected}")]
pub struct FieldError {
    /// Path of the field, for example `images[0].data`.
    pub field: String,
    /// What is expected there.
    pub expected: String,
}

/// A decoded line of a client.
#[derive(Debug)]
pub struct RequestFrame {
    /// The request's `id`, any JSON value, as it came. `None` when there was none.
    pub id: Option<Box<RawValue>>,
    /// The command.
    pub request: Request,
}

/// Head of a request, whatever the rest says.
struct Head<'a> {
    id: Option<&'a RawValue>,
    kind: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Head<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeadVisitor;
        impl<'de> Visitor<'de> for HeadVisitor {
            type Value = Head<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Head<'de>, A::Error> {
                let mut head = Head { id: None, kind: None };
                // Of a key that stands twice the last one counts, as in JavaScript.
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    match key.as_ref() {
                        "id" => head.id = Some(map.next_value()?),
                        "type" => head.kind = Some(map.next_value()?),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(head)
            }
        }
        deserializer.deserialize_map(HeadVisitor)
    }
}

impl RequestFrame {
    /// Decodes one line, without its line feed.
    ///
    /// # Errors
    ///
    /// The line is not JSON, names no known command, or a field is missing or malformed.
    pub fn decode(line: &str) -> Result<Self, RequestError> {
        let line = crate::mend_surrogates(line);
        let line = line.as_ref();
        let head: Head<'_> = match serde_json::from_str(line) {
            Ok(head) => head,
            Err(error) => {
                return match serde_json::from_str::<IgnoredAny>(line) {
                    // Good JSON, but no object: nothing to read a type from.
                    Ok(_) => Err(unknown(None, None)),
                    Err(_) => Err(RequestError::Syntax(error)),
                };
            }
        };
        let id = head.id.map(ToOwned::to_owned);
        let Some(name) = head.kind.and_then(|kind| serde_json::from_str::<String>(kind.get()).ok()) else {
            return Err(unknown(id, head.kind));
        };
        match Request::decode_body(&name, line) {
            Some(Ok(request)) => Ok(Self { id, request }),
            Some(Err(error)) => Err(RequestError::Fields { id, command: name, error }),
            None => Err(RequestError::UnknownCommand { id, shown: name.clone(), command: name }),
        }
    }
}

fn unknown(id: Option<Box<RawValue>>, kind: Option<&RawValue>) -> RequestError {
    let shown = kind.map_or_else(|| "undefined".to_owned(), |kind| kind.get().to_owned());
    RequestError::UnknownCommand { id, command: "unknown".to_owned(), shown }
}

impl RequestError {
    /// The request's `id`, if it could be read.
    #[must_use]
    pub fn id(&self) -> Option<&RawValue> {
        match self {
            Self::Syntax(_) => None,
            Self::UnknownCommand { id, .. } | Self::Fields { id, .. } => id.as_deref(),
        }
    }

    /// What the answer carries in `command`.
    #[must_use]
    pub fn command(&self) -> &str {
        match self {
            Self::Syntax(_) => "parse",
            Self::UnknownCommand { command, .. } | Self::Fields { command, .. } => command,
        }
    }
}

/// Decodes the fields of a command from the whole line.
pub(crate) fn decode_fields<C: DeserializeOwned>(line: &str) -> Result<C, FieldError> {
    match serde_json::from_str(line) {
        Ok(command) => Ok(command),
        // The slow way again, for the field's path; through a map, where a doubled key is no error.
        Err(_) => {
            let value: serde_json::Value = serde_json::from_str(line)
                .map_err(|error| FieldError { field: "line".into(), expected: error.to_string() })?;
            serde_path_to_error::deserialize(value).map_err(field_error)
        }
    }
}

fn field_error(error: serde_path_to_error::Error<serde_json::Error>) -> FieldError {
    let path = error.path().to_string();
    let text = error.into_inner().to_string();
    if let Some(rest) = text.strip_prefix("missing field `") {
        let name = rest.trim_end_matches('`');
        let field = if path == "." { name.to_owned() } else { format!("{path}.{name}") };
        return FieldError { field, expected: "required".to_owned() };
    }
    FieldError { field: path, expected: text }
}

/// Writes a command as one line without its line feed.
///
/// # Errors
///
/// Never for the commands of this crate; a foreign [`Command`] may fail to serialise or may not be
/// an object.
pub fn encode_request<C: Command>(id: &str, command: &C) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Head<'a> {
        id: &'a str,
        #[serde(rename = "type")]
        kind: &'a str,
    }
    let mut line = serde_json::to_vec(&Head { id, kind: C::NAME })?;
    let body = serde_json::to_vec(command)?;
    if body.first() != Some(&b'{') {
        return Err(serde::ser::Error::custom("a command must be an object"));
    }
    if body.len() > 2 {
        line.pop();
        line.push(b',');
        line.extend_from_slice(&body[1..]);
    }
    Ok(line)
}

/// A response as the server writes it; key order as in the reference.
#[derive(Debug, Serialize)]
pub struct ResponseOut<'a, T> {
    /// The request's `id`, absent when the request had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a RawValue>,
    /// Always `response`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The command that is answered.
    pub command: &'a str,
    /// Whether it succeeded.
    pub success: bool,
    /// The result. Absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<T>,
    /// What went wrong. Absent on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
}

impl<'a, T: ResponseData> ResponseOut<'a, T> {
    /// A successful response.
    pub fn success(id: Option<&'a RawValue>, command: &'a str, data: T) -> Self {
        Self { id, kind: "response", command, success: true, data: T::HAS_DATA.then_some(data), error: None }
    }
}

impl<'a> ResponseOut<'a, ()> {
    /// A failure.
    pub fn failure(id: Option<&'a RawValue>, command: &'a str, error: &'a str) -> Self {
        Self { id, kind: "response", command, success: false, data: None, error: Some(error) }
    }
}

/// A response as a client reads it; `data` stays raw until its type is known.
#[derive(Debug, Deserialize)]
pub struct ResponseFrame<'a> {
    /// The request's `id`. `None` when there was none.
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    /// The command that is answered. Some servers leave it out for lines they could not read.
    #[serde(default)]
    pub command: Option<Cow<'a, str>>,
    /// Whether it succeeded.
    pub success: bool,
    /// The result.
    #[serde(borrow, default)]
    pub data: Option<&'a RawValue>,
    /// What went wrong.
    #[serde(default)]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;
    use crate::queue::Prompt;

    fn failure(line: &str) -> (Option<String>, String, String) {
        let error = RequestFrame::decode(line).unwrap_err();
        (error.id().map(|id| id.get().to_owned()), error.command().to_owned(), error.to_string())
    }

    #[test]
    fn frames_without_a_usable_type_are_unknown_commands() {
        let undefined = "Unknown command: undefined".to_owned();
        for line in ["42", "\"text\"", "[]", "{}", "null", "true"] {
            assert_eq!(failure(line), (None, "unknown".into(), undefined.clone()), "{line}");
        }
        assert_eq!(failure(r#"{"type":null}"#).2, "Unknown command: null");
        assert_eq!(failure(r#"{"id":7,"type":5}"#), (Some("7".into()), "unknown".into(), "Unknown command: 5".into()));
        assert_eq!(
            failure(r#"{"id":"u1","type":"no_such_command"}"#),
            (Some("\"u1\"".into()), "no_such_command".into(), "Unknown command: no_such_command".into())
        );
    }

    #[test]
    fn broken_json_is_a_parse_failure() {
        for line in ["{not json", "", "{} x", "{\"type\":\"prompt\",\"message\":\"a\"", "\u{feff}{}"] {
            let (id, command, text) = failure(line);
            assert_eq!((id, command.as_str()), (None, "parse"), "{line}");
            assert!(text.starts_with("Failed to parse command: "), "{text}");
        }
    }

    #[test]
    fn a_wrong_field_is_named_with_what_is_expected() {
        assert_eq!(failure(r#"{"id":1,"type":"prompt"}"#).2, "Invalid prompt: message: required");
        assert_eq!(
            failure(r#"{"type":"prompt","message":5}"#).2,
            "Invalid prompt: message: invalid type: integer `5`, expected a string"
        );
        assert_eq!(
            failure(r#"{"type":"prompt","message":"m","images":[{"type":"image","mimeType":"x"}]}"#).2,
            "Invalid prompt: images[0].data: required"
        );
        assert!(
            failure(r#"{"type":"prompt","message":"m","streamingBehavior":"bogus"}"#)
                .2
                .starts_with("Invalid prompt: streamingBehavior: ")
        );
    }

    #[test]
    fn ids_of_any_kind_are_kept_and_doubled_keys_count_last() {
        for id in ["null", "5", "{\"a\":1}", "\"x\""] {
            let frame = RequestFrame::decode(&format!(r#"{{"id":{id},"type":"get_state"}}"#)).unwrap();
            assert_eq!(frame.id.unwrap().get(), id);
        }
        let frame = RequestFrame::decode(r#"{"type":"prompt","message":"a","message":"b","id":1,"id":2}"#).unwrap();
        assert_eq!(frame.id.unwrap().get(), "2");
        assert_eq!(frame.request, Request::Prompt(Prompt::new("b")));
    }

    #[test]
    fn lone_surrogates_are_replaced() {
        let frame = RequestFrame::decode(r#"{"type":"prompt","message":"a\ud800b"}"#).unwrap();
        assert_eq!(frame.request, Request::Prompt(Prompt::new("a\u{fffd}b")));
    }

    #[test]
    fn an_encoded_request_decodes_to_itself() {
        let line = encode_request("r1", &Prompt::new("hi")).unwrap();
        assert_eq!(std::str::from_utf8(&line).unwrap(), r#"{"id":"r1","type":"prompt","message":"hi"}"#);
        let line = encode_request("r2", &crate::session::GetState {}).unwrap();
        assert_eq!(std::str::from_utf8(&line).unwrap(), r#"{"id":"r2","type":"get_state"}"#);
    }
}
