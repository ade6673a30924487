//! One line of a session file.
//!
//! Keys stand in the order the format's first writer uses, fields this version does not know are
//! kept behind them, and an entry of an unknown type keeps everything.

use std::borrow::Cow;
use std::fmt;

use protocol_schema::message::CustomMessage;
use protocol_schema::{AgentMessage, Content, Extra, Number, ThinkingLevel};
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Version of the file format.
pub const FORMAT_VERSION: u64 = 3;

/// First line of a session file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionHeader {
    /// Always `session`.
    #[serde(rename = "type")]
    pub kind: SessionTag,
    /// Version of the format; files of the first version have none.
    #[serde(default = "first_version")]
    pub version: u64,
    /// The session's id.
    pub id: String,
    /// When it began, ISO time.
    #[serde(default)]
    pub timestamp: String,
    /// Its working directory.
    #[serde(default)]
    pub cwd: String,
    /// The session file it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_session: Option<String>,
    /// The agent type, if it is a subagent's session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_type: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The fixed word `session`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionTag {
    /// The only value.
    #[serde(rename = "session")]
    Session,
}

fn first_version() -> u64 {
    1
}

/// What an entry holds, by its type.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EntryBody {
    /// `message`: of the user, the model, a tool or the client's shell.
    Message(Box<AgentMessage>),
    /// `custom_message`: of an extension or the server; the model sees it.
    CustomMessage {
        /// The sender's name for this kind of message.
        custom_type: String,
        /// A string or blocks.
        content: Content,
        /// Whether user interfaces should show it.
        display: bool,
        /// Data for user interfaces.
        details: Option<Value>,
    },
    /// `custom`: state of an extension; the model does not see it.
    Custom {
        /// The extension's name for it.
        custom_type: String,
        /// The state.
        data: Option<Value>,
    },
    /// `model_change`: the model from here on.
    ModelChange {
        /// The provider's name.
        provider: String,
        /// The model's id.
        model_id: String,
    },
    /// `thinking_level_change`: the thinking level from here on.
    ThinkingLevelChange {
        /// The level.
        thinking_level: ThinkingLevel,
    },
    /// `session_info`: the session's name; none or an empty one clears it.
    SessionInfo {
        /// The name.
        name: Option<String>,
    },
    /// `label`: a mark on another entry; none or an empty one clears it.
    Label {
        /// The marked entry.
        target_id: String,
        /// The mark.
        label: Option<String>,
    },
    /// `compaction`: a summary in place of everything before an entry.
    Compaction(Compaction),
    /// `branch_summary`: what was done on a branch that was left.
    BranchSummary(BranchSummary),
    /// A type this version does not know; its fields are in [`Entry::extra`].
    Unknown {
        /// The value of `type`.
        kind: String,
    },
}

/// Body of a `compaction` entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Compaction {
    /// The summary.
    pub summary: String,
    /// The oldest entry that stays in the context.
    pub first_kept_entry_id: String,
    /// Context size before, in tokens.
    pub tokens_before: u64,
    /// Files read and modified, or what an extension put there.
    pub details: Option<Value>,
    /// Whether an extension made the summary.
    pub from_hook: Option<bool>,
}

/// Body of a `branch_summary` entry.
#[derive(Debug, Clone, PartialEq)]
pub struct BranchSummary {
    /// The entry the summary hangs on, `root` for none.
    pub from_id: String,
    /// The summary.
    pub summary: String,
    /// Files read and modified, or what an extension put there.
    pub details: Option<Value>,
    /// Whether an extension made the summary.
    pub from_hook: Option<bool>,
}

impl EntryBody {
    /// The value of `type`.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Message(_) => "message",
            Self::CustomMessage { .. } => "custom_message",
            Self::Custom { .. } => "custom",
            Self::ModelChange { .. } => "model_change",
            Self::ThinkingLevelChange { .. } => "thinking_level_change",
            Self::SessionInfo { .. } => "session_info",
            Self::Label { .. } => "label",
            Self::Compaction(_) => "compaction",
            Self::BranchSummary(_) => "branch_summary",
            Self::Unknown { kind } => kind,
        }
    }

    /// Whether it is an answer of the model.
    #[must_use]
    pub fn is_assistant(&self) -> bool {
        matches!(self, Self::Message(message) if matches!(**message, AgentMessage::Assistant(_)))
    }

    /// Whether it is one of those a session begins with before anybody has said anything.
    #[must_use]
    pub fn is_start_entry(&self) -> bool {
        matches!(self, Self::ModelChange { .. } | Self::ThinkingLevelChange { .. })
    }
}

