use pretty_assertions::assert_eq;
use proptest::prelude::*;
use protocol_schema::ToolCall;
use protocol_schema::UserMessage;
use serde_json::{Map, json};

use super::*;

/// Sanitises like most APIs and keeps thinking of other models on request.
struct Plain {
    keep: bool,
    limit: usize,
}

impl Target for Plain {
    fn foreign_id(&self, id: &str, _: &AssistantMessage) -> String {
        sanitized_id(id, self.limit)
    }

    fn keeps_foreign_thinking(&self, _: &AssistantMessage) -> bool {
        self.keep
    }

    fn id_limit(&self) -> usize {
        self.limit
    }
}

const PLAIN: Plain = Plain { keep: false, limit: 64 };

fn model() -> Model {
    Model { id: "m".into(), api: "a".into(), provider: "p".into(), ..Model::default() }
}

fn user(text: &str) -> AgentMessage {
    UserMessage::new(vec![ContentBlock::text(text)], 1).into()
}

fn assistant(model: &str, content: Vec<ContentBlock>) -> AgentMessage {
    AssistantMessage { content, ..AssistantMessage::empty("a", "p", model, 2) }.into()
}

fn failed(reason: StopReason, content: Vec<ContentBlock>) -> AgentMessage {
    AssistantMessage { content, stop_reason: reason, ..AssistantMessage::empty("a", "p", "m", 2) }.into()
}

fn call(id: &str) -> ContentBlock {
    let thought_signature = Some("sig".to_owned());
    ToolCall { id: id.into(), name: "read".into(), thought_signature, ..ToolCall::default() }.into()
}

fn result(id: &str, text: &str) -> AgentMessage {
    ToolResultMessage::new(id, "read", vec![ContentBlock::text(text)], None, false, 3).into()
}

fn thinking(text: &str, signature: Option<&str>) -> ContentBlock {
    ThinkingContent { thinking: text.into(), thinking_signature: signature.map(Into::into), ..Default::default() }
        .into()
}

fn redacted() -> ContentBlock {
    let block = ThinkingContent { thinking_signature: Some("data".into()), redacted: Some(true), ..Default::default() };
    block.into()
}

fn prepared(messages: Vec<AgentMessage>) -> Vec<AgentMessage> {
    prepare(messages, &model(), &PLAIN)
}

