//! How it ends: shutdown, the last handle, the runtime, the death of the server. Nothing is left.

mod client_common;

use std::time::Duration;

use client_common::{empty, fixture, options, until};
use dreb_client::protocol::StopReason;
use dreb_client::protocol::message::AgentMessage;
use dreb_client::{CallError, ClientEvent, ExitReason, RpcClient};
use dreb_tests::process::{Process, living_in};
use dreb_tests::{FakeProvider, Gate, Home, Reply, poll_until, within};
use nix::sys::signal::Signal;
use pretty_assertions::assert_eq;
use serde_json::{Map, json};

/// A tool call whose processes do all they can to stay: they ignore signals, leave the group and the
/// session, and lose their parents.
fn stubborn() -> Reply {
    let command = "trap '' TERM INT HUP; setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 1000";
    Reply::new().tool_call("c1", "bash", &json!({ "command": command }))
}

/// Starts such a tool and waits until all five of its processes are there.
async fn with_stubborn_tool(client: &RpcClient, fake: &FakeProvider, home: &Home) {
    fake.push(stubborn());
    client.prompt("go").await.unwrap();
    let path = home.path();
    poll_until("the tool's processes", dreb_tests::DEADLINE, || {
        let sleeping = living_in(&path).iter().filter(|process| process.command == "sleep 1000").count();
        (sleeping == 4).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_leaves_no_process_and_the_whole_story() {
    let (fake, home, client) = fixture().await;
    let mut events = client.events();
    with_stubborn_tool(&client, &fake, &home).await;
    let notice = within("the shutdown", client.shutdown()).await;
    assert_eq!(notice.code(), Some(0), "{notice}");
    assert_eq!(living_in(&home.path()), []);
    // The run was ended in order before the server went.
    let all = until(&mut events, "agent_end").await;
    assert!(all.iter().any(|event| event.kind() == "tool_execution_end"));
    loop {
        match within("the last event", events.next()).await {
            Some(ClientEvent::Exited(notice)) => break assert!(notice.was_requested()),
            Some(ClientEvent::Event(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(events.next().await.is_none());
    assert!(matches!(client.prompt("more").await.unwrap_err(), CallError::Closed));
    assert!(!home.session_lines().is_empty());
}

#[tokio::test]
async fn dropping_the_last_handle_leaves_nothing_within_a_second_or_so() {
    let (fake, home, client) = fixture().await;
    with_stubborn_tool(&client, &fake, &home).await;
    let clone = client.clone();
    drop(client);
    assert!(clone.get_state().await.unwrap().is_streaming, "one is left");
    let begun = std::time::Instant::now();
    drop(clone);
    empty(&home, dreb_tests::DEADLINE).await;
    // Printed only: the machine may be busy.
    eprintln!("gone after {:?}", begun.elapsed());
}

#[test]
fn dropping_the_runtime_leaves_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (fake, home, client) = runtime.block_on(async {
        let (fake, home, client) = fixture().await;
        with_stubborn_tool(&client, &fake, &home).await;
        (fake, home, client)
    });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(async {
        empty(&home, dreb_tests::DEADLINE).await;
        match client.get_state().await.unwrap_err() {
            CallError::Exited(notice) => assert!(matches!(notice.reason(), ExitReason::RuntimeStopped)),
            other => panic!("{other}"),
        }
    });
    // Outside of any runtime.
    drop(client);
    drop(fake);
}

#[test]
fn the_last_handle_can_go_outside_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (_fake, home, client) = runtime.block_on(fixture());
    std::thread::spawn(move || drop(client)).join().unwrap();
    runtime.block_on(empty(&home, dreb_tests::DEADLINE));
}

#[tokio::test]
async fn a_killed_server_is_told_to_all_who_wait_and_its_tools_are_killed() {
    let (fake, home, client) = fixture().await;
    with_stubborn_tool(&client, &fake, &home).await;
    let mut events = client.events();
    let stderr = home.cwd().join("stderr");
    let mut calls: Vec<tokio::task::JoinHandle<CallError>> = Vec::new();
    for number in 0..10 {
        let client = client.clone();
        // Commands that are answered only at their end, each running for certain.
        let command = format!("echo {number} > '{}.{number}'; sleep 1000", stderr.display());
        calls.push(tokio::spawn(async move { client.bash(command).await.unwrap_err() }));
    }
    for number in 0..10 {
        let path = format!("{}.{number}", stderr.display());
        poll_until("a command to run", dreb_tests::DEADLINE, || std::path::Path::new(&path).exists().then_some(()))
            .await;
    }
    let waiting = client.clone();
    calls.push(tokio::spawn(async move { waiting.wait_for_idle().await.unwrap_err() }));
    let server = Process::find(client.pid().unwrap().cast_signed()).unwrap();
    server.signal(Signal::SIGKILL);
    let mut tails = Vec::new();
    for call in calls {
        match within("a call to fail", call).await.unwrap() {
            CallError::Exited(notice) => {
                assert_eq!((notice.signal(), notice.was_requested()), (Some(9), false));
                tails.push(notice.stderr_tail().to_owned());
            }
            other => panic!("{other}"),
        }
    }
    tails.dedup();
    assert_eq!(tails, [client.stderr_tail()], "all with the same standard error");
    assert_eq!(living_in(&home.path()), [], "told once everything was cleared away");
    loop {
        match within("the end", events.next()).await {
            Some(ClientEvent::Exited(notice)) => break assert_eq!(notice.signal(), Some(9)),
            Some(_) => {}
            None => panic!("the end is missing"),
        }
    }
    assert!(matches!(client.get_state().await.unwrap_err(), CallError::Exited(_)));
    assert_eq!(client.shutdown().await.signal(), Some(9));
}

#[tokio::test]
async fn what_a_dying_server_says_on_standard_error_reaches_the_calls() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    // A real server whose last words are known: the diagnostics of the real thing vary.
    let words = "echo last words >&2";
    let wrapper = ["sh", "-c", &format!("{words}; exec \"$@\""), "sh"].map(str::to_owned);
    let client = client_common::start(options(&home).command_prefix(wrapper)).await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.bash("sleep 1000").await }
    });
    let path = home.path();
    poll_until("the command", dreb_tests::DEADLINE, || {
        living_in(&path).iter().any(|process| process.command.contains("sleep 1000")).then_some(())
    })
    .await;
    Process::find(client.pid().unwrap().cast_signed()).unwrap().signal(Signal::SIGKILL);
    match within("the call", call).await.unwrap().unwrap_err() {
        CallError::Exited(notice) => {
            assert!(notice.stderr_tail().contains("last words\n"), "{notice}");
            assert!(notice.to_string().starts_with("killed by SIGKILL; standard error: "), "{notice}");
        }
        other => panic!("{other}"),
    }
    // With a command prefix nobody but the server itself clears away.
    for process in living_in(&home.path()) {
        process.signal(Signal::SIGKILL);
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_killed_with_its_tools() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let client = client_common::start(options(&home).grace_period(Duration::from_millis(100))).await;
    with_stubborn_tool(&client, &fake, &home).await;
    let server = Process::find(client.pid().unwrap().cast_signed()).unwrap();
    server.signal(Signal::SIGSTOP);
    let notice = within("the shutdown", client.shutdown()).await;
    assert_eq!(notice.signal(), Some(9));
    assert_eq!(living_in(&home.path()), []);
}

#[tokio::test]
async fn a_terminated_server_tells_its_story_first() {
    let (fake, _home, client) = fixture().await;
    let gate = Gate::new();
    fake.push(Reply::new().text_start().text_deltas(["half"]).gate(&gate).hang());
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.prompt_and_wait("go").await }
    });
    gate.reached().await;
    let mut events = client.events_without_updates();
    Process::find(client.pid().unwrap().cast_signed()).unwrap().signal(Signal::SIGTERM);
    let notice = within("the end", client.exited()).await;
    assert_eq!((notice.code(), notice.was_requested()), (Some(143), false));
    let mut reason = None;
    while let Some(event) = events.next().await {
        if let Some(dreb_client::protocol::Event::MessageEnd(end)) = event.event()
            && let AgentMessage::Assistant(answer) = &end.message
        {
            reason = Some(answer.stop_reason.clone());
        }
    }
    assert_eq!(reason, Some(StopReason::Aborted));
    // The run was over or the server was gone, whichever was seen first.
    match run.await.unwrap() {
        Ok(outcome) => assert_eq!(outcome.stop_reason(), Some(&StopReason::Aborted)),
        Err(CallError::Exited(notice)) => assert_eq!(notice.code(), Some(143)),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn calls_that_race_with_a_shutdown_end_one_way_or_the_other() {
    let (_fake, home, client) = fixture().await;
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                client.call_raw("get_state", Map::new(), None).await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    client.shutdown().await;
    for call in calls {
        match within("a call", call).await.unwrap() {
            Ok(state) => assert!(state["sessionId"].is_string()),
            Err(CallError::Closed) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(living_in(&home.path()), []);
}
