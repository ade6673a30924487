//! From stored messages to those a provider takes: user, assistant and tool result.

use protocol_schema::message::BashExecutionMessage;
use protocol_schema::{AgentMessage, Content, ContentBlock, UserMessage};

/// What stands in place of a blocked image.
pub const BLOCKED_IMAGE: &str = "Image reading is disabled.";

/// How to convert.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConvertOptions {
    /// `images.blockImages`: whether a text stands in place of each image.
    pub block_images: bool,
}

/// The messages as the model gets them.
///
/// Shell commands, messages of extensions and summaries become messages of the user; shell commands
/// that are excluded, and messages of unknown roles, are left out.
#[must_use]
pub fn to_llm_messages<'a>(
    messages: impl IntoIterator<Item = &'a AgentMessage>,
    options: ConvertOptions,
) -> Vec<AgentMessage> {
    let mut converted: Vec<_> = messages.into_iter().filter_map(convert).collect();
    if options.block_images {
        converted.iter_mut().for_each(block_images);
    }
    converted
}

fn convert(message: &AgentMessage) -> Option<AgentMessage> {
    let (blocks, timestamp) = match message {
        AgentMessage::User(_) | AgentMessage::Assistant(_) | AgentMessage::ToolResult(_) => {
            return Some(message.clone());
        }
        AgentMessage::BashExecution(execution) => {
            if execution.exclude_from_context == Some(true) {
                return None;
            }
            (vec![ContentBlock::text(bash_text(execution))], execution.timestamp)
        }
        AgentMessage::Custom(custom) => (custom.content.to_blocks(), custom.timestamp),
        AgentMessage::BranchSummary(branch) => (
            summary_block(
                "Another branch of this conversation was explored and left. What happened on it:",
                &branch.summary,
            ),
            branch.timestamp,
        ),
        AgentMessage::CompactionSummary(compaction) => (
            summary_block(
                "The earlier part of this conversation was compacted. This summary stands in its place:",
                &compaction.summary,
            ),
            compaction.timestamp,
        ),
        _ => return None,
    };
    Some(AgentMessage::User(UserMessage::new(blocks, timestamp)))
}

fn summary_block(lead: &str, summary: &str) -> Vec<ContentBlock> {
    vec![ContentBlock::text(format!("{lead}\n\n<summary>\n{summary}\n</summary>"))]
}

/// A shell command of the client in words.
#[must_use]
pub fn bash_text(execution: &BashExecutionMessage) -> String {
    let mut text = format!("Ran `{}`\n", execution.command);
    if execution.output.is_empty() {
        text.push_str("(no output)");
    } else {
        text.push_str(&format!("```\n{}\n```", execution.output));
    }
    if execution.cancelled {
        text.push_str("\n\n(command cancelled)");
    } else if let Some(code) = execution.exit_code.filter(|&code| code != 0) {
        text.push_str(&format!("\n\nCommand exited with code {code}"));
    }
    if let Some(path) = execution.full_output_path.as_deref().filter(|_| execution.truncated) {
        text.push_str(&format!("\n\n[Output truncated. Full output: {path}]"));
    }
    text
}

