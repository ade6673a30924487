//! Lines of the server, written short.

use serde_json::Value;

/// One line in a few characters.
///
/// | Line | Notation |
/// |---|---|
/// | response | `R:prompt`, failed `R!prompt` |
/// | `message_start`, `message_end` | `S(user)`, `E(user)`; an answer that did not end well `E(assistant:aborted)` |
/// | `message_update` | `U:text_delta` |
/// | `tool_execution_start`, `_update`, `_end` | `T+(call id)`, `T~(call id)`, `T-(call id)`, failed `T!(call id)` |
/// | anything else | its type |
///
/// # Panics
///
/// The line has not the fields its type has.
#[must_use]
pub fn short(line: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("a field is missing in {line}")).to_owned();
    let role = || text(&line["message"]["role"]);
    let call = || text(&line["toolCallId"]);
    match text(&line["type"]).as_str() {
        "response" if line["success"] == true => format!("R:{}", text(&line["command"])),
        "response" => format!("R!{}", text(&line["command"])),
        "message_start" => format!("S({})", role()),
        "message_end" => match line["message"]["stopReason"].as_str() {
            Some(reason @ ("error" | "aborted" | "length")) => format!("E({}:{reason})", role()),
            _ => format!("E({})", role()),
        },
        "message_update" => format!("U:{}", text(&line["assistantMessageEvent"]["type"])),
        "tool_execution_start" => format!("T+({})", call()),
        "tool_execution_update" => format!("T~({})", call()),
        "tool_execution_end" if line["isError"] == true => format!("T!({})", call()),
        "tool_execution_end" => format!("T-({})", call()),
        other => other.to_owned(),
    }
}

/// Several lines.
#[must_use]
pub fn shorts(lines: &[Value]) -> Vec<String> {
    lines.iter().map(short).collect()
}

/// Several lines without the progress of tools, whose number depends on timing.
#[must_use]
pub fn without_progress(lines: &[Value]) -> Vec<String> {
    lines.iter().filter(|line| line["type"] != "tool_execution_update").map(short).collect()
}

/// Several lines without the progress of tools and without updates of messages.
#[must_use]
pub fn milestones(lines: &[Value]) -> Vec<String> {
    lines
        .iter()
        .filter(|line| line["type"] != "tool_execution_update" && line["type"] != "message_update")
        .map(short)
        .collect()
}

/// The `message_end` messages with this role.
#[must_use]
pub fn messages<'a>(lines: &'a [Value], role: &str) -> Vec<&'a Value> {
    let ends = lines.iter().filter(|line| line["type"] == "message_end");
    ends.map(|line| &line["message"]).filter(|message| message["role"] == role).collect()
}

/// The first line with this type.
///
/// # Panics
///
/// There is none.
#[must_use]
pub fn event<'a>(lines: &'a [Value], kind: &str) -> &'a Value {
    let found = lines.iter().find(|line| line["type"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {:?}", shorts(lines)))
}

/// The text blocks of a message or tool result, joined.
#[must_use]
pub fn text(message: &Value) -> String {
    let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
    blocks.iter().filter_map(|block| block["text"].as_str()).collect()
}

/// How a run begins that a prompt starts.
pub const BEGIN: &[&str] = &["agent_start", "turn_start", "S(user)", "E(user)"];
/// An answer of one text in one piece.
pub const SAY: &[&str] = &["S(assistant)", "U:text_start", "U:text_delta", "U:text_end", "E(assistant)"];
/// A user message between turns.
pub const USER: &[&str] = &["S(user)", "E(user)"];
/// The result of a tool.
pub const RESULT: &[&str] = &["S(toolResult)", "E(toolResult)"];
/// How a run ends after which nothing follows.
pub const END: &[&str] = &["turn_end", "agent_end", "agent_settled"];

/// Joins pieces of a sequence.
#[must_use]
pub fn sequence(pieces: &[&[&str]]) -> Vec<String> {
    pieces.concat().into_iter().map(str::to_owned).collect()
}