impl From<AgentMessage> for EntryBody {
    /// The entry that stores this message; a `custom` message becomes a `custom_message` entry.
    fn from(message: AgentMessage) -> Self {
        match message {
            AgentMessage::Custom(CustomMessage { custom_type, content, display, details, .. }) => {
                Self::CustomMessage { custom_type, content, display, details }
            }
            message => Self::Message(Box::new(message)),
        }
    }
}

/// An entry: a node of the session's tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its id, unique within the file.
    pub id: String,
    /// The entry it follows; `None` for a root.
    pub parent_id: Option<String>,
    /// When it was made, ISO time.
    pub timestamp: String,
    /// What it holds.
    pub body: EntryBody,
    /// Unknown fields.
    pub extra: Extra,
}

/// Why a line is not an entry.
#[derive(Debug, thiserror::Error)]
#[error("not a session entry: {0}")]
pub struct EntryError(#[from] serde_json::Error);

impl Entry {
    /// Reads one line.
    ///
    /// # Errors
    ///
    /// It is no JSON object with a `type` and an `id`, or a field of a known type is missing or
    /// malformed.
    pub fn decode(line: &str) -> Result<Self, EntryError> {
        let line = protocol_schema::mend_surrogates(line);
        Ok(serde_json::from_str(&line)?)
    }

    /// Reads one line; a known type with a malformed body becomes [`EntryBody::Unknown`], together
    /// with what was wrong, so that the entries behind it keep their place in the tree.
    ///
    /// # Errors
    ///
    /// It is no JSON object with a `type` and an `id`.
    pub fn decode_leniently(line: &str) -> Result<(Self, Option<EntryError>), EntryError> {
        let line = protocol_schema::mend_surrogates(line);
        let fields: Fields = serde_json::from_str(&line)?;
        match fields.clone().into_entry() {
            Ok(entry) => Ok((entry, None)),
            Err(error) => Ok((fields.into_unknown()?, Some(error.into()))),
        }
    }

    /// The entry as one line, without its line feed.
    ///
    /// # Errors
    ///
    /// Never for entries that were decoded or built here: all keys are strings.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", self.body.kind())?;
        // The two kinds that extensions write have their place in the tree behind the body.
        let place_last = matches!(self.body, EntryBody::Custom { .. } | EntryBody::CustomMessage { .. });
        if !place_last {
            self.serialize_place(&mut map)?;
        }
        match &self.body {
            EntryBody::Message(message) => map.serialize_entry("message", message)?,
            EntryBody::CustomMessage { custom_type, content, display, details } => {
                map.serialize_entry("customType", custom_type)?;
                map.serialize_entry("content", content)?;
                map.serialize_entry("display", display)?;
                optional(&mut map, "details", details.as_ref())?;
            }
            EntryBody::Custom { custom_type, data } => {
                map.serialize_entry("customType", custom_type)?;
                optional(&mut map, "data", data.as_ref())?;
            }
            EntryBody::ModelChange { provider, model_id } => {
                map.serialize_entry("provider", provider)?;
                map.serialize_entry("modelId", model_id)?;
            }
            EntryBody::ThinkingLevelChange { thinking_level } => {
                map.serialize_entry("thinkingLevel", thinking_level)?;
            }
            EntryBody::SessionInfo { name } => optional(&mut map, "name", name.as_ref())?,
            EntryBody::Label { target_id, label } => {
                map.serialize_entry("targetId", target_id)?;
                optional(&mut map, "label", label.as_ref())?;
            }
            EntryBody::Compaction(body) => {
                map.serialize_entry("summary", &body.summary)?;
                map.serialize_entry("firstKeptEntryId", &body.first_kept_entry_id)?;
                map.serialize_entry("tokensBefore", &body.tokens_before)?;
                optional(&mut map, "details", body.details.as_ref())?;
                optional(&mut map, "fromHook", body.from_hook.as_ref())?;
            }
            EntryBody::BranchSummary(body) => {
                map.serialize_entry("fromId", &body.from_id)?;
                map.serialize_entry("summary", &body.summary)?;
                optional(&mut map, "details", body.details.as_ref())?;
                optional(&mut map, "fromHook", body.from_hook.as_ref())?;
            }
            EntryBody::Unknown { .. } => {}
        }
        if place_last {
            self.serialize_place(&mut map)?;
        }
        for (key, value) in &self.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl Entry {
    fn serialize_place<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("parentId", &self.parent_id)?;
        map.serialize_entry("timestamp", &self.timestamp)
    }
}

fn optional<M: SerializeMap, T: Serialize + ?Sized>(map: &mut M, key: &str, value: Option<&T>) -> Result<(), M::Error> {
    match value {
        Some(value) => map.serialize_entry(key, value),
        None => Ok(()),
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Fields::deserialize(deserializer)?.into_entry().map_err(D::Error::custom)
    }
}

/// The keys of a line with their values still unread.
#[derive(Clone)]
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields: Vec<(String, Box<RawValue>)> = Vec::with_capacity(8);
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    let value = map.next_value()?;
                    // Of a key that stands twice the last one counts, as in JavaScript.
                    match fields.iter_mut().find(|(known, _)| *known == key) {
                        Some(field) => field.1 = value,
                        None => fields.push((key.into_owned(), value)),
                    }
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl Fields {
    /// Takes a field out and reads it; `null` and absent are both `None` for an `Option`.
    fn take<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<T, serde_json::Error> {
        let text = match self.0.iter().position(|(name, _)| name == key) {
            Some(place) => self.0.remove(place).1,
            // Only types that accept null go on from here.
            None => {
                return serde_json::from_str("null")
                    .map_err(|_| serde_json::Error::custom(format_args!("missing field `{key}`")));
            }
        };
        serde_json::from_str(text.get()).map_err(|error| serde_json::Error::custom(format_args!("`{key}`: {error}")))
    }

    fn into_entry(mut self) -> Result<Entry, serde_json::Error> {
        let kind: String = self.take("type")?;
        let body = match kind.as_str() {
            "message" => {
                let message: AgentMessage = self.take("message")?;
                if matches!(&message, AgentMessage::Unknown(value) if !value.is_object()) {
                    return Err(serde_json::Error::custom("`message`: expected an object"));
                }
                EntryBody::Message(Box::new(message))
            }
            "custom_message" => EntryBody::CustomMessage {
                custom_type: self.take("customType")?,
                content: self.take("content")?,
                display: self.take("display")?,
                details: self.take("details")?,
            },
            "custom" => EntryBody::Custom { custom_type: self.take("customType")?, data: self.take("data")? },
            "model_change" => {
                EntryBody::ModelChange { provider: self.take("provider")?, model_id: self.take("modelId")? }
            }
            "thinking_level_change" => EntryBody::ThinkingLevelChange { thinking_level: self.take("thinkingLevel")? },
            "session_info" => EntryBody::SessionInfo { name: self.take("name")? },
            "label" => EntryBody::Label { target_id: self.take("targetId")?, label: self.take("label")? },
            "compaction" => EntryBody::Compaction(Compaction {
                summary: self.take("summary")?,
                first_kept_entry_id: self.take("firstKeptEntryId")?,
                // An extension may have computed a fraction; the cast saturates.
                tokens_before: self.take::<Number>("tokensBefore")?.0.round() as u64,
                details: self.take("details")?,
                from_hook: self.take("fromHook")?,
            }),
            "branch_summary" => EntryBody::BranchSummary(BranchSummary {
                from_id: self.take("fromId")?,
                summary: self.take("summary")?,
                details: self.take("details")?,
                from_hook: self.take("fromHook")?,
            }),
            _ => EntryBody::Unknown { kind },
        };
        self.into_entry_with(body)
    }

    fn into_unknown(mut self) -> Result<Entry, serde_json::Error> {
        let kind = self.take("type")?;
        self.into_entry_with(EntryBody::Unknown { kind })
    }

    fn into_entry_with(mut self, body: EntryBody) -> Result<Entry, serde_json::Error> {
        let id = self.take("id")?;
        let parent_id = self.take("parentId")?;
        let timestamp: Option<String> = self.take("timestamp")?;
        let extra = self
            .0
            .into_iter()
            .map(|(key, value)| Ok((key, serde_json::from_str(value.get())?)))
            .collect::<Result<Extra, serde_json::Error>>()?;
        Ok(Entry { id, parent_id, timestamp: timestamp.unwrap_or_default(), body, extra })
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
