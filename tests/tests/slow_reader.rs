//! A client that does not read for a while.

use dreb_tests::notation::{messages, text};
use dreb_tests::{FakeProvider, Home, Reply};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

const DELTAS: usize = 10_000;

/// Deltas of five bytes, all different.
fn deltas() -> Vec<String> {
    (0..DELTAS).map(|number| format!("{number:04} ")).collect()
}

/// The new text of all updates, in order.
fn streamed(lines: &[Value]) -> String {
    lines.iter().filter_map(|line| line["assistantMessageEvent"]["delta"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_flat_and_nothing_is_lost() {
    for detail in ["full", "delta"] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().text(deltas()));
        let mut server = home.dreb().args(["--event-detail", detail]).check_few_updates().start();
        server.ok(json!({ "type": "get_state" })).await;
        let before = server.memory();
        server.send(json!({ "type": "prompt", "message": "go" })).await;
        let largest = server.until_at_rest().await;
        // All the output of `full` would be 500 MB.
        assert!(largest < before + (128 << 20), "{detail}: memory went from {before} to {largest} bytes");
        let mut seen = String::new();
        let mut last = None;
        loop {
            let line = server.next().await;
            if let Some(delta) = line["assistantMessageEvent"]["delta"].as_str() {
                seen.push_str(delta);
                if detail == "full" {
                    // Exactly what has come so far, however much there was to tell.
                    let shown = text(&line["message"]).len();
                    assert_eq!(shown, seen.len());
                } else {
                    assert_eq!(line.get("message"), None);
                }
            }
            if line["type"] == "message_end" {
                last = Some(line["message"].clone());
            }
            if line["type"] == "agent_settled" {
                break;
            }
        }
        assert_eq!(seen, deltas().concat());
        assert_eq!(text(&last.unwrap()), seen);
        let after = server.memory();
        assert!(after < before + (128 << 20), "{detail}: memory went from {before} to {after} bytes");
        server.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_sent_meanwhile_are_answered_when_reading_resumes() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::new().text(deltas()).hang());
    let mut server = home.dreb().check_few_updates().start();
    server.send(json!({ "id": "p", "type": "prompt", "message": "go" })).await;
    server.until_at_rest().await;
    server.send(json!({ "id": "s", "type": "get_state" })).await;
    server.send(json!({ "id": "a", "type": "abort" })).await;
    let mut lines = Vec::new();
    let mut open: Vec<Value> = vec![json!("p"), json!("s"), json!("a")];
    let mut ended = false;
    while !open.is_empty() || !ended {
        let mut line = server.next().await;
        if line["type"] == "response" {
            assert_eq!(line["success"], true, "{line}");
            open.retain(|id| *id != line["id"]);
        }
        ended |= line["type"] == "agent_settled";
        // Updates are large; only their text is looked at.
        if let Some(object) = line.as_object_mut().filter(|object| object["type"] == "message_update") {
            object.remove("message");
            object["assistantMessageEvent"]["partial"] = Value::Null;
        }
        lines.push(line);
    }
    let answer = messages(&lines, "assistant")[0];
    assert_eq!(answer["stopReason"], "aborted");
    // What was told is what is kept.
    assert_eq!(text(answer), streamed(&lines));
    assert!(deltas().concat().starts_with(&streamed(&lines)));
    fake.closed(1).await;
    fake.push(Reply::say("well again"));
    let lines = server.run("next").await;
    assert_eq!(text(messages(&lines, "assistant")[0]), "well again");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_talks_a_lot_is_slowed_down_not_stored() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let command = "for i in $(seq 1 300); do seq 1 20000; done; echo end";
    fake.script([Reply::new().tool_call("c1", "bash", &json!({ "command": command })), Reply::say("done")]);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "get_state" })).await;
    let before = server.memory();
    server.send(json!({ "type": "prompt", "message": "go" })).await;
    let largest = server.until_at_rest().await;
    assert!(largest < before + (128 << 20), "memory went from {before} to {largest} bytes");
    let lines = server.until("agent_settled").await;
    let result = messages(&lines, "toolResult")[0];
    assert!(text(result).contains("end\n\n[Showing lines "), "{}", text(result));
    let file = result["details"]["fullOutputPath"].as_str().unwrap();
    let whole = std::fs::read_to_string(file).unwrap();
    assert_eq!(whole.lines().count(), 300 * 20_000 + 1);
    server.finish().await;
}
