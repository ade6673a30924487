//! Start a dreb coding agent and talk to it with typed commands and a stream of typed events.

mod child;
mod client;
mod commands;
mod decode;
mod driver;
mod error;
mod events;
mod hub;
mod lines;
mod options;
mod partial;
mod partial_json;
mod pending;
mod run;
mod stderr;

#[cfg(feature = "bundled")]
pub mod bundled;

pub use client::RpcClient;
pub use error::{CallError, ExitNotice, ExitReason, StartError};
pub use events::{ClientEvent, Events, MalformedLine, ServerEvent};
pub use options::{API_KEY_VARIABLE, EventDetail, RpcClientOptions};
pub use partial::PartialMessage;
pub use protocol_schema as protocol;
pub use run::RunOutcome;
