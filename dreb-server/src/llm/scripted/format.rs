//! The script file.

use std::fmt;
use std::marker::PhantomData;

use protocol_schema::message::Cost;
use protocol_schema::{StopReason, ThinkingLevel};
use regex::Regex;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::llm::jsonc;

/// A script.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Script {
    /// For people.
    #[serde(rename = "description", default)]
    _description: String,
    /// Characters per delta; 0 sends each text whole.
    #[serde(default)]
    pub(super) chunk: Option<usize>,
    /// Pause before each delta in milliseconds.
    #[serde(default)]
    pub(super) delay_ms: Option<u64>,
    /// What comes after the last turn.
    #[serde(default)]
    pub(super) at_end: AtEnd,
    /// Taken in order, one by each request.
    #[serde(default)]
    pub(super) turns: Vec<Turn>,
    /// Taken before the turns by requests they match.
    #[serde(default)]
    pub(super) replies: Vec<Reply>,
}

impl Script {
    /// Reads the text of a script. Comments and trailing commas are accepted.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let script: Self = serde_json::from_str(&jsonc::to_json(text)).map_err(|error| error.to_string())?;
        if script.turns.is_empty() && script.replies.is_empty() {
            return Err("it has neither turns nor replies".to_owned());
        }
        Ok(script)
    }
}

/// What a request gets after the last turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum AtEnd {
    /// An error.
    #[default]
    Error,
    /// The first turn again.
    Repeat,
}

/// Turns for requests whose last user message matches.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Reply {
    /// What the last user message must be.
    pub(super) when: TextMatch,
    /// Whether it starts over after its last turn. Without, it is used up then.
    #[serde(default)]
    pub(super) repeat: bool,
    /// Taken in order, one by each request that matches.
    #[serde(deserialize_with = "at_least_one")]
    pub(super) turns: Vec<Turn>,
}

fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Turn>, D::Error> {
    let turns = Vec::deserialize(deserializer)?;
    if turns.is_empty() { Err(D::Error::custom("a reply needs at least one turn")) } else { Ok(turns) }
}

/// The answer to one request.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) expect: Option<Expect>,
    pub(super) steps: Vec<Step>,
    pub(super) stop_reason: Option<StopReason>,
    pub(super) usage: UsageNumbers,
    pub(super) response_id: Option<String>,
    pub(super) chunk: Option<usize>,
    pub(super) delay_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TurnFields {
    #[serde(default)]
    expect: Option<Expect>,
    steps: Vec<Step>,
    #[serde(default)]
    stop_reason: Option<ScriptedStop>,
    #[serde(default)]
    usage: UsageNumbers,
    #[serde(default)]
    response_id: Option<String>,
    #[serde(default)]
    chunk: Option<usize>,
    #[serde(default)]
    delay_ms: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ScriptedStop {
    Stop,
    Length,
    ToolUse,
}

impl Lenient for Turn {
    type Fields = TurnFields;
    const FORMS: &'static str = "a text, a list of steps, or a turn object";

    fn from_text(text: &str) -> Result<Self, String> {
        Self::from_list(vec![Step::Text { text: text.to_owned(), signature: None, pace: StepPace::default() }])
    }

    fn from_list(steps: Vec<Step>) -> Result<Self, String> {
        Self::from_fields(TurnFields {
            expect: None,
            steps,
            stop_reason: None,
            usage: UsageNumbers::default(),
            response_id: None,
            chunk: None,
            delay_ms: None,
        })
    }

    fn from_fields(fields: TurnFields) -> Result<Self, String> {
        let TurnFields { expect, steps, stop_reason, usage, response_id, chunk, delay_ms } = fields;
        let last = steps.len().saturating_sub(1);
        if steps.iter().take(last).any(|step| matches!(step, Step::Error(_) | Step::Drop(_))) {
            return Err("nothing can follow an error or a drop".to_owned());
        }
        let stop_reason = stop_reason.map(|reason| match reason {
            ScriptedStop::Stop => StopReason::Stop,
            ScriptedStop::Length => StopReason::Length,
            ScriptedStop::ToolUse => StopReason::ToolUse,
        });
        Ok(Self { expect, steps, stop_reason, usage, response_id, chunk, delay_ms })
    }
}

/// How a step streams where it differs from its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StepPace {
    pub(super) chunk: Option<usize>,
    pub(super) delay_ms: Option<u64>,
}

