//! Events of a run.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::content::{ContentBlock, Extra, ToolCall};
use crate::message::{AgentMessage, AssistantMessage, StopReason, ToolResultMessage, Usage};
use crate::model::{ModelRef, ThinkingLevel};
use crate::session::Task;

tagged! {
    /// The agent begins to work.
    pub struct AgentStart ["type" = "agent_start" as AgentStartTag] {
        /// The model of this run.
        pub model: ModelRef,
        /// The thinking level sent to the provider.
        pub thinking_level: ThinkingLevel,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// The agent has ended its run. A retry or queued work may start another one.
    pub struct AgentEnd ["type" = "agent_end" as AgentEndTag] {
        /// Every message that is new in this run.
        pub messages: Vec<AgentMessage>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// Nothing more will happen by itself: no retry, compaction or queued message is left.
    /// An addition to the protocol document.
    #[derive(Default)]
    pub struct AgentSettled ["type" = "agent_settled" as AgentSettledTag] {
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A turn begins: one answer and the tool calls in it.
    #[derive(Default)]
    pub struct TurnStart ["type" = "turn_start" as TurnStartTag] {
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A turn has ended.
    pub struct TurnEnd ["type" = "turn_end" as TurnEndTag] {
        /// The answer.
        pub message: AgentMessage,
        /// Results of its tool calls.
        pub tool_results: Vec<ToolResultMessage>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A message begins.
    pub struct MessageStart ["type" = "message_start" as MessageStartTag] {
        /// The message as it is now.
        pub message: AgentMessage,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A piece of an answer has come.
    pub struct MessageUpdate ["type" = "message_update" as MessageUpdateTag] {
        /// What has come.
        pub assistant_message_event: AssistantMessageEvent,
        /// The whole answer so far. Absent with `--event-detail delta`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub message: Option<Box<AgentMessage>>,
        /// Usage so far. Present with `--event-detail delta` only.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub usage: Option<Usage>,
    }
}

tagged! {
    /// A message is complete and stored.
    pub struct MessageEnd ["type" = "message_end" as MessageEndTag] {
        /// The message.
        pub message: AgentMessage,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

/// Output of a tool, so far or in full.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// Text and image blocks.
    pub content: Vec<ContentBlock>,
    /// Data for user interfaces. Absent when the tool gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// Whether the tool ends the turn without another answer. Absent when it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_turn: Option<bool>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

tagged! {
    /// A tool begins to run.
    pub struct ToolExecutionStart ["type" = "tool_execution_start" as ToolExecutionStartTag] {
        /// The call's id.
        pub tool_call_id: String,
        /// The tool's name.
        pub tool_name: String,
        /// Arguments as the model gave them.
        pub args: Map<String, Value>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A running tool has new output.
    pub struct ToolExecutionUpdate ["type" = "tool_execution_update" as ToolExecutionUpdateTag] {
        /// The call's id.
        pub tool_call_id: String,
        /// The tool's name.
        pub tool_name: String,
        /// Arguments as the model gave them.
        pub args: Map<String, Value>,
        /// All output so far; with `--event-detail delta` only what is new.
        pub partial_result: ToolResult,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A tool has ended.
    pub struct ToolExecutionEnd ["type" = "tool_execution_end" as ToolExecutionEndTag] {
        /// The call's id.
        pub tool_call_id: String,
        /// The tool's name.
        pub tool_name: String,
        /// Its result.
        pub result: ToolResult,
        /// Whether it failed.
        pub is_error: bool,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// The provider's stream broke off; the answer is asked for again.
    pub struct StreamRetry ["type" = "stream_retry" as StreamRetryTag] {
        /// Which retry this is, from 1.
        pub attempt: u32,
        /// How many there are at most.
        pub max_attempts: u32,
        /// What happened.
        pub error: String,
        /// The part of the answer that is thrown away. Absent if none had come.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub discarded_partial: Option<Box<AgentMessage>>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// The answer hit its token limit; it is asked for again with a larger one.
    pub struct LengthRetry ["type" = "length_retry" as LengthRetryTag] {
        /// Which retry this is, from 1.
        pub attempt: u32,
        /// How many there are at most.
        pub max_attempts: u32,
        /// The limit that was hit, in tokens.
        pub previous_max_tokens: u64,
        /// The limit of the next try, in tokens.
        pub next_max_tokens: u64,
        /// The part of the answer that is thrown away. Absent if none had come.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub discarded_partial: Option<Box<AgentMessage>>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// A failed run will be tried again.
    pub struct AutoRetryStart ["type" = "auto_retry_start" as AutoRetryStartTag] {
        /// Which retry this is, from 1.
        pub attempt: u32,
        /// How many there are at most.
        pub max_attempts: u32,
        /// Pause before it, in milliseconds.
        pub delay_ms: u64,
        /// The failure.
        pub error_message: String,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// Retrying is over.
    pub struct AutoRetryEnd ["type" = "auto_retry_end" as AutoRetryEndTag] {
        /// Whether a retry succeeded.
        pub success: bool,
        /// The last retry.
        pub attempt: u32,
        /// The last failure. Absent on success.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub final_error: Option<String>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// The task list was replaced.
    pub struct TasksUpdate ["type" = "tasks_update" as TasksUpdateTag] {
        /// The whole list.
        pub tasks: Vec<Task>,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

tagged! {
    /// Something beside the agent's own work failed: an extension, or storing the session.
    pub struct ExtensionError ["type" = "extension_error" as ExtensionErrorTag] {
        /// What failed: the path of an extension, or the part of the server in angle brackets.
        pub extension_path: String,
        /// During which event.
        pub event: String,
        /// What went wrong.
        pub error: String,
        /// Unknown fields.
        #[serde(flatten)]
        pub extra: Extra,
    }
}

open_union! {
    /// An event. The union is open: ignore kinds you do not know.
    pub enum Event by "type" {
        /// The agent begins.
        AgentStart(AgentStart) = "agent_start",
        /// The agent has ended its run.
        AgentEnd(AgentEnd) = "agent_end",
        /// Nothing more will happen by itself.
        AgentSettled(AgentSettled) = "agent_settled",
        /// A turn begins.
        TurnStart(TurnStart) = "turn_start",
        /// A turn has ended.
        TurnEnd(TurnEnd) = "turn_end",
        /// A message begins.
        MessageStart(MessageStart) = "message_start",
        /// A piece of an answer.
        MessageUpdate(MessageUpdate) = "message_update",
        /// A message is complete.
        MessageEnd(MessageEnd) = "message_end",
        /// A tool begins.
        ToolExecutionStart(ToolExecutionStart) = "tool_execution_start",
        /// A tool has output.
        ToolExecutionUpdate(ToolExecutionUpdate) = "tool_execution_update",
        /// A tool has ended.
        ToolExecutionEnd(ToolExecutionEnd) = "tool_execution_end",
        /// A broken stream is tried again.
        StreamRetry(StreamRetry) = "stream_retry",
        /// A cut-off answer is tried again.
        LengthRetry(LengthRetry) = "length_retry",
        /// A failed run will be tried again.
        AutoRetryStart(AutoRetryStart) = "auto_retry_start",
        /// Retrying is over.
        AutoRetryEnd(AutoRetryEnd) = "auto_retry_end",
        /// The task list was replaced.
        TasksUpdate(TasksUpdate) = "tasks_update",
        /// Something beside the agent's own work failed.
        ExtensionError(ExtensionError) = "extension_error",
    }
}

/// Declares an assistant message event: a block index, its own fields and the partial message.
macro_rules! block_event {
    ($(#[$meta:meta])* $name:ident = $text:literal as $tag:ident { $($body:tt)* }) => {
        tagged! {
            $(#[$meta])*
            pub struct $name ["type" = $text as $tag] {
                /// Which content block, from 0.
                pub content_index: usize,
                $($body)*
                /// The whole answer so far. Absent with `--event-detail delta`.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub partial: Option<Box<AssistantMessage>>,
            }
        }
    };
}

tagged! {
    /// The answer begins. Never sent inside `message_update`; `message_start` stands for it.
    pub struct Start ["type" = "start" as StartTag] {
        /// The answer so far.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub partial: Option<Box<AssistantMessage>>,
    }
}

block_event! {
    /// A text block begins.
    TextStart = "text_start" as TextStartTag {}
}

block_event! {
    /// More text.
    TextDelta = "text_delta" as TextDeltaTag {
        /// The new text.
        pub delta: String,
    }
}

block_event! {
    /// A text block has ended.
    TextEnd = "text_end" as TextEndTag {
        /// The whole text of the block.
        pub content: String,
    }
}

block_event! {
    /// A thinking block begins.
    ThinkingStart = "thinking_start" as ThinkingStartTag {}
}

block_event! {
    /// More thinking.
    ThinkingDelta = "thinking_delta" as ThinkingDeltaTag {
        /// The new text.
        pub delta: String,
    }
}

block_event! {
    /// A thinking block has ended.
    ThinkingEnd = "thinking_end" as ThinkingEndTag {
        /// The whole text of the block.
        pub content: String,
    }
}

block_event! {
    /// A tool call begins.
    ToolCallStart = "toolcall_start" as ToolCallStartTag {
        /// The call's id. Present with `--event-detail delta` only.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub id: Option<String>,
        /// The tool's name. Present with `--event-detail delta` only.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tool_name: Option<String>,
    }
}

block_event! {
    /// More of a tool call's arguments.
    ToolCallDelta = "toolcall_delta" as ToolCallDeltaTag {
        /// The new piece of JSON text.
        pub delta: String,
    }
}

block_event! {
    /// A tool call has ended.
    ToolCallEnd = "toolcall_end" as ToolCallEndTag {
        /// The whole call.
        pub tool_call: ToolCall,
    }
}

tagged! {
    /// The answer is complete. Never sent inside `message_update`; `message_end` stands for it.
    pub struct Done ["type" = "done" as DoneTag] {
        /// `stop`, `length` or `toolUse`.
        pub reason: StopReason,
        /// The answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub message: Option<Box<AssistantMessage>>,
    }
}

tagged! {
    /// The answer failed. Never sent inside `message_update`; `message_end` stands for it.
    pub struct StreamError ["type" = "error" as StreamErrorTag] {
        /// `aborted` or `error`.
        pub reason: StopReason,
        /// The answer so far.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub error: Option<Box<AssistantMessage>>,
    }
}

open_union! {
    /// What a `message_update` brings.
    pub enum AssistantMessageEvent by "type" {
        /// The answer begins.
        Start(Start) = "start",
        /// A text block begins.
        TextStart(TextStart) = "text_start",
        /// More text.
        TextDelta(TextDelta) = "text_delta",
        /// A text block has ended.
        TextEnd(TextEnd) = "text_end",
        /// A thinking block begins.
        ThinkingStart(ThinkingStart) = "thinking_start",
        /// More thinking.
        ThinkingDelta(ThinkingDelta) = "thinking_delta",
        /// A thinking block has ended.
        ThinkingEnd(ThinkingEnd) = "thinking_end",
        /// A tool call begins.
        ToolCallStart(ToolCallStart) = "toolcall_start",
        /// More arguments.
        ToolCallDelta(ToolCallDelta) = "toolcall_delta",
        /// A tool call has ended.
        ToolCallEnd(ToolCallEnd) = "toolcall_end",
        /// The answer is complete.
        Done(Done) = "done",
        /// The answer failed.
        Error(StreamError) = "error",
    }
}

impl Event {
    /// The new text, if this is a `text_delta`.
    #[must_use]
    pub fn text_delta(&self) -> Option<&str> {
        match self {
            Self::MessageUpdate(MessageUpdate {
                assistant_message_event: AssistantMessageEvent::TextDelta(delta),
                ..
            }) => Some(&delta.delta),
            _ => None,
        }
    }
}
