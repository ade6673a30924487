//! Child processes: spawning shells, reading their output, and ending whole process trees.
//!
//! Every child runs in its own process group and carries a tag in its environment, so that its
//! descendants are found again however they detached themselves. The registry, [`Children`], ends
//! what is left when the server stops.

mod escape;
mod output;
mod registry;
mod sanitize;
mod shell;
mod tree;

#[cfg(test)]
mod tests;

pub use escape::{EscapeHandler, EscapeSplitter};
pub use output::{OutputFile, OutputTail, SavedOutput, Utf8Decoder};
pub use registry::{Children, ProcessTree};
pub use sanitize::Sanitizer;
pub use shell::{Exit, ShellError, ShellOptions, ShellProcess, find_shell};
pub use tree::TAG_VARIABLE;
