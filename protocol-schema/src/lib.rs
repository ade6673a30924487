//! The dreb protocol: commands, responses and events of a coding agent that speaks JSON lines over
//! standard input and output, as Rust types.
//!
//! This crate knows no I/O. It is the one place that says what stands on the wire:
//!
//! * [`registry`] is the table of commands, from which the decoder, the typed client call and the
//!   schema are made;
//! * [`envelope`] reads and writes the frames around commands and responses;
//! * [`event`], [`message`], [`content`] and [`model`] hold what travels inside;
//! * [`schema`] emits JSON Schema (draft 2020-12) from the same types.
//!
//! Unions and words that may grow keep what they do not know: an unknown event, message role,
//! content block or stop reason survives a decode and encode round trip. A *known* kind with a
//! malformed body is an error.

#[macro_use]
mod macros;

pub mod content;
mod decode;
pub mod envelope;
pub mod event;
pub mod message;
pub mod model;
mod number;
pub mod queue;
pub mod registry;
pub mod schema;
pub mod session;
pub mod shell;

pub use content::{Content, ContentBlock, Extra, ImageContent, TextContent, ThinkingContent, ToolCall};
pub use decode::mend_surrogates;
pub use event::{AssistantMessageEvent, Event};
pub use message::{AgentMessage, AssistantMessage, StopReason, ToolResultMessage, Usage, UserMessage};
pub use model::{Model, ThinkingLevel};
pub use number::Number;
pub use registry::{Ack, COMMANDS, Command, Lane, Request, ResponseData};

/// Version of the protocol. It changes only when a correct client of the version before would break.
pub const PROTOCOL_VERSION: u32 = 1;

/// Capability of servers that take `--event-detail delta`.
pub const CAPABILITY_EVENT_DETAIL_DELTA: &str = "event-detail-delta";
