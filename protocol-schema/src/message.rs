//! Messages of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{Content, ContentBlock, Extra, ToolCall, joined_text};
use crate::number::Number;

/// Dollars, by kind of token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Dollars for input tokens.
    pub input: Number,
    /// Dollars for output tokens.
    pub output: Number,
    /// Dollars for tokens read from the provider's cache.
    pub cache_read: Number,
    /// Dollars for tokens written to the provider's cache.
    pub cache_write: Number,
    /// The sum.
    pub total: Number,
}

/// Token counts of one answer and their cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Input tokens that came from no cache.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write: u64,
    /// The sum of the four. Absent in samples of the protocol document; the server always sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// What they cost.
    pub cost: Cost,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

open_words! {
    /// Why an answer ended.
    pub enum StopReason {
        /// The model was done.
        Stop = "stop",
        /// The token limit was reached.
        Length = "length",
        /// The model wants tools to run.
        ToolUse = "toolUse",
        /// The provider failed; `errorMessage` says how.
        Error = "error",
        /// The user aborted.
        Aborted = "aborted",
    }
}

tagged! {
    /// A message of the user.
    pub struct UserMessage ["role" = "user" as UserTag] {
        /// A string or text and image blocks. The server writes blocks.
        pub content: Content,
        /// When it was sent, Unix time in milliseconds.
        pub timestamp: u64,
        /// Files that a client attached. Absent in messages the server writes.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub attachments: Option<Vec<Attachment>>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

/// A file attached to a user message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// Identifier within the message.
    pub id: String,
    /// Kind of attachment, for example `image`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the file.
    pub file_name: String,
    /// Its media type.
    pub mime_type: String,
    /// Its size in bytes.
    pub size: u64,
    /// The file, base64.
    pub content: String,
    /// Text taken from it; null when there is none.
    pub extracted_text: Option<String>,
    /// A small picture of it; null when there is none.
    pub preview: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

tagged! {
    /// An answer of the model.
    pub struct AssistantMessage ["role" = "assistant" as AssistantTag] {
        /// Text, thinking and tool call blocks in the order they came.
        pub content: Vec<ContentBlock>,
        /// The wire API that produced it, for example `anthropic-messages`.
        pub api: String,
        /// The provider's name.
        pub provider: String,
        /// The model's id in the registry.
        pub model: String,
        /// Tokens and cost.
        pub usage: Usage,
        /// Why it ended.
        pub stop_reason: StopReason,
        /// When the request began, Unix time in milliseconds.
        pub timestamp: u64,
        /// The provider's id of the answer. Absent when it gave none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub response_id: Option<String>,
        /// What went wrong. Present with `error` and `aborted` only.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub error_message: Option<String>,
        /// Milliseconds from the request to the end. Absent while the answer streams.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub duration_ms: Option<Number>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// The result of a tool call.
    pub struct ToolResultMessage ["role" = "toolResult" as ToolResultTag] {
        /// The call's id.
        pub tool_call_id: String,
        /// The tool's name.
        pub tool_name: String,
        /// Text and image blocks.
        pub content: Vec<ContentBlock>,
        /// Data for user interfaces; not shown to the model. Absent when the tool gave none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub details: Option<Value>,
        /// Whether the tool failed.
        pub is_error: bool,
        /// When it ended, Unix time in milliseconds.
        pub timestamp: u64,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A shell command that the client ran with the `bash` command.
    pub struct BashExecutionMessage ["role" = "bashExecution" as BashExecutionTag] {
        /// The command line.
        pub command: String,
        /// Standard output and standard error as they came.
        pub output: String,
        /// Exit status; null when the process was killed.
        #[serde(default)]
        pub exit_code: Option<i32>,
        /// Whether the client aborted it.
        pub cancelled: bool,
        /// Whether `output` is only the end of the whole output.
        pub truncated: bool,
        /// File that holds the whole output; null when nothing was cut.
        #[serde(default)]
        pub full_output_path: Option<String>,
        /// When it ended, Unix time in milliseconds.
        pub timestamp: u64,
        /// Whether the model shall not see it. Absent means it does.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub exclude_from_context: Option<bool>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A message of an extension or of the server itself; the model sees it as the user's.
    pub struct CustomMessage ["role" = "custom" as CustomTag] {
        /// The sender's name for this kind of message.
        pub custom_type: String,
        /// A string or text and image blocks.
        pub content: Content,
        /// Whether user interfaces should show it.
        pub display: bool,
        /// Data for user interfaces. Absent when there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub details: Option<Value>,
        /// When it was sent, Unix time in milliseconds.
        pub timestamp: u64,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// Summary of a branch that was left by navigation.
    pub struct BranchSummaryMessage ["role" = "branchSummary" as BranchSummaryTag] {
        /// The summary.
        pub summary: String,
        /// The entry the summary hangs on.
        pub from_id: String,
        /// When it was made, Unix time in milliseconds.
        pub timestamp: u64,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// Summary that stands for messages removed by compaction.
    pub struct CompactionSummaryMessage ["role" = "compactionSummary" as CompactionSummaryTag] {
        /// The summary.
        pub summary: String,
        /// Context size before the compaction, in tokens.
        pub tokens_before: u64,
        /// When it was made, Unix time in milliseconds.
        pub timestamp: u64,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

open_union! {
    /// A message of the conversation.
    pub enum AgentMessage by "role" {
        /// From the user.
        User(UserMessage) = "user",
        /// From the model.
        Assistant(AssistantMessage) = "assistant",
        /// From a tool.
        ToolResult(ToolResultMessage) = "toolResult",
        /// A shell command of the client.
        BashExecution(BashExecutionMessage) = "bashExecution",
        /// From an extension or the server.
        Custom(CustomMessage) = "custom",
        /// Summary of an abandoned branch.
        BranchSummary(BranchSummaryMessage) = "branchSummary",
        /// Summary of compacted history.
        CompactionSummary(CompactionSummaryMessage) = "compactionSummary",
    }
}

impl UserMessage {
    /// A message with these blocks.
    #[must_use]
    pub fn new(content: Vec<ContentBlock>, timestamp: u64) -> Self {
        Self { kind: UserTag, content: Content::Blocks(content), timestamp, attachments: None, extra: Extra::new() }
    }
}

impl AssistantMessage {
    /// An answer that has just begun: no content, no usage, stop reason `stop`.
    pub fn empty(
        api: impl Into<String>,
        provider: impl Into<String>,
        model: impl Into<String>,
        timestamp: u64,
    ) -> Self {
        Self {
            kind: AssistantTag,
            content: Vec::new(),
            api: api.into(),
            provider: provider.into(),
            model: model.into(),
            usage: Usage { total_tokens: Some(0), ..Usage::default() },
            stop_reason: StopReason::Stop,
            timestamp,
            response_id: None,
            error_message: None,
            duration_ms: None,
            extra: Extra::new(),
        }
    }

    /// All text blocks, joined without a separator.
    #[must_use]
    pub fn text(&self) -> String {
        joined_text(&self.content, "")
    }

    /// The tool calls in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.content.iter().filter_map(ContentBlock::as_tool_call)
    }
}

impl ToolResultMessage {
    /// A result for this call.
    pub fn new(
        tool_call_id: impl Into<String>,
        tool_name: impl Into<String>,
        content: Vec<ContentBlock>,
        details: Option<Value>,
        is_error: bool,
        timestamp: u64,
    ) -> Self {
        Self {
            kind: ToolResultTag,
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            content,
            details,
            is_error,
            timestamp,
            extra: Extra::new(),
        }
    }
}
