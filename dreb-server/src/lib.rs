//! The headless coding agent behind the dreb protocol.
//!
//! The layers point downwards only:
//! `cli → rpc → agent → {tools, context} → {session, settings, llm, process} → protocol-schema`.
//! A test reads the `use` lines and fails on an upward edge.

pub mod agent;
pub mod cli;
pub mod context;
pub mod environment;
pub mod llm;
pub mod process;
pub mod rpc;
pub mod session;
pub mod settings;
pub mod small_file;
pub mod tools;

/// Version of the server, as `--version` and `get_version` give it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use cli::run_from_args;