/// A part of a turn.
#[derive(Debug)]
pub(super) enum Step {
    Text { text: String, signature: Option<String>, pace: StepPace },
    Thinking { text: String, signature: Option<String>, pace: StepPace },
    RedactedThinking(String),
    ToolCall { name: String, arguments: String, id: Option<String>, pace: StepPace },
    Wait(u64),
    Usage(UsageNumbers),
    Error(ScriptedError),
    Drop(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StepFields {
    text: Option<String>,
    thinking: Option<String>,
    redacted_thinking: Option<String>,
    tool_call: Option<String>,
    wait_ms: Option<u64>,
    usage: Option<UsageNumbers>,
    error: Option<ScriptedError>,
    drop: Option<Dropped>,
    signature: Option<String>,
    arguments: Option<Value>,
    id: Option<String>,
    chunk: Option<usize>,
    delay_ms: Option<u64>,
}

const STEP_KINDS: &str = "`text`, `thinking`, `redactedThinking`, `toolCall`, `waitMs`, `usage`, `error` or `drop`";

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = StepFields::deserialize(deserializer)?;
        let pace = StepPace { chunk: fields.chunk.take(), delay_ms: fields.delay_ms.take() };
        let mut kinds = Vec::new();
        if let Some(text) = fields.text {
            kinds.push(Self::Text { text, signature: fields.signature.take(), pace });
        }
        if let Some(text) = fields.thinking {
            kinds.push(Self::Thinking { text, signature: fields.signature.take(), pace });
        }
        if let Some(name) = fields.tool_call {
            let arguments = match fields.arguments.take() {
                None => "{}".to_owned(),
                // Text goes out as it is, so that broken arguments can be scripted.
                Some(Value::String(text)) => text,
                Some(value @ Value::Object(_)) => value.to_string(),
                Some(_) => return Err(D::Error::custom("`arguments` must be an object or a text")),
            };
            kinds.push(Self::ToolCall { name, arguments, id: fields.id.take(), pace });
        }
        let streams = !kinds.is_empty();
        kinds.extend(fields.redacted_thinking.map(Self::RedactedThinking));
        kinds.extend(fields.wait_ms.map(Self::Wait));
        kinds.extend(fields.usage.map(Self::Usage));
        kinds.extend(fields.error.map(Self::Error));
        kinds.extend(fields.drop.map(|dropped| Self::Drop(dropped.0)));
        let (Some(step), true) = (kinds.pop(), kinds.is_empty()) else {
            return Err(D::Error::custom(format!("a step needs exactly one of {STEP_KINDS}")));
        };
        for (field, left) in [
            ("signature", fields.signature.is_some()),
            ("arguments", fields.arguments.is_some()),
            ("id", fields.id.is_some()),
            ("chunk` or `delayMs", !streams && pace != StepPace::default()),
        ] {
            if left {
                return Err(D::Error::custom(format!("`{field}` has no meaning in this step")));
            }
        }
        Ok(step)
    }
}

/// Token counts and cost that replace the estimates.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct UsageNumbers {
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) cache_read: Option<u64>,
    pub(super) cache_write: Option<u64>,
    pub(super) cost: Option<ScriptedCost>,
}

/// Dollars: their sum, or by kind.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScriptedCost(pub(super) Cost);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CostFields {
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
}

impl<'de> Deserialize<'de> for ScriptedCost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(total) => {
                Ok(Self(Cost { total: total.as_f64().unwrap_or_default().into(), ..Cost::default() }))
            }
            value => {
                let CostFields { input, output, cache_read, cache_write } =
                    serde_json::from_value(value).map_err(|error| D::Error::custom(format!("cost: {error}")))?;
                Ok(Self(Cost {
                    input: input.into(),
                    output: output.into(),
                    cache_read: cache_read.into(),
                    cache_write: cache_write.into(),
                    total: (input + output + cache_read + cache_write).into(),
                }))
            }
        }
    }
}

/// A failure of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScriptedError {
    pub(super) message: String,
    pub(super) status: Option<u16>,
    pub(super) retry_after_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ErrorFields {
    message: String,
    status: Option<u16>,
    retry_after_ms: Option<u64>,
}

impl Lenient for ScriptedError {
    type Fields = ErrorFields;
    const FORMS: &'static str = "an error message or an error object";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Self { message: text.to_owned(), status: None, retry_after_ms: None })
    }

    fn from_fields(fields: ErrorFields) -> Result<Self, String> {
        let ErrorFields { message, status, retry_after_ms } = fields;
        if retry_after_ms.is_some() && status.is_none() {
            return Err("`retryAfterMs` needs a `status`".to_owned());
        }
        // As the wire APIs report it, so that whoever reads the text finds the status in it.
        let message = status.map_or_else(|| message.clone(), |status| format!("{status} {message}"));
        Ok(Self { message, status, retry_after_ms })
    }
}

/// The message of a broken stream; `true` means the usual one.
struct Dropped(String);

impl<'de> Deserialize<'de> for Dropped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(true) => Ok(Self("Stream ended without a stop reason".to_owned())),
            Value::String(text) => Ok(Self(text)),
            _ => Err(D::Error::custom("`drop` must be true or a message")),
        }
    }
}

