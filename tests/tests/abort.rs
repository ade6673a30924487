//! `abort`, and the end of standard input, at every stage of a run.

use std::time::Duration;

use dreb_tests::notation::{BEGIN, RESULT, event, messages, milestones, sequence, shorts, text, without_progress};
use dreb_tests::process::Process;
use dreb_tests::{FakeProvider, Gate, Home, Reply, Server, poll_until};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// How a run is ended from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Abort,
    EndOfInput,
}

const BOTH: [How; 2] = [How::Abort, How::EndOfInput];

/// Ends the run and returns all lines up to the end, in front of them `lines`. After an abort the
/// server is asked for a sign of life and then ended too; in both cases it must exit well and leave
/// nobody behind.
async fn stop(how: How, mut lines: Vec<Value>, mut server: Server) -> Vec<Value> {
    if how == How::Abort {
        server.send(json!({ "id": "a", "type": "abort" })).await;
        lines.extend(server.until_short("R:abort").await);
        server.ok(json!({ "type": "get_state" })).await;
    }
    let home = server.home().to_owned();
    let (rest, status) = server.close_stdin_and_wait().await;
    lines.extend(rest);
    assert_eq!(status.code(), Some(0), "{how:?}");
    poll_until("the last process to end", Duration::from_secs(1), || {
        dreb_tests::process::living_in(&home).is_empty().then_some(())
    })
    .await;
    lines
}

/// What a run ends with; when `agent_settled` comes in relation to the response is not laid down.
fn ending(how: How) -> Vec<&'static str> {
    match how {
        How::Abort => vec!["turn_end", "agent_end", "R:abort"],
        How::EndOfInput => vec!["turn_end", "agent_end"],
    }
}

fn unsettled(shorts: Vec<String>) -> Vec<String> {
    shorts.into_iter().filter(|short| short != "agent_settled").collect()
}

fn assert_aborted(message: &Value) {
    assert_eq!((&message["stopReason"], &message["errorMessage"]), (&json!("aborted"), &json!("Request was aborted.")));
}

#[tokio::test]
async fn before_the_first_byte() {
    for how in BOTH {
        for model in ["fake/fake-claude", "fake-openai/fake-gpt"] {
            let fake = FakeProvider::start().await;
            let home = Home::new(&fake);
            let gate = Gate::new();
            fake.push(Reply::say("never").gate_before(&gate));
            let mut server = home.dreb().model(model).start();
            server.prompt("go").await;
            gate.reached().await;
            let lines = stop(how, Vec::new(), server).await;
            let answer: &[&str] = &["S(assistant)", "E(assistant:aborted)"];
            assert_eq!(unsettled(shorts(&lines)), sequence(&[BEGIN, answer, &ending(how)]), "{how:?} {model}");
            let message = messages(&lines, "assistant")[0];
            assert_aborted(message);
            assert_eq!(message["content"], json!([]));
            assert_eq!(event(&lines, "turn_end")["toolResults"], json!([]));
            fake.closed(1).await;
        }
    }
}

#[tokio::test]
async fn after_the_headers() {
    for how in BOTH {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        let gate = Gate::new();
        fake.push(Reply::new().gate(&gate).hang());
        let mut server = home.dreb().start();
        server.prompt("go").await;
        gate.reached().await;
        let lines = stop(how, Vec::new(), server).await;
        let answer: &[&str] = &["S(assistant)", "E(assistant:aborted)"];
        assert_eq!(unsettled(shorts(&lines)), sequence(&[BEGIN, answer, &ending(how)]), "{how:?}");
        fake.closed(1).await;
    }
}

#[tokio::test]
async fn in_mid_stream() {
    for how in BOTH {
        for model in ["fake/fake-claude", "fake-openai/fake-gpt"] {
            let fake = FakeProvider::start().await;
            let home = Home::new(&fake);
            fake.push(Reply::new().text_start().text_deltas(["half an"]).hang());
            let mut server = home.dreb().model(model).start();
            server.prompt("go").await;
            let lines = server.until_short("U:text_delta").await;
            let lines = stop(how, lines, server).await;
            let answer: &[&str] = &["S(assistant)", "U:text_start", "U:text_delta", "E(assistant:aborted)"];
            assert_eq!(unsettled(shorts(&lines)), sequence(&[BEGIN, answer, &ending(how)]), "{how:?} {model}");
            let message = messages(&lines, "assistant")[0];
            assert_aborted(message);
            assert_eq!(message["content"], json!([{ "type": "text", "text": "half an" }]));
            let all = event(&lines, "agent_end")["messages"].as_array().unwrap();
            assert_eq!(all.len(), 2);
            fake.closed(1).await;
            let stored = home.session_lines();
            assert_eq!(&stored.last().unwrap()["message"], message, "the partial answer is stored");
        }
    }
}