/// One line for each message: `user text`, `call ids`, `result id text`.
fn outline(messages: &[AgentMessage]) -> Vec<String> {
    messages
        .iter()
        .map(|message| match message {
            AgentMessage::User(message) => format!("user {}", message.content.joined_text("|")),
            AgentMessage::Assistant(message) => {
                let calls: Vec<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
                if calls.is_empty() { format!("text {}", message.text()) } else { format!("call {}", calls.join(" ")) }
            }
            AgentMessage::ToolResult(message) => {
                format!(
                    "result {} {}",
                    message.tool_call_id,
                    protocol_schema::content::joined_text(&message.content, "|")
                )
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn an_answer_of_the_same_model_stays_but_for_blank_blocks() {
    let mut text = TextContent::new("t\0t");
    text.text_signature = Some("s".into());
    let content = vec![
        thinking("", Some("sig")),
        thinking(" ", None),
        thinking("why", None),
        redacted(),
        ContentBlock::text(" \n"),
        text.into(),
        call("id|with:odd"),
    ];
    let out = prepared(vec![assistant("m", content), result("id|with:odd", "r")]);
    let mut text = TextContent::new("tt");
    text.text_signature = Some("s".into());
    let content = vec![thinking("", Some("sig")), thinking("why", None), redacted(), text.into(), call("id|with:odd")];
    assert_eq!(out, [assistant("m", content), result("id|with:odd", "r")]);
}

#[test]
fn an_answer_of_another_model_loses_what_only_that_model_reads() {
    let mut text = TextContent::new("text");
    text.text_signature = Some("s".into());
    let content = vec![redacted(), thinking("", Some("sig")), text.into(), call("id|with:odd")];
    let out = prepared(vec![assistant("other", content), result("id|with:odd", "r")]);
    let bare = ToolCall { id: "id_with_odd".into(), name: "read".into(), ..ToolCall::default() };
    assert_eq!(out, [assistant("other", vec![ContentBlock::text("text"), bare.into()]), result("id_with_odd", "r")]);
}

#[test]
fn provider_api_and_id_all_make_the_same_model() {
    for (api, provider) in [("a", "q"), ("b", "p")] {
        let message = AssistantMessage { content: vec![redacted()], ..AssistantMessage::empty(api, provider, "m", 2) };
        let out = prepared(vec![message.into()]);
        assert!(matches!(&out[0], AgentMessage::Assistant(message) if message.content.is_empty()));
    }
}

#[test]
fn thinking_of_another_model_becomes_marked_text_set_off_from_visible_text() {
    let marked = "<reformatted-pre-switch-reasoning>\nwhy\n</reformatted-pre-switch-reasoning>";
    let why = || thinking("why", Some("sig"));
    let text = ContentBlock::text;
    for (content, expected) in [
        (vec![why()], marked.to_owned()),
        (vec![why(), text("t")], format!("{marked}\n\n")),
        (vec![text("t"), why()], format!("\n\n{marked}")),
        (vec![text("t"), why(), call("c"), text("u")], format!("\n\n{marked}\n\n")),
        (vec![text(" "), why(), call("c")], marked.to_owned()),
    ] {
        let out = prepared(vec![assistant("other", content)]);
        let AgentMessage::Assistant(message) = &out[0] else { panic!("{out:?}") };
        let found = message.content.iter().filter_map(ContentBlock::as_text).find(|text| text.contains("why"));
        assert_eq!(found, Some(expected.as_str()));
    }
}

#[test]
fn thinking_of_another_model_stays_where_the_target_says_so() {
    let content = || vec![thinking("why", Some("reasoning")), redacted(), thinking(" ", Some("reasoning"))];
    let out = prepare(vec![assistant("other", content())], &model(), &Plain { keep: true, limit: 64 });
    assert_eq!(out, [assistant("other", vec![thinking("why", Some("reasoning"))])]);
}

#[test]
fn failed_and_aborted_answers_go_with_their_results() {
    let out = prepared(vec![
        user("1"),
        failed(StopReason::Error, vec![call("x")]),
        result("x", "r"),
        user("2"),
        failed(StopReason::Aborted, vec![ContentBlock::text("half")]),
        user("3"),
    ]);
    assert_eq!(outline(&out), ["user 1", "user 2", "user 3"]);
}

#[test]
fn a_call_without_a_result_gets_one_unless_it_stands_at_the_end() {
    let out = prepared(vec![
        assistant("m", vec![call("a"), call("b")]),
        result("b", "rb"),
        user("go on"),
        assistant("m", vec![call("c")]),
        assistant("m", vec![call("d"), call("e")]),
        result("d", "rd"),
    ]);
    assert_eq!(
        outline(&out),
        [
            "call a b",
            "result b rb",
            "result a No result provided",
            "user go on",
            "call c",
            "result c No result provided",
            "call d e",
            "result d rd"
        ]
    );
    let AgentMessage::ToolResult(missing) = &out[2] else { panic!("{out:?}") };
    assert!(missing.is_error);
    assert_eq!(missing.tool_name, "read");
}

#[test]
fn a_result_behind_a_user_message_is_moved_to_its_call_and_one_without_a_call_is_dropped() {
    let out = prepared(vec![
        result("lost", "r"),
        user("0"),
        assistant("m", vec![call("a")]),
        user("1"),
        result("a", "ra"),
        result("a", "again"),
        result("unknown", "r"),
    ]);
    assert_eq!(outline(&out), ["user 0", "call a", "result a ra", "user 1"]);
}

#[test]
fn ids_that_come_twice_are_made_unique_with_their_results() {
    let out = prepared(vec![
        assistant("m", vec![call("x"), call("x"), call("")]),
        result("x", "first"),
        result("x", "second"),
        result("", "third"),
        assistant("m", vec![call("x")]),
        result("x", "fourth"),
        assistant("other", vec![call("x!"), call("x?")]),
        result("x?", "sixth"),
        result("x!", "fifth"),
    ]);
    assert_eq!(
        outline(&out),
        [
            "call x x_2 call_2",
            "result x first",
            "result x_2 second",
            "result call_2 third",
            "call x_3",
            "result x_3 fourth",
            "call x_ x__2",
            "result x__2 sixth",
            "result x_ fifth",
        ]
    );
}

#[test]
fn unique_ids_keep_to_the_limit() {
    let long = "é".repeat(10);
    let messages = vec![assistant("m", vec![call(&long), call(&long)])];
    let out = prepare(messages, &model(), &Plain { keep: false, limit: 10 });
    assert_eq!(outline(&out), [format!("call {long} {}_2", "é".repeat(4))]);
}

#[test]
fn nul_characters_and_other_kinds_of_messages_go() {
    let custom: AgentMessage = serde_json::from_value(json!({
        "role": "custom", "customType": "x", "content": "c", "display": true, "timestamp": 1
    }))
    .unwrap();
    let out = prepared(vec![
        user("a\0b"),
        UserMessage { content: Content::Text("\0c".into()), ..UserMessage::new(vec![], 1) }.into(),
        custom,
        assistant("m", vec![call("x"), thinking("t\0", None)]),
        result("x", "r\0r"),
    ]);
    assert_eq!(outline(&out), ["user ab", "user c", "call x", "result x rr"]);
    assert!(matches!(&out[2], AgentMessage::Assistant(m) if m.content[1] == thinking("t", None)));
    assert_eq!(clean("a\0\0b"), "ab");
    assert!(is_blank(" \0\n"));
}

#[test]
fn trailing_thinking_can_be_left_out() {
    let mut message = AssistantMessage {
        content: vec![thinking("a", None), ContentBlock::text("t"), thinking("b", None), redacted()],
        ..AssistantMessage::empty("a", "p", "m", 2)
    };
    trim_trailing_thinking(&mut message);
    assert_eq!(message.content, [thinking("a", None), ContentBlock::text("t")]);
    message.content = vec![thinking("a", Some("s"))];
    trim_trailing_thinking(&mut message);
    assert_eq!(message.content, []);
}

#[test]
fn calls_are_found() {
    assert!(!has_tool_calls(&[user("x"), assistant("m", vec![ContentBlock::text("t")])]));
    assert!(has_tool_calls(&[assistant("m", vec![call("x")])]));
}

fn message() -> impl Strategy<Value = AgentMessage> {
    let id = || prop_oneof![Just("a"), Just("b"), Just("c|d"), Just("")];
    let block = prop_oneof![
        id().prop_map(call),
        Just(thinking("t", Some("s"))),
        Just(redacted()),
        ".{0,3}".prop_map(ContentBlock::text),
        Just(ContentBlock::Unknown(json!({"type": "new"}))),
    ];
    let reason =
        prop_oneof![4 => Just(StopReason::ToolUse), 1 => Just(StopReason::Error), 1 => Just(StopReason::Aborted)];
    prop_oneof![
        ".{0,3}".prop_map(|text| user(&text)),
        (prop::collection::vec(block, 0..4), reason, any::<bool>()).prop_map(|(content, stop_reason, same)| {
            let model = if same { "m" } else { "other" };
            AssistantMessage { content, stop_reason, ..AssistantMessage::empty("a", "p", model, 2) }.into()
        }),
        id().prop_map(|id| result(id, "r")),
    ]
}

proptest! {
    #[test]
    fn every_call_has_a_unique_id_and_its_result_right_behind(messages in prop::collection::vec(message(), 0..16)) {
        let out = prepared(messages);
        let mut seen = HashSet::new();
        let mut waiting: HashSet<String> = HashSet::new();
        for message in &out {
            match message {
                // In the order of the session, which need not be that of the calls. Behind the last answer
                // some calls may have no result.
                AgentMessage::ToolResult(result) => prop_assert!(waiting.remove(&result.tool_call_id)),
                AgentMessage::Assistant(message) => {
                    prop_assert!(waiting.is_empty());
                    for call in message.tool_calls() {
                        prop_assert!(!call.id.is_empty() && seen.insert(call.id.clone()));
                        waiting.insert(call.id.clone());
                    }
                }
                _ => prop_assert!(waiting.is_empty()),
            }
        }
    }
}

#[test]
fn arguments_stay_as_they_are() {
    let arguments: Map<String, serde_json::Value> = serde_json::from_str(r#"{"b":"x\u0000","a":[1]}"#).unwrap();
    let block = ToolCall { id: "x".into(), arguments: arguments.clone(), ..ToolCall::default() };
    let out = prepared(vec![assistant("m", vec![block.into()])]);
    assert!(matches!(&out[0], AgentMessage::Assistant(m) if m.tool_calls().next().unwrap().arguments == arguments));
}