/// What a turn wants to see in its request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Expect {
    /// Text of the last user message.
    pub(super) last_user: Option<TextMatch>,
    /// Results that came back since the last answer; each must be found.
    #[serde(deserialize_with = "one_or_many")]
    pub(super) tool_result: Vec<ResultMatch>,
    /// The system prompt.
    pub(super) system_prompt: Option<TextMatch>,
    /// Tools that must be on offer.
    pub(super) tools: Vec<String>,
    /// The thinking level in effect.
    pub(super) thinking: Option<ThinkingLevel>,
    /// The number of messages in the request.
    pub(super) messages: Option<usize>,
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ResultMatch>, D::Error> {
    struct Many;
    impl<'de> Visitor<'de> for Many {
        type Value = Vec<ResultMatch>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a tool result or a list of them")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(vec![ResultMatch::from_text(text).map_err(E::custom)?])
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            let fields = Deserialize::deserialize(MapAccessDeserializer::new(map))?;
            Ok(vec![ResultMatch::from_fields(fields).map_err(A::Error::custom)?])
        }
        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
            Deserialize::deserialize(SeqAccessDeserializer::new(list))
        }
    }
    deserializer.deserialize_any(Many)
}

/// A tool result to look for.
#[derive(Debug)]
pub(super) struct ResultMatch {
    pub(super) tool: Option<String>,
    pub(super) is_error: Option<bool>,
    pub(super) text: Option<TextMatch>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ResultFields {
    tool: Option<String>,
    is_error: Option<bool>,
    exact: Option<String>,
    contains: Option<String>,
    regex: Option<String>,
}

impl Lenient for ResultMatch {
    type Fields = ResultFields;
    const FORMS: &'static str = "a text or an object";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Self { tool: None, is_error: None, text: Some(TextMatch::from_text(text)?) })
    }

    fn from_fields(fields: ResultFields) -> Result<Self, String> {
        let ResultFields { tool, is_error, exact, contains, regex } = fields;
        let no_text = exact.is_none() && contains.is_none() && regex.is_none();
        let text = if no_text { None } else { Some(TextMatch::from_fields(MatchFields { exact, contains, regex })?) };
        Ok(Self { tool, is_error, text })
    }
}

/// A condition on a text.
#[derive(Debug, Clone)]
pub(super) enum TextMatch {
    Exact(String),
    Contains(String),
    Regex(Regex),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MatchFields {
    exact: Option<String>,
    contains: Option<String>,
    regex: Option<String>,
}

impl TextMatch {
    pub(super) fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(whole) => text == whole,
            Self::Contains(part) => text.contains(part),
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}

impl fmt::Display for TextMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(whole) => write!(f, "is {whole:?}"),
            Self::Contains(part) => write!(f, "contains {part:?}"),
            Self::Regex(regex) => write!(f, "matches /{regex}/"),
        }
    }
}

impl Lenient for TextMatch {
    type Fields = MatchFields;
    const FORMS: &'static str = "a text to contain or an object";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Self::Contains(text.to_owned()))
    }

    fn from_fields(fields: MatchFields) -> Result<Self, String> {
        match fields {
            MatchFields { exact: Some(whole), contains: None, regex: None } => Ok(Self::Exact(whole)),
            MatchFields { exact: None, contains: Some(part), regex: None } => Ok(Self::Contains(part)),
            MatchFields { exact: None, contains: None, regex: Some(pattern) } => {
                Regex::new(&pattern).map(Self::Regex).map_err(|error| error.to_string())
            }
            _ => Err("exactly one of `exact`, `contains` and `regex` is needed".to_owned()),
        }
    }
}

/// A type that has a short form beside its object. Unlike with untagged enums the errors say what
/// is wrong and where.
trait Lenient: Sized {
    type Fields;
    const FORMS: &'static str;

    fn from_text(text: &str) -> Result<Self, String>;
    fn from_fields(fields: Self::Fields) -> Result<Self, String>;
    fn from_list(_steps: Vec<Step>) -> Result<Self, String> {
        Err(format!("expected {}", Self::FORMS))
    }
}

struct Forms<T>(PhantomData<T>);

impl<'de, T> Visitor<'de> for Forms<T>
where
    T: Lenient,
    T::Fields: Deserialize<'de>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::FORMS)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let fields = T::Fields::deserialize(MapAccessDeserializer::new(map))?;
        T::from_fields(fields).map_err(A::Error::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        let steps = Vec::deserialize(SeqAccessDeserializer::new(list))?;
        T::from_list(steps).map_err(A::Error::custom)
    }
}

macro_rules! deserialize_forms {
    ($($name:ident),*) => {
        $(impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Forms(PhantomData))
            }
        })*
    };
}

deserialize_forms!(Turn, ScriptedError, ResultMatch, TextMatch);