#[tokio::test]
async fn in_mid_arguments_of_a_call() {
    for how in BOTH {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().tool_call_start("c1", "read").tool_call_deltas(["{\"path\":\"a"]).hang());
        let mut server = home.dreb().start();
        server.prompt("go").await;
        let lines = server.until_short("U:toolcall_delta").await;
        let lines = stop(how, lines, server).await;
        let message = messages(&lines, "assistant")[0];
        assert_aborted(message);
        // No working keys, and the call is not run.
        assert_eq!(
            message["content"],
            json!([{ "type": "toolCall", "id": "c1", "name": "read", "arguments": { "path": "a" } }])
        );
        assert!(lines.iter().all(|line| line["type"] != "tool_execution_start"), "{how:?}");
    }
}

/// Waits for both sleeps of the command below.
async fn two_sleeps(server: &Server) -> Vec<Process> {
    poll_until("two sleeps", dreb_tests::DEADLINE, || {
        let mut all = server.tool_processes();
        all.retain(|process| process.command == "sleep 1000");
        (all.len() == 2).then_some(all)
    })
    .await
}

const SLEEPS: &str = "echo begun; sleep 1000 & sleep 1000";

#[tokio::test]
async fn in_a_tool() {
    for how in BOTH {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().tool_call("c1", "bash", &json!({ "command": SLEEPS })));
        let mut server = home.dreb().start();
        server.prompt("go").await;
        let lines = server
            .until_line(|line| {
                line["type"] == "tool_execution_update" && text(&line["partialResult"]).contains("begun")
            })
            .await;
        let sleeps = two_sleeps(&server).await;
        let lines = if how == How::Abort {
            let mut lines = lines;
            server.send(json!({ "id": "a", "type": "abort" })).await;
            lines.extend(server.until_short("R:abort").await);
            for sleep in &sleeps {
                sleep.gone_within(Duration::from_secs(1)).await;
            }
            stop(How::EndOfInput, lines, server).await
        } else {
            stop(how, lines, server).await
        };
        for sleep in &sleeps {
            assert!(!sleep.alive());
        }
        let call: &[&str] = &[
            "S(assistant)",
            "U:toolcall_start",
            "U:toolcall_delta",
            "U:toolcall_end",
            "E(assistant)",
            "T+(c1)",
            "T!(c1)",
        ];
        let extra: &[&str] = &["turn_end", "turn_start", "S(assistant)", "E(assistant:aborted)"];
        assert_eq!(
            unsettled(without_progress(&lines)),
            sequence(&[BEGIN, call, RESULT, extra, &ending(how)]),
            "{how:?}"
        );
        let result = messages(&lines, "toolResult")[0];
        assert_eq!(text(result), "begun\n\nCommand aborted");
        assert_eq!((&result["isError"], &result["details"]), (&json!(true), &json!({})));
        assert_eq!(fake.requests().len(), 1);
    }
}

#[tokio::test]
async fn between_turns() {
    for how in BOTH {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        home.file("a.txt", "alpha");
        let gate = Gate::new();
        fake.script([
            Reply::new().tool_call("c1", "read", &json!({ "path": "a.txt" })),
            Reply::say("never").gate_before(&gate),
        ]);
        let mut server = home.dreb().start();
        server.prompt("go").await;
        gate.reached().await;
        let lines = stop(how, Vec::new(), server).await;
        let turn: &[&str] = &["turn_end", "turn_start", "S(assistant)", "E(assistant:aborted)"];
        let call: &[&str] = &["S(assistant)", "E(assistant)", "T+(c1)", "T-(c1)"];
        assert_eq!(unsettled(milestones(&lines)), sequence(&[BEGIN, call, RESULT, turn, &ending(how)]), "{how:?}");
        fake.closed(2).await;
    }
}

#[tokio::test]
async fn while_idle() {
    for how in BOTH {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        let mut server = home.dreb().start();
        server.ok(json!({ "type": "get_state" })).await;
        let lines = stop(how, Vec::new(), server).await;
        let expected: &[&str] = if how == How::Abort { &["R:abort"] } else { &[] };
        assert_eq!(shorts(&lines), expected);
        assert_eq!(dreb_tests::home::files(&home.sessions()), Vec::<std::path::PathBuf>::new());
    }
}

#[tokio::test]
async fn while_a_retry_is_waited_for() {
    for how in BOTH {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        home.settings(&json!({ "retry": { "baseDelayMs": 600_000 } }));
        fake.push(Reply::error(529, "overloaded_error", "Overloaded"));
        let mut server = home.dreb().start();
        server.prompt("go").await;
        let lines = server.until("auto_retry_start").await;
        let state = server.ok(json!({ "type": "get_state" })).await;
        assert_eq!(
            (&state["isStreaming"], &state["isRetrying"], &state["retryAttempt"]),
            (&json!(false), &json!(true), &json!(1))
        );
        assert!(lines.iter().all(|line| line["type"] != "agent_settled"), "there is a retry to come");
        let lines = stop(how, lines, server).await;
        let mut expected = vec!["auto_retry_start", "auto_retry_end"];
        if how == How::Abort {
            expected.push("R:abort");
        }
        let shorts = unsettled(shorts(&lines));
        assert_eq!(shorts[shorts.len() - expected.len()..], expected, "{how:?}");
        assert_eq!(
            event(&lines, "auto_retry_end"),
            &json!({ "type": "auto_retry_end", "success": false, "attempt": 1, "finalError": "Retry cancelled" })
        );
        assert_eq!(fake.requests().len(), 1);
    }
}

