//! The session on disk: append-only JSON lines that form a tree.
//!
//! * [`entry`] is one line, read and written so that nothing of it is lost;
//! * [`tree`] is the entries in memory, with the leaf that the next one hangs on;
//! * [`rebuild`] makes the conversation out of a path of the tree;
//! * [`log`] is the store: entries go into the tree at once and to the disk in order.

pub mod entry;
pub mod ids;
pub mod log;
pub mod names;
pub mod rebuild;
pub mod tree;
mod writer;

pub use entry::{Entry, EntryBody, SessionHeader};
pub use log::{Appended, Durable, LogOptions, SessionError, SessionLog};
pub use rebuild::{SessionContext, build_context};
pub use tree::SessionTree;
