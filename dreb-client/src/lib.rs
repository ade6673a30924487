//! Start a dreb coding agent from Rust and talk to it with typed commands and a stream of typed
//! events.
//!
//! ```no_run
//! use dreb_client::{ClientEvent, RpcClient, RpcClientOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = RpcClient::start(RpcClientOptions::new().cwd("/srv/project").no_session(true)).await?;
//!
//! let mut events = client.events();
//! let printer = tokio::spawn(async move {
//!     while let Some(event) = events.next().await {
//!         if let ClientEvent::Event(event) = event
//!             && let Some(text) = event.text_delta()
//!         {
//!             eprint!("{text}");
//!         }
//!     }
//! });
//!
//! let outcome = client.prompt_and_wait("What does this project do?").await?;
//! assert!(outcome.error_message().is_none());
//!
//! client.shutdown().await;
//! printer.await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//!
//! ```text
//!   RpcClient (clones)                                            server (child process, or any
//!      │ call()                                                            pair of streams)
//!      ├──► pending: id → caller ◄───────────┐                                 │  │  │
//!      │                                     │ answers                         │  │  │
//!      ├──► write queue (byte budget) ───────┼────────────► writer ──► stdin ──┘  │  │
//!      │                                     │                                    │  │
//!      │ events()                            │                                    │  │
//!      └──► subscription ◄── hub ◄───────────┴── decoder ◄─ reader ◄── stdout ────┘  │
//!            ├ must not miss: lossless                                               │
//!            └ updates: bounded, Lagged(n)       tail, callback ◄───── stderr ───────┘
//! ```
//!
//! One task watches over the reader, the writer, the collector of standard error and the process.
//! It ends when the server ends, when [`RpcClient::shutdown`] is called, or when the last
//! [`RpcClient`] is dropped, and it takes the others, the server and all that descends from it with it.
//!
//! # Events
//!
//! A subscription gets what comes after it was made. What a program must not miss is never lost;
//! updates (`message_update`, `tool_execution_update`) are lost to a subscriber that is too slow,
//! and it is told exactly how many: see [`Events`]. The client stops reading from the server only
//! when a subscriber has left [`event_budget`](RpcClientOptions::event_budget) bytes unread, never
//! before it has handed out the answers it has already read, and not before four times as much while
//! a call waits. So awaiting a command while events wait unread does not deadlock.
//!
//! By default the server is asked to send only what is new. The whole answer so far is put together
//! here and costs nothing until it is asked for: see [`ServerEvent::partial`].
//!
//! # Errors
//!
//! [`StartError`] tells why there is no server: not found, not executable, ended early (with its
//! status and the end of its standard error), silent, malformed. [`CallError`] tells why there is no
//! answer: refused by the server, timed out, malformed, the server gone, the client shut down. When
//! the server dies, what it had written is read to the end first; then all calls fail with the same
//! [`ExitNotice`], and each subscription gets it as its last item.
//!
//! # Cancel safety
//!
//! Each public future says what happens when it is dropped. None leaves a request, a subscription or
//! a process behind, and none takes back what was already sent.
//!
//! # Features
//!
//! * `bundled`: run the server from the program's own executable, without a `dreb` binary.

mod child;
mod client;
mod commands;
mod decode;
mod driver;
mod error;
mod events;
mod hub;
mod leftovers;
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
/// The types of commands, answers and events.
pub use protocol_schema as protocol;
pub use run::RunOutcome;
