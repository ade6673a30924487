//! What GitHub Copilot wants to know of each request, whatever the wire API.

use protocol_schema::content::Content;
use protocol_schema::{AgentMessage, ContentBlock, Model};

use super::ProviderError;
use super::http::Headers;

/// Whether the model is Copilot's.
#[must_use]
pub fn is_copilot(model: &Model) -> bool {
    model.provider == "github-copilot"
}

/// Adds the headers that tell who acts and whether images are sent.
///
/// # Errors
///
/// None in practice; the values are fixed words.
pub fn add_headers(headers: &mut Headers, messages: &[AgentMessage]) -> Result<(), ProviderError> {
    let by_user = matches!(messages.last(), Some(AgentMessage::User(_)));
    headers.set("x-initiator", if by_user { "user" } else { "agent" })?;
    headers.set("openai-intent", "conversation-edits")?;
    if messages.iter().any(has_image) {
        headers.set("copilot-vision-request", "true")?;
    }
    Ok(())
}

fn has_image(message: &AgentMessage) -> bool {
    let blocks = match message {
        AgentMessage::User(message) => match &message.content {
            Content::Blocks(blocks) => blocks.as_slice(),
            Content::Text(_) => &[],
        },
        AgentMessage::ToolResult(message) => message.content.as_slice(),
        _ => &[],
    };
    blocks.iter().any(|block| matches!(block, ContentBlock::Image(_)))
}
