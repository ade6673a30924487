//! The table of commands. Everything that knows all commands is made from it.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::model::{AvailableModels, GetAvailableModels, Model, SetModel, SetThinkingLevel};
use crate::queue::{
    Abort, ClearPendingMessages, FollowUp, GetPendingMessages, PendingMessages, Prompt, SetFollowUpMode,
    SetSteeringMode, Steer,
};
use crate::session::{
    GetLastAssistantText, GetMessages, GetState, GetVersion, LastAssistantText, Messages, SessionState, Version,
};
use crate::shell::{AbortBash, Bash, BashResult};

/// What a successful response carries in `data`.
pub trait ResponseData: Serialize + DeserializeOwned + schemars::JsonSchema + Send + 'static {
    /// Whether there is a `data` field at all.
    const HAS_DATA: bool = true;
}

/// The answer of a command that returns nothing but success.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Ack {}

impl<'de> Deserialize<'de> for Ack {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A later version may answer with data; it is no concern of this one.
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

impl ResponseData for Ack {
    const HAS_DATA: bool = false;
}

/// When a command takes effect in relation to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// In the order of the lines, one after the other.
    Ordered,
    /// At once, whatever else runs.
    Immediate,
}

/// A command of the protocol.
pub trait Command: Serialize + DeserializeOwned + schemars::JsonSchema + Send + 'static {
    /// The value of `type` on the wire.
    const NAME: &'static str;
    /// When it takes effect.
    const LANE: Lane;
    /// How long a client waits for the answer unless told otherwise; `None` waits for ever.
    const TIMEOUT: Option<Duration>;
    /// What the answer carries.
    type Response: ResponseData;
}

/// A row of the table, for code that does not know the type.
#[derive(Debug, Clone, Copy)]
pub struct CommandInfo {
    /// The value of `type` on the wire.
    pub name: &'static str,
    /// When it takes effect.
    pub lane: Lane,
    /// How long a client waits by default.
    pub timeout: Option<Duration>,
    /// Whether a successful answer has a `data` field.
    pub has_data: bool,
    /// Adds the command's fields to a generator and returns their schema.
    pub request_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
    /// Adds the answer's data to a generator and returns its schema.
    pub response_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

const DEFAULT_TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));
/// For open-ended work.
const NO_TIMEOUT: Option<Duration> = None;

macro_rules! commands {
    ($( $name:literal: $command:ident => $response:ident, $lane:ident, $timeout:expr; )*) => {
        $(
            impl Command for $command {
                const NAME: &'static str = $name;
                const LANE: Lane = Lane::$lane;
                const TIMEOUT: Option<Duration> = $timeout;
                type Response = $response;
            }
        )*

        /// Every command, in the order of the protocol document.
        pub const COMMANDS: &[CommandInfo] = &[
            $( CommandInfo {
                name: $name,
                lane: Lane::$lane,
                timeout: $timeout,
                has_data: <$response as ResponseData>::HAS_DATA,
                request_schema: |generator| generator.subschema_for::<$command>(),
                response_schema: |generator| generator.subschema_for::<$response>(),
            }, )*
        ];

        /// A decoded command. Exhaustive on purpose: a new command must not compile without a handler.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request {
            $( #[doc = concat!("`", $name, "`.")] $command($command), )*
        }

        impl Request {
            /// The command's name on the wire.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $( Self::$command(_) => $name, )* }
            }

            /// When the command takes effect.
            #[must_use]
            pub fn lane(&self) -> Lane {
                match self { $( Self::$command(_) => Lane::$lane, )* }
            }

            /// Decodes the body of the command `name`; `None` if there is no such command.
            pub(crate) fn decode_body(name: &str, body: &str) -> Option<Result<Self, crate::envelope::FieldError>> {
                match name {
                    $( $name => Some(crate::envelope::decode_fields(body).map(Self::$command)), )*
                    _ => None,
                }
            }
        }

        $(
            impl From<$command> for Request {
                fn from(command: $command) -> Self {
                    Self::$command(command)
                }
            }
        )*
    };
}

commands! {
    "prompt": Prompt => Ack, Ordered, DEFAULT_TIMEOUT;
    "steer": Steer => Ack, Immediate, DEFAULT_TIMEOUT;
    "follow_up": FollowUp => Ack, Immediate, DEFAULT_TIMEOUT;
    "abort": Abort => Ack, Immediate, DEFAULT_TIMEOUT;
    "get_state": GetState => SessionState, Immediate, DEFAULT_TIMEOUT;
    "get_messages": GetMessages => Messages, Immediate, DEFAULT_TIMEOUT;
    "set_model": SetModel => Model, Ordered, DEFAULT_TIMEOUT;
    "get_available_models": GetAvailableModels => AvailableModels, Immediate, DEFAULT_TIMEOUT;
    "set_thinking_level": SetThinkingLevel => Ack, Ordered, DEFAULT_TIMEOUT;
    "set_steering_mode": SetSteeringMode => Ack, Ordered, DEFAULT_TIMEOUT;
    "set_follow_up_mode": SetFollowUpMode => Ack, Ordered, DEFAULT_TIMEOUT;
    "get_pending_messages": GetPendingMessages => PendingMessages, Immediate, DEFAULT_TIMEOUT;
    "clear_pending_messages": ClearPendingMessages => PendingMessages, Immediate, DEFAULT_TIMEOUT;
    "bash": Bash => BashResult, Immediate, NO_TIMEOUT;
    "abort_bash": AbortBash => Ack, Immediate, DEFAULT_TIMEOUT;
    "get_last_assistant_text": GetLastAssistantText => LastAssistantText, Immediate, DEFAULT_TIMEOUT;
    "get_version": GetVersion => Version, Immediate, DEFAULT_TIMEOUT;
}
