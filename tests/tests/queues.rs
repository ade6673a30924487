//! Messages that wait while a run is active, and those sent while none is.

use dreb_tests::notation::{BEGIN, END, RESULT, SAY, USER, messages, sequence, shorts, text};
use dreb_tests::{FakeProvider, Gate, Home, Reply, Server};
use pretty_assertions::assert_eq;
use serde_json::json;

/// Holds the first answer, so that the run can be looked at.
async fn held(fake: &FakeProvider, server: &mut Server) -> Gate {
    let gate = Gate::new();
    fake.push(Reply::new().text_start().text_deltas(["one"]).gate(&gate).end_block());
    server.prompt("start").await;
    gate.reached().await;
    gate
}

#[tokio::test]
async fn steering_is_delivered_one_message_a_turn() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    let gate = held(&fake, &mut server).await;
    fake.script([Reply::say("two"), Reply::say("three")]);
    server.ok(json!({ "type": "steer", "message": "s1" })).await;
    server.ok(json!({ "type": "steer", "message": "s2" })).await;
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["isStreaming"], &state["pendingMessageCount"]), (&json!(true), &json!(2)));
    assert_eq!(
        server.ok(json!({ "type": "get_pending_messages" })).await,
        json!({
            "steering": ["s1", "s2"],
            "followUp": [],
            "steeringMessages": [{ "text": "s1" }, { "text": "s2" }],
            "followUpMessages": [],
        })
    );
    gate.release();
    let lines = server.until("agent_settled").await;
    let next: &[&str] = &["turn_start"];
    assert_eq!(
        shorts(&lines),
        sequence(&[BEGIN, SAY, &["turn_end"], USER, next, SAY, &["turn_end"], USER, next, SAY, END])
    );
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "s1", "s2"]);
    assert_eq!(server.ok(json!({ "type": "get_state" })).await["pendingMessageCount"], 0);
    server.finish().await;
    fake.assert_done();
}

#[tokio::test]
async fn steering_in_mode_all_is_delivered_at_once() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "set_steering_mode", "mode": "all" })).await;
    let gate = held(&fake, &mut server).await;
    fake.push(Reply::say("two"));
    server.ok(json!({ "type": "steer", "message": "s1" })).await;
    server.ok(json!({ "type": "steer", "message": "s2" })).await;
    gate.release();
    let lines = server.until("agent_settled").await;
    let next: &[&str] = &["turn_start"];
    assert_eq!(shorts(&lines), sequence(&[BEGIN, SAY, &["turn_end"], USER, USER, next, SAY, END]));
    assert_eq!(fake.request(2).await.roles(), ["user", "assistant", "user", "user"]);
    server.finish().await;
}

#[tokio::test]
async fn follow_ups_wait_until_the_agent_would_stop() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    let mut server = home.dreb().start();
    let gate = Gate::new();
    fake.script([
        Reply::new().gate(&gate).tool_call("c1", "read", &json!({ "path": "a.txt" })),
        Reply::say("after the tool"),
        Reply::say("after f1"),
        Reply::say("after f2"),
    ]);
    server.prompt("start").await;
    gate.reached().await;
    for (kind, message) in [("follow_up", "f1"), ("follow_up", "f2")] {
        server.ok(json!({ "type": kind, "message": message })).await;
    }
    gate.release();
    let lines = server.until("agent_settled").await;
    let call: &[&str] =
        &["S(assistant)", "U:toolcall_start", "U:toolcall_delta", "U:toolcall_end", "E(assistant)", "T+(c1)", "T-(c1)"];
    let next: &[&str] = &["turn_start"];
    let turn: &[&str] = &["turn_end"];
    assert_eq!(
        shorts(&lines),
        sequence(&[BEGIN, call, RESULT, turn, next, SAY, turn, USER, next, SAY, turn, USER, next, SAY, END])
    );
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "f1", "f2"]);
    server.finish().await;
}

#[tokio::test]
async fn follow_ups_in_mode_all_are_delivered_at_once() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "set_follow_up_mode", "mode": "all" })).await;
    let gate = held(&fake, &mut server).await;
    fake.script([Reply::say("two"), Reply::say("three")]);
    for (kind, message) in [("follow_up", "f1"), ("steer", "s1"), ("follow_up", "f2")] {
        server.ok(json!({ "type": kind, "message": message })).await;
    }
    gate.release();
    let lines = server.until("agent_settled").await;
    let next: &[&str] = &["turn_start"];
    let turn: &[&str] = &["turn_end"];
    assert_eq!(shorts(&lines), sequence(&[BEGIN, SAY, turn, USER, next, SAY, turn, USER, USER, next, SAY, END]));
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "s1", "f1", "f2"]);
    server.finish().await;
    fake.assert_done();
}

#[tokio::test]
async fn messages_queued_while_idle_wait_for_the_next_prompt() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([Reply::say("one"), Reply::say("two")]);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "steer", "message": "s" })).await;
    server.ok(json!({ "type": "follow_up", "message": "f" })).await;
    assert_eq!(server.ok(json!({ "type": "get_state" })).await["pendingMessageCount"], 2);
    assert_eq!(fake.requests().len(), 0);
    let lines = server.run("p").await;
    assert_eq!(shorts(&lines), sequence(&[BEGIN, USER, SAY, &["turn_end"], USER, &["turn_start"], SAY, END]));
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["p", "s", "f"]);
    server.finish().await;
}

#[tokio::test]
async fn cleared_messages_are_returned_and_not_delivered() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::say("one"));
    let mut server = home.dreb().start();
    let picture = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
    server.ok(json!({ "type": "steer", "message": "s", "images": [picture] })).await;
    server.ok(json!({ "type": "follow_up", "message": "f" })).await;
    assert_eq!(
        server.ok(json!({ "type": "clear_pending_messages" })).await,
        json!({
            "steering": ["s"],
            "followUp": ["f"],
            "steeringMessages": [{ "text": "s", "images": [picture] }],
            "followUpMessages": [{ "text": "f" }],
        })
    );
    let lines = server.run("p").await;
    assert_eq!(shorts(&lines), sequence(&[BEGIN, SAY, END]));
    server.finish().await;
}

#[tokio::test]
async fn a_prompt_to_a_busy_agent_fails_once_unless_it_says_how_to_queue() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    let gate = held(&fake, &mut server).await;
    fake.script([Reply::say("two"), Reply::say("three")]);
    let refused = server.request(json!({ "id": "busy", "type": "prompt", "message": "no" })).await;
    assert_eq!(
        refused,
        json!({
            "id": "busy",
            "type": "response",
            "command": "prompt",
            "success": false,
            "error": "Agent is already processing. Specify streamingBehavior ('steer' or 'followUp') to queue the message.",
        })
    );
    for (behaviour, message) in [("followUp", "f"), ("steer", "s")] {
        server.ok(json!({ "type": "prompt", "message": message, "streamingBehavior": behaviour })).await;
    }
    gate.release();
    let lines = server.until("agent_settled").await;
    // No second answer to the refused prompt, and no message of it.
    assert!(lines.iter().all(|line| line["type"] != "response"), "{:?}", shorts(&lines));
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "s", "f"]);
    server.finish().await;
}
