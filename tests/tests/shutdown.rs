//! Signals, and clients that go away.

use std::time::Duration;

use dreb_tests::notation::{BEGIN, messages, sequence, shorts, text};
use dreb_tests::{FakeProvider, Gate, Home, Reply, poll_until};
use nix::sys::signal::Signal;
use pretty_assertions::assert_eq;
use serde_json::json;

const SIGNALS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

#[tokio::test]
async fn a_signal_ends_the_run_in_order() {
    for signal in SIGNALS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().text_start().text_deltas(["half"]).hang());
        let mut server = home.dreb().start();
        server.prompt("go").await;
        let mut lines = server.until_short("U:text_delta").await;
        server.signal(signal);
        let (rest, status) = server.wait().await;
        lines.extend(rest);
        let answer: &[&str] = &["S(assistant)", "U:text_start", "U:text_delta", "E(assistant:aborted)"];
        let mut shorts = shorts(&lines);
        shorts.retain(|short| short != "agent_settled");
        assert_eq!(shorts, sequence(&[BEGIN, answer, &["turn_end", "agent_end"]]), "{signal}");
        assert_eq!(status.code(), Some(128 + signal as i32), "{signal}: {status:?}");
        fake.closed(1).await;
        let stored = home.session_lines();
        assert_eq!(text(&stored.last().unwrap()["message"]), "half");
    }
}

#[tokio::test]
async fn a_signal_ends_an_idle_server() {
    for signal in SIGNALS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        let mut server = home.dreb().start();
        server.ok(json!({ "type": "get_version" })).await;
        server.signal(signal);
        let (lines, status) = server.wait().await;
        assert_eq!(lines, Vec::<serde_json::Value>::new());
        assert_eq!(status.code(), Some(128 + signal as i32), "{signal}: {status:?}");
    }
}

#[tokio::test]
async fn a_signal_ends_the_tools_too() {
    for signal in SIGNALS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        let command = "trap '' TERM INT HUP; sleep 1000 & setsid sleep 1000 & echo begun; sleep 1000";
        fake.push(Reply::new().tool_call("c1", "bash", &json!({ "command": command })));
        let mut server = home.dreb().start();
        server.prompt("go").await;
        server
            .until_line(|line| {
                line["type"] == "tool_execution_update" && text(&line["partialResult"]).contains("begun")
            })
            .await;
        server.signal(signal);
        let (lines, status) = server.wait().await;
        assert_eq!(status.code(), Some(128 + signal as i32));
        assert_eq!(text(messages(&lines, "toolResult")[0]), "begun\n\nCommand aborted");
        poll_until("the last process to end", Duration::from_secs(1), || {
            dreb_tests::process::living_in(server.home()).is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_second_signal_ends_a_server_that_cannot_say_goodbye() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let full = Gate::new();
    let long = "x".repeat(200_000);
    // More than any buffer between the server and a client that does not read.
    fake.push(Reply::new().text_start().text_deltas(vec![long; 300]).gate(&full).hang());
    let mut server = home.dreb().start();
    server.prompt("go").await;
    server.until_at_rest().await;
    server.signal(Signal::SIGTERM);
    server.signal(Signal::SIGTERM);
    // Standard output is not read: it must not wait for that.
    let status = server.exit().await;
    assert_eq!(status.code(), Some(128 + Signal::SIGTERM as i32));
}

#[tokio::test]
async fn a_client_that_is_gone_ends_the_server() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let gate = Gate::new();
    let command = json!({ "command": "sleep 1000" });
    fake.push(Reply::new().tool_call("c1", "bash", &command).gate(&gate));
    let mut server = home.dreb().start();
    server.prompt("go").await;
    gate.reached().await;
    // Only its end of the output: a client that has crashed loses both, one at a time.
    server.close_stdout();
    gate.release();
    let status = server.exit().await;
    assert!(status.code().is_some(), "it ends by itself: {status:?}");
    assert!(!server.stderr().contains("panicked"), "{}", server.stderr());
    poll_until("the last process to end", Duration::from_secs(2), || {
        dreb_tests::process::living_in(server.home()).is_empty().then_some(())
    })
    .await;
}
