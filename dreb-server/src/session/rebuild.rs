//! From a path of the tree to the conversation.

use std::sync::Arc;

use protocol_schema::message::{
    BranchSummaryMessage, BranchSummaryTag, CompactionSummaryMessage, CompactionSummaryTag, CustomMessage, CustomTag,
};
use protocol_schema::model::ModelRef;
use protocol_schema::{AgentMessage, Extra, ThinkingLevel};

use super::entry::{Entry, EntryBody};
use super::names::timestamp_ms;

/// What a path of the tree says about the conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionContext {
    /// The messages, oldest first.
    pub messages: Vec<AgentMessage>,
    /// The thinking level in force; `None` if the path sets none, which means off.
    pub thinking_level: Option<ThinkingLevel>,
    /// The model last chosen or heard.
    pub model: Option<ModelRef>,
}

/// The conversation along `path`, which runs from a root to a leaf, see
/// [`SessionTree::path_to_leaf`](super::SessionTree::path_to_leaf).
///
/// The last compaction on the path stands first, as a summary; of what is before it only the entries
/// from its first kept one on are taken.
#[must_use]
pub fn build_context(path: &[&Arc<Entry>]) -> SessionContext {
    let mut thinking_level = None;
    let mut model = None;
    let mut compaction = None;
    for (place, entry) in path.iter().enumerate() {
        match &entry.body {
            EntryBody::ThinkingLevelChange { thinking_level: level } => thinking_level = Some(level.clone()),
            EntryBody::ModelChange { provider, model_id } => {
                model = Some(ModelRef { provider: provider.clone(), id: model_id.clone() });
            }
            EntryBody::Message(message) => {
                if let AgentMessage::Assistant(answer) = &**message {
                    model = Some(ModelRef { provider: answer.provider.clone(), id: answer.model.clone() });
                }
            }
            EntryBody::Compaction(body) => compaction = Some((place, entry, body)),
            _ => {}
        }
    }
    let messages = match compaction {
        None => path.iter().filter_map(|entry| message_of(entry)).collect(),
        Some((place, entry, body)) => {
            let summary = AgentMessage::CompactionSummary(CompactionSummaryMessage {
                kind: CompactionSummaryTag,
                summary: body.summary.clone(),
                tokens_before: body.tokens_before,
                timestamp: timestamp_ms(&entry.timestamp).unwrap_or(0),
                extra: Extra::new(),
            });
            let before = &path[..place];
            let kept = before.iter().position(|entry| entry.id == body.first_kept_entry_id).unwrap_or(place);
            std::iter::once(summary)
                .chain(before[kept..].iter().chain(&path[place + 1..]).filter_map(|entry| message_of(entry)))
                .collect()
        }
    };
    SessionContext { messages, thinking_level, model }
}

/// The message an entry adds to the conversation, if it adds one by itself.
#[must_use]
pub fn message_of(entry: &Entry) -> Option<AgentMessage> {
    let timestamp = || timestamp_ms(&entry.timestamp).unwrap_or(0);
    match &entry.body {
        EntryBody::Message(message) => Some((**message).clone()),
        EntryBody::CustomMessage { custom_type, content, display, details } => {
            Some(AgentMessage::Custom(CustomMessage {
                kind: CustomTag,
                custom_type: custom_type.clone(),
                content: content.clone(),
                display: *display,
                details: details.clone(),
                timestamp: timestamp(),
                extra: Extra::new(),
            }))
        }
        EntryBody::BranchSummary(body) if !body.summary.is_empty() => {
            Some(AgentMessage::BranchSummary(BranchSummaryMessage {
                kind: BranchSummaryTag,
                summary: body.summary.clone(),
                from_id: body.from_id.clone(),
                timestamp: timestamp(),
                extra: Extra::new(),
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
