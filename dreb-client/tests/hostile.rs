//! Servers that break the rules: garbage, floods, lies, and processes that do not want to end.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{agent_end, agent_start, connect, message, success, text_delta};
use dreb_client::protocol::session::GetState;
use dreb_client::{CallError, ClientEvent, ExitReason, RpcClient, RpcClientOptions, StartError};
use pretty_assertions::assert_eq;
use serde_json::{Map, Value, json};

/// Answers the first command, which is always `req-1`.
const HANDSHAKE: &str = r#"read -r line
echo '{"id":"req-1","type":"response","command":"get_version","success":true,"data":{"version":"9"}}'
"#;

/// Options that run a shell script in place of a server. The server's arguments become those of the
/// script.
fn script(text: &str) -> RpcClientOptions {
    let words = ["sh", "-c", text];
    RpcClientOptions::new().command_prefix(words).binary("server").grace_period(Duration::from_millis(200))
}

/// Like [`script`], but found as a binary, so that what it leaves behind is cleared away.
struct Server(tempfile::TempDir);

impl Server {
    fn new(text: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (source, path) = (folder.path().join("source"), folder.path().join("server"));
        std::fs::write(&source, format!("#!/bin/sh\n{text}")).unwrap();
        // By another process: a file that this one has open for writing while another test forks could
        // not be executed.
        assert!(std::process::Command::new("cp").args([&source, &path]).status().unwrap().success());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn options(&self) -> RpcClientOptions {
        RpcClientOptions::new().binary(self.0.path().join("server")).grace_period(Duration::from_millis(200))
    }

    /// The process whose number the script wrote to this file.
    async fn pid(&self, name: &str) -> i32 {
        let path = self.0.path().join(name);
        let mut pid = None;
        until("no pid was written", || {
            pid = std::fs::read_to_string(&path).ok().and_then(|text| text.strip_suffix('\n')?.parse().ok());
            pid.is_some()
        })
        .await;
        pid.unwrap()
    }
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    tokio::time::timeout(Duration::from_secs(20), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn garbage_is_reported_line_by_line_and_does_not_hide_the_answer() {
    let garbage: [(&[u8], &str); 9] = [
        (b"Last login: never", ""),
        (b"\xff\xfe\x00\x01", ""),
        (b"{\"type\":\"agent_end\"", ""),
        (b"{\"type\":\"agent_end\",\"messages\":{}}", ""),
        (b"{\"type\":5}", "an object without a `type`"),
        (b"[]", ""),
        (b"{\"type\":\"response\",\"success\":true}", "a response without an id"),
        (b"{\"id\":\"req-777\",\"type\":\"response\",\"success\":true}", "a response to a request that was never sent"),
        (b"{\"id\":7,\"type\":\"response\",\"success\":true}", "a response to no request of this client"),
    ];
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events();
    let deep = "[".repeat(1_000_000);
    let (text, ()) = tokio::join!(client.get_last_assistant_text(), async {
        let request = peer.expect("get_last_assistant_text").await;
        for (line, _) in garbage {
            peer.send_bytes(&[line, b"\r\n\n"].concat()).await;
        }
        for line in [format!("{{\"type\":{deep}"), format!("{{\"type\":\"x\",\"a\":{deep}"), deep.clone()] {
            peer.send_bytes(format!("{line}\n").as_bytes()).await;
        }
        peer.answer(&request, json!({"text": "found"})).await;
    });
    assert_eq!(text.unwrap().as_deref(), Some("found"));
    for (line, error) in garbage {
        match events.next().await {
            Some(ClientEvent::Malformed(report)) => {
                assert_eq!(report.line, String::from_utf8_lossy(line));
                assert_eq!(report.length, line.len());
                assert!(!report.error.is_empty() && (error.is_empty() || report.error == error), "{report:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..3 {
        assert!(matches!(events.next().await, Some(ClientEvent::Malformed(report)) if report.line.len() == 64 << 10));
    }
}

#[tokio::test]
async fn answers_of_the_wrong_shape_name_what_is_wrong_with_them() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for data in ["null", "[]", "{\"isStreaming\":\"yes\"}", "17", &deep] {
        let (result, ()) = tokio::join!(client.get_state(), async {
            let request = peer.expect("get_state").await;
            let line = format!(r#"{{"id":{},"type":"response","success":true,"data":{data}}}"#, request["id"]);
            peer.send_bytes(format!("{line}\n").as_bytes()).await;
        });
        match result.unwrap_err() {
            CallError::Protocol { command, reason, .. } => {
                assert_eq!(command, "get_state");
                assert!(!reason.is_empty() && reason.len() < 1000, "{reason}");
            }
            other => panic!("{other}"),
        }
    }
    // A client that was told nonsense goes on.
    let (result, ()) = tokio::join!(client.abort(), async {
        let request = peer.expect("abort").await;
        peer.ack(&request).await;
    });
    result.unwrap();
}

#[tokio::test]
async fn a_second_answer_to_the_same_request_reaches_nobody() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events();
    for round in 1..=3 {
        let (text, ()) = tokio::join!(client.get_last_assistant_text(), async {
            let request = peer.expect("get_last_assistant_text").await;
            for text in ["first", "second", "third"] {
                peer.answer(&request, json!({"text": text})).await;
            }
            peer.send(&agent_end()).await;
        });
        assert_eq!(text.unwrap().as_deref(), Some("first"));
        assert_eq!(events.next().await.unwrap().event().unwrap().kind(), "agent_end", "no report of it");
        assert_eq!(client.late_answers(), 2 * round);
    }
}

#[tokio::test]
async fn half_lines_and_single_bytes_make_up_whole_messages() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events();
    let (text, ()) = tokio::join!(client.get_last_assistant_text(), async {
        let request = peer.expect("get_last_assistant_text").await;
        let lines = format!("{}\n{}\n", text_delta("ä€𝄞"), success(&request, json!({"text": "ö\u{2028}"})));
        for byte in lines.as_bytes() {
            peer.send_bytes(&[*byte]).await;
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(text.unwrap().as_deref(), Some("ö\u{2028}"));
    assert_eq!(events.next().await.unwrap().event().unwrap().text_delta(), Some("ä€𝄞"));
}

#[tokio::test]
async fn a_stream_that_makes_no_sense_has_no_partial_message_and_does_no_harm() {
    let update = |sub: Value| json!({"type": "message_update", "assistantMessageEvent": sub});
    let huge = u64::from(u32::MAX);
    let subs = [
        json!({"type": "text_delta", "contentIndex": 0, "delta": "a"}),
        json!({"type": "text_start", "contentIndex": huge}),
        json!({"type": "text_end", "contentIndex": 3, "content": "x"}),
        json!({"type": "toolcall_delta", "contentIndex": 0, "delta": "}}]]"}),
        json!({"type": "text_start", "contentIndex": 0}),
        json!({"type": "text_start", "contentIndex": 0}),
        json!({"type": "thinking_end", "contentIndex": 0, "content": "other kind"}),
        json!({"type": "toolcall_start", "contentIndex": 1}),
        json!({"type": "never heard of", "contentIndex": "x"}),
    ];
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events();
    for begins in [false, true] {
        if begins {
            peer.send(&message("message_start", &common::answer_message(""))).await;
            assert!(events.next().await.unwrap().event().is_some());
        }
        for sub in &subs {
            peer.send(&update(sub.clone())).await;
            match events.next().await {
                Some(ClientEvent::Event(event)) => {
                    // Whatever it is, it can be looked at.
                    let _ = event.partial().map(|partial| (partial.to_message(), partial.text()));
                    assert!(begins || event.partial().is_none());
                }
                other => panic!("{other:?}"),
            }
        }
    }
    peer.send(&agent_end()).await;
    assert_eq!(events.next().await.unwrap().event().unwrap().kind(), "agent_end");
    assert!(client.partial().is_none());
}

#[tokio::test]
async fn a_flood_of_tiny_lines_counts_for_the_room_it_takes() {
    // Two bytes a line: by their length alone, a budget of a mebibyte would hold half a million reports.
    let (client, mut peer) = connect(RpcClientOptions::new().event_budget(1 << 20)).await;
    let mut unread = client.events();
    let written = Arc::new(AtomicUsize::new(0));
    let writer = tokio::spawn({
        let written = Arc::clone(&written);
        async move {
            let chunk = "x\n".repeat(1000);
            while peer.try_send_bytes(chunk.as_bytes()).await {
                written.fetch_add(1000, Ordering::Relaxed);
            }
        }
    });
    // Everything on this one thread runs until the peer can write no more.
    let mut last = usize::MAX;
    while last != written.load(Ordering::Relaxed) {
        last = written.load(Ordering::Relaxed);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    // What the budget holds, a read, and what the pipe holds.
    assert!((1000..100_000).contains(&last), "{last} lines for a budget of a mebibyte");
    // Nobody is held up for good: who reads gets every line.
    for _ in 0..last + 10_000 {
        assert!(matches!(unread.next().await, Some(ClientEvent::Malformed(report)) if report.line == "x"));
    }
    drop(client);
    writer.await.unwrap();
}

#[tokio::test]
async fn a_million_events_at_once_are_read_without_piling_up() {
    const EVENTS: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    // `yes` writes as fast as a pipe takes it.
    let text = format!(
        "{HANDSHAKE}yes '{{\"type\":\"turn_start\"}}' | head -n {EVENTS}\n\
         echo '{{\"type\":\"agent_settled\"}}'; cat >/dev/null"
    );
    let client = RpcClient::start(script(&text).event_budget(1 << 20)).await.unwrap();
    let mut events = client.events();
    let mut seen = 0;
    loop {
        match events.next().await {
            Some(ClientEvent::Event(event)) if event.kind() == "turn_start" => seen += 1,
            Some(ClientEvent::Event(event)) if event.kind() == "agent_settled" => break,
            other => panic!("{other:?}"),
        }
    }
    // What came before the subscription went to nobody.
    assert!((1..=EVENTS).contains(&seen), "{seen}");
    assert_eq!(client.shutdown().await.code(), Some(0));
}

#[tokio::test]
async fn a_line_that_hardly_ends_is_skipped() {
    let text =
        format!("{HANDSHAKE}head -c 200000000 /dev/zero; echo; echo '{{\"type\":\"turn_start\"}}'; cat >/dev/null");
    let client = RpcClient::start(script(&text).max_line(1 << 20)).await.unwrap();
    let mut events = client.events();
    let Some(ClientEvent::Malformed(line)) = events.next().await else { panic!("a report is due") };
    assert_eq!((line.length, line.line.as_str()), (200_000_000, ""));
    assert_eq!(line.error, "longer than the limit of 1048576 bytes");
    assert_eq!(events.next().await.unwrap().event().unwrap().kind(), "turn_start");
    client.shutdown().await;
}

#[tokio::test]
async fn a_server_that_says_only_garbage_is_a_timeout_with_its_words() {
    let options = script("echo oops >&2; yes garbage").start_timeout(Duration::from_millis(300));
    match RpcClient::start(options).await.unwrap_err() {
        StartError::HandshakeTimeout { stderr_tail, after } => {
            assert_eq!((stderr_tail.as_str(), after), ("oops\n", Duration::from_millis(300)));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_first_answer_of_the_wrong_shape_is_no_start() {
    let answer = r#"{"id":"req-1","type":"response","command":"get_version","success":true,"data":{"version":5}}"#;
    let server = Server::new(&format!("echo $$ > \"$0.pid\"; read -r line; echo '{answer}'; exec sleep 1000"));
    match RpcClient::start(server.options()).await.unwrap_err() {
        StartError::Protocol(CallError::Protocol { command, id, .. }) => {
            assert_eq!((command.as_str(), id.as_str()), ("get_version", "req-1"));
        }
        other => panic!("{other}"),
    }
    let pid = server.pid("server.pid").await;
    until("the server lives on", || !is_alive(pid)).await;
}

#[tokio::test]
async fn a_server_that_closes_its_output_but_lives_fails_the_calls_at_once_and_is_ended() {
    // It would take input for ever and ignores every polite request.
    let text = format!("trap '' TERM\n{HANDSHAKE}exec >&-\necho closed >&2\nwhile :; do sleep 1000; done");
    let client = RpcClient::start(script(&text)).await.unwrap();
    let call = client.call_raw("anything", Map::new(), None);
    match call.await.unwrap_err() {
        CallError::Exited(notice) => {
            assert!(matches!(notice.reason(), ExitReason::Signal(9)), "{notice}");
            assert_eq!(notice.stderr_tail(), "closed\n");
            assert!(!notice.was_requested());
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_server_that_floods_its_output_while_it_is_told_to_end_is_killed_in_time_and_in_bounds() {
    let text = format!("trap '' TERM\n{HANDSHAKE}while :; do yes '{{\"type\":\"turn_start\"}}'; done");
    let client = RpcClient::start(script(&text).event_budget(256 << 10)).await.unwrap();
    let mut unread = client.events_lossless();
    assert!(unread.next().await.is_some());
    let notice = client.shutdown().await;
    assert_eq!(notice.signal(), Some(9));
    let mut left = 0_usize;
    while let Some(ClientEvent::Event(_)) = unread.next().await {
        left += 1;
    }
    // Four times the budget, the rest of a read, and what the pipe still held: not all it wrote meanwhile.
    assert!(left < 15_000, "{left} events were kept for a subscriber that did not read");
}

#[tokio::test]
async fn a_server_that_never_reads_fills_no_memory_and_holds_up_no_shutdown() {
    let client = RpcClient::start(script(&format!("{HANDSHAKE}exec sleep 1000")).write_budget(1 << 20)).await.unwrap();
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.prompt("x".repeat(100_000)).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.shutdown().await.signal(), Some(15));
    for call in calls {
        assert!(matches!(call.await.unwrap().unwrap_err(), CallError::Closed));
    }
}

#[tokio::test]
async fn daemons_of_a_killed_server_are_killed_too() {
    // What a tool of an agent may do: leave the process group, the session and the parent.
    let daemon = "setsid sh -c 'echo $$ > \"$0\"; exec sleep 1000' \"$0.daemon\" >/dev/null 2>&1 </dev/null &\n";
    let server = Server::new(&format!("{daemon}{HANDSHAKE}exec sleep 1000"));
    for how in ["killed", "shut down", "dropped"] {
        let client = RpcClient::start(server.options()).await.unwrap();
        let daemon = server.pid("server.daemon").await;
        assert!(is_alive(daemon));
        match how {
            "killed" => {
                let server = nix::unistd::Pid::from_raw(client.pid().unwrap().cast_signed());
                nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGKILL).unwrap();
                assert_eq!(client.exited().await.signal(), Some(9));
                assert!(!is_alive(daemon), "told of the end before it was cleared away");
            }
            "shut down" => {
                client.shutdown().await;
                assert!(!is_alive(daemon));
            }
            _ => drop(client),
        }
        until("a daemon lives on", || !is_alive(daemon)).await;
        std::fs::remove_file(server.0.path().join("server.daemon")).unwrap();
    }
}

#[test]
fn daemons_of_a_server_are_killed_with_the_runtime() {
    let daemon = "setsid sh -c 'echo $$ > \"$0\"; exec sleep 1000' \"$0.daemon\" >/dev/null 2>&1 </dev/null &\n";
    let server = Server::new(&format!("{daemon}{HANDSHAKE}exec sleep 1000"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, daemon) = runtime
        .block_on(async { (RpcClient::start(server.options()).await.unwrap(), server.pid("server.daemon").await) });
    assert!(is_alive(daemon));
    drop(runtime);
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while is_alive(daemon) {
        assert!(std::time::Instant::now() < end, "a daemon lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(client);
}

#[tokio::test]
async fn a_command_prefix_keeps_what_it_leaves_running() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("master");
    let master =
        format!("setsid sh -c 'echo $$ > \"$0\"; exec sleep 1000' {} >/dev/null 2>&1 </dev/null &\n", file.display());
    let client = RpcClient::start(script(&format!("{master}{HANDSHAKE}cat >/dev/null"))).await.unwrap();
    let mut pid = None;
    until("no pid was written", || {
        pid = std::fs::read_to_string(&file).ok().and_then(|text| text.strip_suffix('\n')?.parse::<i32>().ok());
        pid.is_some()
    })
    .await;
    assert_eq!(client.shutdown().await.code(), Some(0));
    let pid = pid.unwrap();
    assert!(is_alive(pid), "a shared connection, say");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn events_before_the_first_answer_do_not_hide_it() {
    // Start-up chatter, then the answer: both are to be had.
    let text = format!("yes '{{\"type\":\"turn_start\"}}' | head -n 1000\n{HANDSHAKE}cat >/dev/null");
    let (client, mut events) = RpcClient::start_with_events(script(&text)).await.unwrap();
    for _ in 0..1000 {
        assert_eq!(events.next().await.unwrap().event().unwrap().kind(), "turn_start");
    }
    client.shutdown().await;
    assert!(matches!(events.next().await, Some(ClientEvent::Exited(_))));
    assert!(matches!(client.call(GetState {}).await.unwrap_err(), CallError::Closed));
}

#[tokio::test]
async fn an_event_that_lies_about_a_run_does_not_end_the_wait_for_another() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let peer_side = async {
        let request = peer.expect("prompt").await;
        peer.ack(&request).await;
        // An end without a beginning, then the run.
        peer.send(&json!({"type": "agent_settled"})).await;
        peer.send(&agent_start()).await;
        peer.send(&message("message_end", &common::answer_message("real"))).await;
        peer.send(&json!({"type": "agent_settled"})).await;
    };
    let (outcome, ()) = tokio::join!(client.prompt_and_wait("hi"), peer_side);
    assert_eq!(outcome.unwrap().text(), "real");
}
