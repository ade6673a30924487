//! Several tool calls in one turn.

use std::time::Duration;

use dreb_tests::notation::{BEGIN, END, RESULT, SAY, messages, sequence, text, without_progress};
use dreb_tests::{DEADLINE, FakeProvider, Home, Reply, poll_until};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// The updates of calls whose arguments come in one piece.
fn calls(count: usize) -> Vec<&'static str> {
    let mut shorts = vec!["S(assistant)"];
    for _ in 0..count {
        shorts.extend(["U:toolcall_start", "U:toolcall_delta", "U:toolcall_end"]);
    }
    shorts.push("E(assistant)");
    shorts
}

fn result_ids(lines: &[Value]) -> Vec<String> {
    let turn = lines.iter().find(|line| line["type"] == "turn_end").unwrap();
    let results = turn["toolResults"].as_array().unwrap();
    results.iter().map(|result| result["toolCallId"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn one_succeeds_one_fails_and_one_is_killed_by_abort() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    fake.push(
        Reply::new()
            .tool_call("c1", "read", &json!({ "path": "a.txt" }))
            .tool_call("c2", "read", &json!({ "path": "missing.txt" }))
            .tool_call("c3", "bash", &json!({ "command": "echo begun; sleep 1000" })),
    );
    let mut server = home.dreb().start();
    server.prompt("go").await;
    let mut lines = server
        .until_line(|line| line["type"] == "tool_execution_update" && text(&line["partialResult"]).contains("begun"))
        .await;
    server.send(json!({ "id": "a", "type": "abort" })).await;
    lines.extend(server.until_short("R:abort").await);
    let shorts: Vec<_> = without_progress(&lines).into_iter().filter(|short| short != "agent_settled").collect();
    assert_eq!(
        shorts,
        sequence(&[
            BEGIN,
            &calls(3),
            &["T+(c1)", "T+(c2)", "T+(c3)"],
            &["T-(c1)"],
            RESULT,
            &["T!(c2)"],
            RESULT,
            &["T!(c3)"],
            RESULT,
            &["turn_end", "turn_start", "S(assistant)", "E(assistant:aborted)", "turn_end", "agent_end", "R:abort"],
        ])
    );
    let results = messages(&lines, "toolResult");
    assert_eq!(text(results[0]), "alpha");
    let missing = home.cwd().join("missing.txt");
    assert_eq!(text(results[1]), format!("ENOENT: no such file or directory, access '{}'", missing.display()));
    assert_eq!((&results[1]["isError"], &results[1]["details"]), (&json!(true), &json!({})));
    assert_eq!(text(results[2]), "begun\n\nCommand aborted");
    assert_eq!(result_ids(&lines), ["c1", "c2", "c3"]);
    assert_eq!(messages(&lines, "assistant")[1]["content"], json!([]));
    poll_until("the sleep to end", Duration::from_secs(1), || server.tool_processes().is_empty().then_some(())).await;
    assert_eq!(fake.requests().len(), 1, "nothing is asked after an abort");
    let _ = server.close_stdin_and_wait().await;
}

#[tokio::test]
async fn calls_run_at_the_same_time_and_are_reported_in_order() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    // Each waits for the other's file, and the first one ends last.
    let first = "touch one; until [ -e two ]; do sleep 0.01; done; until [ -e done ]; do sleep 0.01; done; echo first";
    let second = "touch two; until [ -e one ]; do sleep 0.01; done; echo second; touch done";
    fake.script([
        Reply::new().tool_call("c1", "bash", &json!({ "command": first })).tool_call(
            "c2",
            "bash",
            &json!({ "command": second }),
        ),
        Reply::say("done"),
    ]);
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    assert_eq!(
        without_progress(&lines),
        sequence(&[
            BEGIN,
            &calls(2),
            &["T+(c1)", "T+(c2)", "T-(c1)"],
            RESULT,
            &["T-(c2)"],
            RESULT,
            &["turn_end", "turn_start"],
            SAY,
            END,
        ])
    );
    let results: Vec<_> = messages(&lines, "toolResult").into_iter().map(text).collect();
    assert_eq!(results, ["first", "second"]);
    server.finish().await;
}

#[tokio::test]
async fn calls_that_cannot_start_are_reported_at_once_and_first() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    fake.script([
        Reply::new()
            .tool_call("c1", "read", &json!({ "path": "a.txt" }))
            .tool_call("c2", "no_such_tool", &json!({}))
            .tool_call("c3", "read", &json!({ "path": "a.txt" })),
        Reply::say("done"),
    ]);
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    assert_eq!(
        without_progress(&lines),
        sequence(&[
            BEGIN,
            &calls(3),
            &["T+(c1)", "T+(c2)", "T!(c2)"],
            RESULT,
            &["T+(c3)", "T-(c1)"],
            RESULT,
            &["T-(c3)"],
            RESULT,
            &["turn_end", "turn_start"],
            SAY,
            END,
        ])
    );
    assert_eq!(result_ids(&lines), ["c2", "c1", "c3"]);
    assert_eq!(text(messages(&lines, "toolResult")[0]), "Tool no_such_tool not found");
    let request = fake.request(2).await;
    let sent = request.message(-1)["content"].as_array().unwrap();
    let ids: Vec<_> = sent.iter().map(|block| block["tool_use_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["c2", "c1", "c3"]);
    assert_eq!(sent[0]["is_error"], true);
    server.finish().await;
}

#[tokio::test]
async fn edits_of_one_file_do_not_lose_each_other() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let words: Vec<String> = (0..12).map(|number| format!("word{number:02}")).collect();
    home.file("list.txt", words.join("\n") + "\n");
    let mut reply = Reply::new();
    for (number, word) in words.iter().enumerate() {
        // The same file by different names.
        let path = ["list.txt", "./list.txt", "sub/../list.txt"][number % 3];
        let edit = json!({ "path": path, "oldText": word, "newText": word.to_uppercase() });
        reply = reply.tool_call(&format!("c{number}"), "edit", &edit);
    }
    std::fs::create_dir(home.cwd().join("sub")).unwrap();
    fake.script([reply, Reply::say("done")]);
    // Naming the session after nine calls would ask the provider once more.
    home.settings(&json!({ "tabTitle": { "enabled": false } }));
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    for result in messages(&lines, "toolResult") {
        assert_eq!(result["isError"], false, "{}", text(result));
    }
    assert_eq!(home.read("list.txt"), words.join("\n").to_uppercase() + "\n");
    server.finish().await;
    fake.assert_done();
}

#[tokio::test]
async fn a_write_and_an_edit_of_one_file_happen_in_the_order_of_the_calls() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([
        Reply::new().tool_call("c1", "write", &json!({ "path": "new.txt", "content": "alpha\n" })).tool_call(
            "c2",
            "edit",
            &json!({ "path": "new.txt", "oldText": "alpha", "newText": "beta" }),
        ),
        Reply::say("done"),
    ]);
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    let results: Vec<_> = messages(&lines, "toolResult").into_iter().map(text).collect();
    assert_eq!(results, ["Successfully wrote 6 bytes to new.txt", "Successfully replaced text in new.txt."]);
    assert_eq!(home.read("new.txt"), "beta\n");
    server.finish().await;
}

#[tokio::test]
async fn a_process_left_in_the_background_does_not_hold_up_the_call() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([
        Reply::new().tool_call("c1", "bash", &json!({ "command": "sleep 1000 & echo started" })),
        Reply::say("done"),
    ]);
    let mut server = home.dreb().start();
    let begun = tokio::time::Instant::now();
    let lines = server.run("go").await;
    assert_eq!(text(messages(&lines, "toolResult")[0]), "started");
    assert!(begun.elapsed() < DEADLINE / 2);
    // It does not outlive the server: `finish` looks for it.
    server.finish().await;
}