#[tokio::test]
async fn while_a_broken_stream_is_about_to_be_tried_again() {
    for how in BOTH {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().text_start().text_deltas(["a"]).drop_connection());
        let mut server = home.dreb().start();
        server.prompt("go").await;
        let lines = server.until("stream_retry").await;
        let lines = stop(how, lines, server).await;
        assert_eq!(messages(&lines, "assistant").len(), 1);
        assert_eq!(messages(&lines, "assistant")[0]["stopReason"], "aborted");
        assert_eq!(unsettled(shorts(&lines)).last().map(String::as_str), ending(how).last().copied());
        assert_eq!(fake.requests().len(), 1);
    }
}

#[tokio::test]
async fn the_end_of_input_ends_a_shell_command_too() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    server.send(json!({ "id": "b", "type": "bash", "command": SLEEPS })).await;
    two_sleeps(&server).await;
    let lines = stop(How::EndOfInput, Vec::new(), server).await;
    assert_eq!(shorts(&lines), ["R:bash"]);
    assert_eq!((&lines[0]["id"], &lines[0]["data"]["cancelled"]), (&json!("b"), &json!(true)));
    assert_eq!(lines[0]["data"].get("exitCode"), None);
}

#[tokio::test]
async fn abort_bash_ends_all_shell_commands_and_nothing_else() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    server.send(json!({ "id": "b1", "type": "bash", "command": "echo one; exec sleep 1000" })).await;
    server.send(json!({ "id": "b2", "type": "bash", "command": "echo two; exec sleep 1000" })).await;
    two_sleeps(&server).await;
    server.ok(json!({ "type": "abort_bash" })).await;
    for (id, output) in [("b1", "one\n"), ("b2", "two\n")] {
        let response = server.response(&json!(id)).await;
        assert_eq!(response["data"], json!({ "output": output, "cancelled": true, "truncated": false }), "{response}");
    }
    server.finish().await;
}

#[tokio::test]
async fn commands_that_were_read_are_answered_at_the_end_of_input() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    let commands: String = (0..100).map(|id| format!("{}\n", json!({ "id": id, "type": "get_state" }))).collect();
    server.send_raw(commands).await;
    let (lines, status) = server.close_stdin_and_wait().await;
    let ids: Vec<_> = lines.iter().map(|line| line["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn queued_messages_stay_and_the_next_run_delivers_them() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::new().text_start().text_deltas(["half"]).hang());
    let mut server = home.dreb().start();
    server.prompt("first").await;
    server.until_short("U:text_delta").await;
    server.ok(json!({ "type": "steer", "message": "s" })).await;
    server.ok(json!({ "type": "abort" })).await;
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["isStreaming"], &state["pendingMessageCount"]), (&json!(false), &json!(1)));
    server.until("agent_settled").await;
    fake.push(Reply::say("whole"));
    let lines = server.run("second").await;
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["second", "s"]);
    // The aborted answer stays in the conversation but is not sent.
    assert_eq!(fake.request(2).await.roles(), ["user", "user", "user"]);
    let all = server.ok(json!({ "type": "get_messages" })).await;
    assert_eq!(all["messages"].as_array().unwrap().len(), 5);
    server.finish().await;
}

#[tokio::test]
async fn an_abort_sent_twice_is_answered_twice() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::new().text_start().text_deltas(["half"]).hang());
    let mut server = home.dreb().start();
    server.prompt("go").await;
    server.until_short("U:text_delta").await;
    server.send_raw("{\"id\":1,\"type\":\"abort\"}\n{\"id\":2,\"type\":\"abort\"}\n").await;
    assert_eq!(server.response(&json!(1)).await["success"], true);
    assert_eq!(server.response(&json!(2)).await["success"], true);
    let lines = server.until("agent_settled").await;
    assert_eq!(lines.iter().filter(|line| line["type"] == "agent_end").count(), 1);
    server.finish().await;
}

#[tokio::test]
async fn abort_answers_soon_though_a_tool_ignores_the_world() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let deaf = "trap '' TERM INT HUP; echo begun; while :; do sleep 1000; done";
    fake.push(Reply::new().tool_call("c1", "bash", &json!({ "command": deaf })));
    let mut server = home.dreb().start();
    server.prompt("go").await;
    server
        .until_line(|line| line["type"] == "tool_execution_update" && text(&line["partialResult"]).contains("begun"))
        .await;
    let sent = tokio::time::Instant::now();
    server.ok(json!({ "type": "abort" })).await;
    assert!(sent.elapsed() < Duration::from_secs(3), "{:?}", sent.elapsed());
    poll_until("the shell to end", Duration::from_secs(1), || server.tool_processes().is_empty().then_some(())).await;
    server.until("agent_settled").await;
    server.finish().await;
}
