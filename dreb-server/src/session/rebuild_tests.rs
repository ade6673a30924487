use super::*;
use crate::session::SessionTree;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// A chain of entries; each value gives type and body.
fn tree(bodies: &[(&str, Value)]) -> SessionTree {
    let mut tree = SessionTree::new();
    let mut parent = Value::Null;
    for (id, body) in bodies {
        let mut line = json!({ "id": id, "parentId": parent, "timestamp": "2026-02-03T10:15:30.123Z" });
        line.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        tree.push(Arc::new(Entry::decode(&line.to_string()).unwrap()));
        parent = json!(id);
    }
    tree
}

fn user(text: &str) -> Value {
    json!({ "type": "message", "message": { "role": "user", "content": text, "timestamp": 1 } })
}

fn answer(provider: &str, model: &str) -> Value {
    json!({ "type": "message", "message": { "role": "assistant", "content": [], "api": "x", "provider": provider,
        "model": model, "stopReason": "stop", "timestamp": 1, "usage": { "input": 0, "output": 0, "cacheRead": 0,
        "cacheWrite": 0, "cost": { "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0 } } } })
}

fn compaction(summary: &str, kept: &str) -> Value {
    json!({ "type": "compaction", "summary": summary, "firstKeptEntryId": kept, "tokensBefore": 9 })
}

fn context(tree: &SessionTree) -> SessionContext {
    build_context(&tree.path_to_leaf())
}

/// Role and text of each message.
fn outline(tree: &SessionTree) -> Vec<String> {
    context(tree)
        .messages
        .iter()
        .map(|message| {
            let value = serde_json::to_value(message).unwrap();
            let text = value["content"].as_str().or(value["summary"].as_str()).unwrap_or("-");
            format!("{} {text}", message.kind())
        })
        .collect()
}

#[test]
fn without_entries_there_is_nothing() {
    assert_eq!(
        context(&SessionTree::new()),
        SessionContext { messages: Vec::new(), thinking_level: None, model: None }
    );
}

#[test]
fn messages_model_and_level_come_from_the_path() {
    let tree = tree(&[
        ("a", json!({ "type": "model_change", "provider": "p", "modelId": "m" })),
        ("b", json!({ "type": "thinking_level_change", "thinkingLevel": "high" })),
        ("c", user("hi")),
        ("d", answer("p", "n")),
        ("e", json!({ "type": "custom_message", "customType": "x", "content": "note", "display": true })),
        ("f", json!({ "type": "branch_summary", "fromId": "c", "summary": "left" })),
        ("g", json!({ "type": "branch_summary", "fromId": "c", "summary": "" })),
        ("h", json!({ "type": "custom", "customType": "x", "data": 1 })),
        ("i", json!({ "type": "thinking_level_change", "thinkingLevel": "low" })),
        ("j", json!({ "type": "later" })),
    ]);
    assert_eq!(outline(&tree), ["user hi", "assistant -", "custom note", "branchSummary left"]);
    let context = context(&tree);
    assert_eq!(context.model, Some(ModelRef { provider: "p".into(), id: "n".into() }));
    assert_eq!(context.thinking_level, Some(ThinkingLevel::Low));
    assert_eq!(
        serde_json::to_value(&context.messages[2]).unwrap(),
        json!({ "role": "custom", "customType": "x", "content": "note", "display": true, "timestamp": 1_770_113_730_123_u64 })
    );
    assert_eq!(
        serde_json::to_value(&context.messages[3]).unwrap(),
        json!({ "role": "branchSummary", "summary": "left", "fromId": "c", "timestamp": 1_770_113_730_123_u64 })
    );
}

#[test]
fn the_last_compaction_stands_for_what_was_before_its_first_kept_entry() {
    let tree = tree(&[
        ("a", user("1")),
        ("b", user("2")),
        ("c", compaction("first", "b")),
        ("d", user("3")),
        ("e", user("4")),
        ("f", compaction("second", "d")),
        ("g", user("5")),
    ]);
    assert_eq!(outline(&tree), ["compactionSummary second", "user 3", "user 4", "user 5"]);
    assert_eq!(
        serde_json::to_value(&context(&tree).messages[0]).unwrap(),
        json!({ "role": "compactionSummary", "summary": "second", "tokensBefore": 9, "timestamp": 1_770_113_730_123_u64 })
    );
}

#[test]
fn a_compaction_without_its_first_kept_entry_keeps_nothing_older() {
    for kept in ["gone", "c"] {
        let tree = tree(&[("a", user("1")), ("b", compaction("s", kept)), ("c", user("2"))]);
        assert_eq!(outline(&tree), ["compactionSummary s", "user 2"]);
    }
}

#[test]
fn a_cycle_of_parents_ends() {
    let mut tree = tree(&[("a", user("1")), ("b", user("2"))]);
    let ring = r#"{"type":"message","id":"a","parentId":"b","timestamp":"t","message":{"role":"user","content":"ring","timestamp":1}}"#;
    tree.push(Arc::new(Entry::decode(ring).unwrap()));
    assert!(tree.set_leaf(Some("b")));
    // a follows b follows a: cut at b, the newest.
    assert_eq!(outline(&tree), ["user 2"]);
}
