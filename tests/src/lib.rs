//! What the end-to-end suites are made of.
//!
//! * [`fake_provider`] is a model provider over real HTTP whose answers and failures a test scripts;
//! * [`home`] is a home folder, a project folder and an environment that touch nothing else;
//! * [`raw`] runs the real `dreb` binary and speaks JSON lines to it, checking each against the schema;
//! * [`notation`] writes a sequence of lines so short that a test can state it whole;
//! * [`process`] looks at processes through `/proc`.
//!
//! `cargo test --workspace` is all it takes: [`binary`] sees to it that the binary under test exists
//! and is not older than its sources.
//!
//! Nothing here sleeps to get the timing right. Tests hold the provider at a [`Gate`] and wait for
//! what they can see, each wait with a limit.

pub mod binary;
pub mod fake_provider;
pub mod home;
pub mod notation;
pub mod process;
pub mod raw;
mod sync;

pub use fake_provider::{FakeProvider, Reply, Tokens};
pub use home::Home;
pub use raw::Server;
pub use sync::{DEADLINE, Gate, poll_until, within};
