//! Real child processes: a shell script plays the server.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dreb_client::{CallError, ClientEvent, ExitReason, RpcClient, RpcClientOptions, StartError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pretty_assertions::assert_eq;
use serde_json::Map;
use tempfile::TempDir;

/// Answers the first command, which is always `req-1`.
const HANDSHAKE: &str = r#"read -r line
echo '{"id":"req-1","type":"response","command":"get_version","success":true,"data":{"version":"9"}}'
"#;

/// A folder with an executable script `dreb`.
struct Server {
    folder: TempDir,
}

impl Server {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dreb");
        // Written under another name by another process: an executable file that this process has
        // open for writing while a parallel test forks could not be executed.
        let body = format!("#!/bin/sh\n{script}");
        std::fs::write(folder.path().join("source"), body).unwrap();
        let status = std::process::Command::new("cp").arg(folder.path().join("source")).arg(&path).status().unwrap();
        assert!(status.success());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> RpcClientOptions {
        RpcClientOptions::new().binary(self.path("dreb")).grace_period(Duration::from_millis(200))
    }

    async fn start(&self) -> RpcClient {
        RpcClient::start(self.options()).await.unwrap()
    }
}

fn is_alive(pid: i32) -> bool {
    // A zombie still takes signals; its state tells it apart.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    tokio::time::timeout(Duration::from_secs(20), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{what}"));
}

async fn read_pid(path: &Path) -> i32 {
    let mut pid = None;
    until("no pid was written", || {
        pid = std::fs::read_to_string(path).ok().and_then(|text| text.trim_end_matches('\n').parse().ok());
        pid.is_some()
    })
    .await;
    pid.unwrap()
}

#[tokio::test]
async fn a_server_that_obeys_ends_with_its_own_status_and_twice_is_no_error() {
    let server = Server::new(&format!("{HANDSHAKE}cat >/dev/null; exit 7"));
    let client = server.start().await;
    assert_eq!(client.server_version().unwrap().version, "9");
    let pid = i32::try_from(client.pid().unwrap()).unwrap();
    let notice = client.shutdown().await;
    assert_eq!((notice.code(), notice.was_requested()), (Some(7), true));
    assert!(!is_alive(pid));
    assert_eq!(client.shutdown().await.code(), Some(7));
    assert!(matches!(client.get_state().await.unwrap_err(), CallError::Closed));
}