fn block_images(message: &mut AgentMessage) {
    let blocks = match message {
        AgentMessage::User(UserMessage { content: Content::Blocks(blocks), .. }) => blocks,
        AgentMessage::ToolResult(result) => &mut result.content,
        _ => return,
    };
    if !blocks.iter().any(|block| matches!(block, ContentBlock::Image(_))) {
        return;
    }
    for block in blocks.iter_mut() {
        if matches!(block, ContentBlock::Image(_)) {
            *block = ContentBlock::text(BLOCKED_IMAGE);
        }
    }
    blocks.dedup_by(|next, previous| [next, previous].iter().all(|block| block.as_text() == Some(BLOCKED_IMAGE)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;
    use serde_json::{Value, json};

    fn decode(value: &Value) -> AgentMessage {
        AgentMessage::from_json(&value.to_string()).unwrap()
    }

    fn convert_all(messages: &[AgentMessage], block_images: bool) -> Value {
        serde_json::to_value(to_llm_messages(messages, ConvertOptions { block_images })).unwrap()
    }

    fn converted(messages: &[Value], block_images: bool) -> Value {
        convert_all(&messages.iter().map(decode).collect::<Vec<_>>(), block_images)
    }

    fn image() -> ContentBlock {
        ContentBlock::Image(protocol_schema::ImageContent::new("AA", "image/png"))
    }

    fn bash(fields: Value) -> Value {
        let mut message = json!({ "role": "bashExecution", "command": "git status", "output": "clean\n", "exitCode": 0,
            "cancelled": false, "truncated": false, "fullOutputPath": null, "timestamp": 7 });
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        message
    }

    fn user_text(text: &str) -> Value {
        json!([{ "role": "user", "content": [{ "type": "text", "text": text }], "timestamp": 7 }])
    }

    #[test]
    fn shell_commands_are_told_in_words() {
        for (fields, text) in [
            (json!({}), "Ran `git status`\n```\nclean\n\n```"),
            (json!({ "output": "" }), "Ran `git status`\n(no output)"),
            (json!({ "output": "x", "exitCode": 3 }), "Ran `git status`\n```\nx\n```\n\nCommand exited with code 3"),
            (
                json!({ "output": "x", "exitCode": null, "cancelled": true }),
                "Ran `git status`\n```\nx\n```\n\n(command cancelled)",
            ),
            (json!({ "output": "x", "exitCode": null }), "Ran `git status`\n```\nx\n```"),
            (
                json!({ "output": "x", "exitCode": 1, "truncated": true, "fullOutputPath": "/t/o.log" }),
                "Ran `git status`\n```\nx\n```\n\nCommand exited with code 1\n\n[Output truncated. Full output: /t/o.log]",
            ),
        ] {
            assert_eq!(converted(&[bash(fields)], false), user_text(text));
        }
        assert_eq!(converted(&[bash(json!({ "excludeFromContext": true }))], false), json!([]));
    }

    #[test]
    fn summaries_and_custom_messages_are_the_users() {
        let branch = json!({ "role": "branchSummary", "summary": "tried x", "fromId": "a", "timestamp": 7 });
        assert_eq!(
            converted(&[branch], false),
            user_text(
                "Another branch of this conversation was explored and left. What happened on it:\n\n<summary>\ntried x\n</summary>"
            )
        );
        let compaction =
            json!({ "role": "compactionSummary", "summary": "## Goal", "tokensBefore": 5, "timestamp": 7 });
        assert_eq!(
            converted(&[compaction], false),
            user_text(
                "The earlier part of this conversation was compacted. This summary stands in its place:\n\n<summary>\n## Goal\n</summary>"
            )
        );
        let note = json!({ "role": "custom", "customType": "x", "content": "note", "display": true, "timestamp": 7 });
        assert_eq!(converted(std::slice::from_ref(&note), false), user_text("note"));
        let AgentMessage::Custom(mut custom) = decode(&note) else { panic!() };
        custom.content = Content::Blocks(vec![image()]);
        assert_eq!(
            to_llm_messages(&[AgentMessage::Custom(custom)], ConvertOptions::default()),
            [AgentMessage::User(UserMessage::new(vec![image()], 7))]
        );
    }

    #[test]
    fn other_roles_pass_unchanged_or_not_at_all() {
        let user = json!({ "role": "user", "content": "hi", "timestamp": 1, "more": true });
        assert_eq!(converted(&[user.clone(), json!({ "role": "later" })], false), json!([user]));
    }

    #[test]
    fn blocked_images_become_one_text_per_row() {
        let text = || ContentBlock::text("t");
        let blocked = || ContentBlock::text("Image reading is disabled.");
        let user = |blocks| AgentMessage::User(UserMessage::new(blocks, 1));
        let result = |blocks| {
            AgentMessage::ToolResult(protocol_schema::ToolResultMessage::new("c", "read", blocks, None, false, 1))
        };
        let convert =
            |messages: &[AgentMessage], block_images| to_llm_messages(messages, ConvertOptions { block_images });
        assert_eq!(
            convert(&[user(vec![image(), image(), text(), image()]), result(vec![text(), image()])], true),
            [user(vec![blocked(), text(), blocked()]), result(vec![text(), blocked()])]
        );
        let unchanged = [user(vec![image()]), result(vec![image(), image()])];
        assert_eq!(convert(&unchanged, false), unchanged);
        let plain = json!({ "role": "user", "content": "plain", "timestamp": 1 });
        assert_eq!(converted(std::slice::from_ref(&plain), true), json!([plain]));
        // Equal texts of the user are nobody's business.
        let texts = [user(vec![text(), text()])];
        assert_eq!(convert(&texts, true), texts);
    }
}
