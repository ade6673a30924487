//! Content blocks of messages.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Fields of an object that this version does not know, kept in their order.
pub type Extra = Map<String, Value>;

tagged! {
    /// A piece of text.
    #[derive(Default)]
    pub struct TextContent ["type" = "text" as TextTag] {
        /// The text.
        pub text: String,
        /// Opaque provider data that must be sent back with the text. Absent when there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub text_signature: Option<String>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// Reasoning of the model.
    #[derive(Default)]
    pub struct ThinkingContent ["type" = "thinking" as ThinkingTag] {
        /// The reasoning text.
        pub thinking: String,
        /// Opaque provider data that must be sent back with the reasoning. Absent when there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub thinking_signature: Option<String>,
        /// Whether the provider hides the text; the payload is then in `thinkingSignature`. Absent
        /// when it does not.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub redacted: Option<bool>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// An image, base64 in line.
    #[derive(Default)]
    pub struct ImageContent ["type" = "image" as ImageTag] {
        /// The image file, base64.
        pub data: String,
        /// Its media type, for example `image/png`.
        pub mime_type: String,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A call of a tool by the model.
    #[derive(Default)]
    pub struct ToolCall ["type" = "toolCall" as ToolCallTag] {
        /// Identifier that the result refers to.
        pub id: String,
        /// Name of the tool.
        pub name: String,
        /// Arguments as the model gave them.
        pub arguments: Map<String, Value>,
        /// Opaque provider data that must be sent back with the call. Absent when there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub thought_signature: Option<String>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

open_union! {
    /// One block of a message's content.
    pub enum ContentBlock by "type" {
        /// Text.
        Text(TextContent) = "text",
        /// Reasoning.
        Thinking(ThinkingContent) = "thinking",
        /// An image.
        Image(ImageContent) = "image",
        /// A tool call.
        ToolCall(ToolCall) = "toolCall",
    }
}

impl TextContent {
    /// A block with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl ImageContent {
    /// A block with this base64 data of this media type.
    pub fn new(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self { data: data.into(), mime_type: mime_type.into(), ..Self::default() }
    }
}

impl ContentBlock {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(TextContent::new(text))
    }

    /// The text, if this is a text block.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(block) => Some(&block.text),
            _ => None,
        }
    }

    /// The call, if this is a tool call block.
    #[must_use]
    pub fn as_tool_call(&self) -> Option<&ToolCall> {
        match self {
            Self::ToolCall(call) => Some(call),
            _ => None,
        }
    }
}

/// Content that may be a plain string or a list of blocks.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Blocks.
    Blocks(Vec<ContentBlock>),
}

/// By hand, for serde's untagged reading goes through a buffer that blocks cannot be read from.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrBlocks;
        impl<'de> Visitor<'de> for TextOrBlocks {
            type Value = Content;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content blocks")
            }
            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = seq.next_element()? {
                    blocks.push(block);
                }
                Ok(Content::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(TextOrBlocks)
    }
}

impl Content {
    /// All text in it; blocks are joined by `separator`.
    #[must_use]
    pub fn joined_text(&self, separator: &str) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => joined_text(blocks, separator),
        }
    }

    /// The content as blocks; a plain string becomes one text block.
    #[must_use]
    pub fn to_blocks(&self) -> Vec<ContentBlock> {
        match self {
            Self::Text(text) => vec![ContentBlock::text(text.clone())],
            Self::Blocks(blocks) => blocks.clone(),
        }
    }
}

/// The text blocks of a list, joined by `separator`.
#[must_use]
pub fn joined_text(blocks: &[ContentBlock], separator: &str) -> String {
    blocks.iter().filter_map(ContentBlock::as_text).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_string_or_blocks() {
        for text in
            [r#""hi""#, r#"[{"type":"text","text":"hi"},{"type":"image","data":"AA==","mimeType":"image/png"}]"#]
        {
            let content: Content = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&content).unwrap(), text);
            let again: Content = serde_json::from_value(serde_json::to_value(&content).unwrap()).unwrap();
            assert_eq!(again, content);
        }
        assert!(serde_json::from_str::<Content>("5").is_err());
    }
}