#[tokio::test]
async fn an_early_exit_tells_status_and_standard_error() {
    let server = Server::new("echo 'No models available.' >&2; exit 3");
    match RpcClient::start(server.options()).await.unwrap_err() {
        StartError::EarlyExit(notice) => {
            assert_eq!(notice.code(), Some(3));
            assert_eq!(notice.stderr_tail(), "No models available.\n");
            assert_eq!(notice.to_string(), "exited with status 3; standard error: No models available.");
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let server = Server::new("exit 0");
    let start = |options: RpcClientOptions| async { RpcClient::start(options).await.unwrap_err() };
    let missing = server.path("missing");
    let error = start(RpcClientOptions::new().binary(&missing)).await;
    assert_eq!(
        error.to_string(),
        format!("no dreb binary found; looked at {}: No such file or directory (os error 2)", missing.display())
    );
    let error = start(server.options().cwd(&missing)).await;
    assert_eq!(error.to_string(), format!("cannot use the working directory {}", missing.display()));
    // Executable, but no program.
    std::fs::write(server.path("source"), [0x7f, 0, 1, 2]).unwrap();
    std::fs::set_permissions(server.path("source"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = start(RpcClientOptions::new().binary(server.path("source"))).await;
    assert!(matches!(&error, StartError::Spawn { program, .. } if *program == server.path("source")), "{error}");
}

#[tokio::test]
async fn a_silent_server_is_ended_and_its_standard_error_told() {
    let server = Server::new("echo $$ > \"$0.pid\"; echo waiting >&2; exec sleep 1000");
    let options = server.options().start_timeout(Duration::from_millis(500));
    match RpcClient::start(options).await.unwrap_err() {
        StartError::HandshakeTimeout { stderr_tail, .. } => assert_eq!(stderr_tail, "waiting\n"),
        other => panic!("{other}"),
    }
    let pid = read_pid(&server.path("dreb.pid")).await;
    until("the silent server lives on", || !is_alive(pid)).await;
}

#[tokio::test]
async fn a_server_that_ignores_the_end_of_its_input_gets_sigterm() {
    let server = Server::new(&format!("{HANDSHAKE}exec sleep 1000"));
    let notice = server.start().await.shutdown().await;
    assert_eq!(notice.signal(), Some(15));
}

#[tokio::test]
async fn a_server_that_ignores_sigterm_is_killed_with_its_children() {
    let script = format!("trap '' TERM\nsleep 1000 &\necho $! > \"$0.pid\"\n{HANDSHAKE}while :; do sleep 1000; done");
    let server = Server::new(&script);
    let client = server.start().await;
    let child = read_pid(&server.path("dreb.pid")).await;
    assert!(is_alive(child));
    let notice = client.shutdown().await;
    assert_eq!(notice.signal(), Some(9));
    assert_eq!(notice.to_string(), "killed by SIGKILL");
    until("a child of the server lives on", || !is_alive(child)).await;
}

#[tokio::test]
async fn calls_under_way_fail_alike_when_the_server_is_killed() {
    let script = format!("{HANDSHAKE}echo started >&2\nread -r one; read -r two; echo both >&2; exec sleep 1000");
    let server = Server::new(&script);
    let client = server.start().await;
    let mut events = client.events();
    let calls = [client.clone(), client.clone()]
        .map(|client| tokio::spawn(async move { client.call_raw("anything", Map::new(), None).await }));
    until("the calls did not arrive", || client.stderr_tail().contains("both")).await;
    kill(Pid::from_raw(client.pid().unwrap().try_into().unwrap()), Signal::SIGKILL).unwrap();
    for call in calls {
        match call.await.unwrap().unwrap_err() {
            CallError::Exited(notice) => {
                assert!(matches!(notice.reason(), ExitReason::Signal(9)), "{notice}");
                assert_eq!(notice.stderr_tail(), "started\nboth\n");
                assert!(!notice.was_requested());
            }
            other => panic!("{other}"),
        }
    }
    assert!(matches!(events.next().await, Some(ClientEvent::Exited(notice)) if notice.signal() == Some(9)));
    assert_eq!(client.shutdown().await.signal(), Some(9), "a shutdown afterwards tells what happened");
}

#[tokio::test]
async fn what_a_dying_server_wrote_is_read_before_its_end_is_told() {
    // More than a pipe holds at once, then an answer, then the end.
    let script = format!(
        "{HANDSHAKE}read -r line\n\
         for n in 1 2 3 4 5 6 7 8; do head -c 20000 /dev/zero | tr '\\0' x; echo; done\n\
         echo '{{\"id\":\"req-2\",\"type\":\"response\",\"command\":\"c\",\"success\":true,\"data\":\"last words\"}}'\n\
         exit 5"
    );
    let server = Server::new(&script);
    let client = server.start().await;
    let mut events = client.events();
    assert_eq!(client.call_raw("c", Map::new(), None).await.unwrap(), "last words");
    for _ in 0..8 {
        assert!(matches!(events.next().await, Some(ClientEvent::Malformed(line)) if line.length == 20_000));
    }
    assert!(matches!(events.next().await, Some(ClientEvent::Exited(notice)) if notice.code() == Some(5)));
    assert!(matches!(client.get_state().await.unwrap_err(), CallError::Exited(notice) if notice.code() == Some(5)));
}

#[tokio::test]
async fn a_server_that_closes_its_output_or_its_input_is_ended() {
    for redirection in ["exec >&-", "exec <&-"] {
        let server = Server::new(&format!("{HANDSHAKE}{redirection}\nexec sleep 1000"));
        let client = server.start().await;
        let error = loop {
            // Commands go into the pipe until it turns out to be closed.
            match client.call_raw("c", Map::new(), Some(Duration::from_millis(50))).await.unwrap_err() {
                CallError::Timeout { .. } => {}
                other => break other,
            }
        };
        assert!(matches!(error, CallError::Exited(notice) if notice.signal() == Some(15)), "{redirection}");
    }
}

#[tokio::test]
async fn dropping_the_last_handle_or_the_start_ends_the_server() {
    let server = Server::new(&format!("echo $$ > \"$0.pid\"\n{HANDSHAKE}exec sleep 1000"));
    let client = server.start().await;
    let clone = client.clone();
    let pid = read_pid(&server.path("dreb.pid")).await;
    drop(client);
    assert!(is_alive(pid));
    drop(clone);
    until("the server outlived its handles", || !is_alive(pid)).await;

    let silent = Server::new("echo $$ > \"$0.pid\"; exec sleep 1000");
    let start = tokio::spawn(RpcClient::start(silent.options()));
    let pid = read_pid(&silent.path("dreb.pid")).await;
    start.abort();
    until("the server outlived its start", || !is_alive(pid)).await;
}

#[test]
fn dropping_the_runtime_kills_the_servers_group() {
    let script = format!("trap '' TERM\nsleep 1000 &\necho $! > \"$0.pid\"\n{HANDSHAKE}while :; do sleep 1000; done");
    let server = Server::new(&script);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, child) = runtime.block_on(async { (server.start().await, read_pid(&server.path("dreb.pid")).await) });
    let pid = i32::try_from(client.pid().unwrap()).unwrap();
    assert!(is_alive(pid) && is_alive(child));
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(until("the group lives on", || !is_alive(pid) && !is_alive(child)));
    drop(client);
}

#[tokio::test]
async fn options_reach_the_server() {
    let script = format!(
        "echo \"$DREB_API_KEY|$ADDED|${{HOME-none}}|${{GONE-none}}|$PWD\" >&2\nfor a; do echo \"$a\" >&2; done\n{HANDSHAKE}cat >/dev/null"
    );
    let server = Server::new(&script);
    let cwd = server.folder.path().canonicalize().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let options = {
        let seen = Arc::clone(&seen);
        server.options().on_stderr_line(move |line| {
            seen.lock().unwrap().push(line.to_owned());
            assert!(line != "rpc", "a callback that panics does no harm");
        })
    };
    let options = options
        .cwd(&cwd)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("ADDED", "a b")
        .env("GONE", "x")
        .env_remove("GONE")
        .api_key("sk-1")
        .model("m");
    let client = RpcClient::start(options).await.unwrap();
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", client.pid().unwrap())).unwrap();
    assert!(!arguments.contains("sk-1"));
    client.shutdown().await;
    let first = format!("sk-1|a b|none|none|{}", cwd.display());
    let expected = [&first, "--mode", "rpc", "--model", "m", "--event-detail", "delta"];
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(client.stderr_tail(), expected.join("\n") + "\n");
}

#[tokio::test]
async fn a_command_prefix_runs_the_server() {
    let server = Server::new(&format!("echo \"$0 $WRAPPED\" >&2\n{HANDSHAKE}cat >/dev/null"));
    let options = server.options().command_prefix(["env", "WRAPPED=yes"]);
    let client = RpcClient::start(options).await.unwrap();
    let notice = client.shutdown().await;
    assert_eq!(notice.stderr_tail(), format!("{} yes\n", server.path("dreb").display()));
    assert_eq!(notice.code(), Some(0));
}
