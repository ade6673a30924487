//! Where the agent's events go. The agent decides order and content; the sink owns bytes and
//! transport.

use futures_util::future::BoxFuture;
use protocol_schema::Event;

use super::partial::{Partial, Piece};
use crate::tools::ToolProgress;

/// A running tool has new output.
#[derive(Debug)]
pub struct ToolUpdate<'a> {
    /// The call's id.
    pub tool_call_id: &'a str,
    /// The tool's name.
    pub tool_name: &'a str,
    /// Arguments as the model gave them.
    pub args: &'a serde_json::Map<String, serde_json::Value>,
    /// The output.
    pub progress: &'a ToolProgress,
}

/// Takes events in the order in which they were decided.
///
/// The `emit` methods never wait and never lose anything; whoever produces much awaits
/// [`ready`](Self::ready) first, which is how a slow reader slows the producers.
pub trait EventSink: Send + Sync + std::fmt::Debug {
    /// Whether there is room for more right now.
    fn has_room(&self) -> bool;

    /// Waits until there is room for more.
    fn ready(&self) -> BoxFuture<'_, ()>;

    /// Takes an event.
    fn emit(&self, event: &Event);

    /// Takes a piece of the answer that is being streamed; `partial` already holds it.
    fn emit_piece(&self, partial: &Partial, piece: &Piece<'_>);

    /// Takes progress of a tool.
    fn emit_tool_update(&self, update: &ToolUpdate<'_>);
}
