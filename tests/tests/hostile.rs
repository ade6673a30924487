//! Clients, models and file systems that do their worst.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use dreb_tests::notation::{messages, text};
use dreb_tests::{FakeProvider, Home, Reply, within};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

fn pipe_at(path: &Path) {
    mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
}

fn device_at(path: &Path) {
    symlink("/dev/zero", path).unwrap();
}

/// A home whose model answers "fine" for ever.
fn scripted() -> Home {
    let home = Home::empty();
    home.file("script.json", r#"{ "atEnd": "repeat", "turns": ["fine"] }"#);
    home
}

/// The only model of [`scripted`].
const SCRIPTED: &str = "scripted/scripted";

#[tokio::test]
async fn pipes_and_devices_in_place_of_configuration() {
    let names =
        ["agent/settings.json", "agent/models.json", "agent/auth.json", "secrets/providers.env", "agent/AGENTS.md"];
    for put in [pipe_at, device_at] {
        for name in names {
            let home = scripted();
            let path = home.path().join(".dreb").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            put(&path);
            let mut server = home.dreb().env("DREB_SCRIPT", "script.json").model(SCRIPTED).start();
            let lines = server.run("go").await;
            assert_eq!(text(messages(&lines, "assistant")[0]), "fine", "{name}");
            if name != "secrets/providers.env" {
                let told = server.stderr();
                assert!(told.contains("not a regular file") || name == "agent/settings.json", "{name}: {told}");
            }
            server.finish().await;
        }
    }
}

#[tokio::test]
async fn settings_that_are_a_pipe_are_told_and_never_replaced() {
    let home = scripted();
    let path = home.agent_dir().join("settings.json");
    pipe_at(&path);
    let mut server = home.dreb().env("DREB_SCRIPT", "script.json").model(SCRIPTED).start();
    server.ok(json!({ "type": "set_steering_mode", "mode": "all" })).await;
    let notice = server.next().await;
    assert_eq!((&notice["type"], &notice["extensionPath"]), (&json!("extension_error"), &json!("<settings>")));
    assert!(server.stderr().contains("not a regular file"), "{}", server.stderr());
    server.finish().await;
    assert!(!fs::symlink_metadata(path).unwrap().is_file());
}

#[tokio::test]
async fn a_session_file_that_becomes_a_pipe() {
    let home = scripted();
    let mut server = home.dreb().env("DREB_SCRIPT", "script.json").model(SCRIPTED).start();
    server.run("one").await;
    let file = home.session_file();
    fs::remove_file(&file).unwrap();
    pipe_at(&file);
    let lines = server.run("two").await;
    assert_eq!(text(messages(&lines, "assistant")[0]), "fine");
    let notices: Vec<_> = lines.iter().filter(|line| line["type"] == "extension_error").collect();
    assert_eq!(notices.len(), 1, "{notices:?}");
    let error = notices[0]["error"].as_str().unwrap();
    assert_eq!(error, format!("Cannot write session file {}: not a regular file", file.display()));
    // Nothing was lost: it is all written when it can be.
    fs::remove_file(&file).unwrap();
    server.run("three").await;
    server.finish().await;
    let stored = home.session_lines();
    assert_eq!(stored.iter().filter(|line| line["type"] == "message").count(), 6);
}

#[tokio::test]
async fn arguments_that_nest_without_end() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let deep = "[".repeat(100_000);
    for closed in [String::new(), format!("{}}}", "]".repeat(100_000))] {
        fake.script([
            Reply::new().tool_call_in("c1", "ls", [r#"{"path":"."#, r#"","x":"#, &deep, &closed]),
            Reply::say("done"),
        ]);
    }
    let mut server = home.dreb().start();
    for _ in 0..2 {
        let lines = server.run("go").await;
        let answers = messages(&lines, "assistant");
        // Broken arguments are none.
        assert_eq!(answers[0]["content"][0]["arguments"], json!({}));
        assert_eq!(text(answers[1]), "done");
    }
    server.finish().await;
}

#[tokio::test]
async fn more_shell_commands_than_can_run() {
    const COUNT: usize = 1500;
    let home = scripted();
    let mut server = home.dreb().env("DREB_SCRIPT", "script.json").model(SCRIPTED).start();
    for id in 0..COUNT {
        server.send(json!({ "type": "bash", "command": "sleep 1000", "id": id })).await;
    }
    // None of them has ended, and still this is heard.
    server.ok(json!({ "type": "abort_bash" })).await;
    for id in 0..COUNT {
        let response = server.response(&json!(id)).await;
        assert_eq!(response["data"]["cancelled"], true, "{response}");
    }
    let response = server.ok(json!({ "type": "bash", "command": "echo alive" })).await;
    assert_eq!(response["output"], "alive\n");
    server.finish().await;
}

#[tokio::test]
async fn the_end_of_input_behind_more_shell_commands_than_can_run() {
    const COUNT: usize = 1500;
    let home = scripted();
    let mut server = home.dreb().env("DREB_SCRIPT", "script.json").model(SCRIPTED).start();
    for id in 0..COUNT {
        server.send(json!({ "type": "bash", "command": "sleep 1000", "id": id })).await;
    }
    let (lines, status) = server.close_stdin_and_wait().await;
    assert_eq!(status.code(), Some(0));
    assert!(lines.iter().all(|line| line["data"]["cancelled"] == true));
    let mut ids: Vec<_> = lines.iter().filter_map(|line| line["id"].as_u64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..COUNT as u64).collect::<Vec<_>>());
    assert_eq!(server.tool_processes(), []);
}

#[tokio::test]
async fn a_closed_standard_error() {
    let home = scripted();
    // Warnings at the start and while it runs.
    fs::write(home.agent_dir().join("settings.json"), "{").unwrap();
    let mut command = home.dreb().env("DREB_SCRIPT", "script.json").model(SCRIPTED).command();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stderr.take());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"{\"type\":\"set_steering_mode\",\"mode\":\"all\"}\n{\"type\":\"get_version\"}\n").await.unwrap();
    drop(stdin);
    let output = within("the end", child.wait_with_output()).await.unwrap();
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut commands: Vec<_> = lines.iter().filter_map(|line| line["command"].as_str()).collect();
    commands.sort_unstable();
    assert_eq!(commands, ["get_version", "set_steering_mode"]);
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test]
async fn a_standard_error_that_nobody_reads() {
    const COUNT: usize = 3000;
    let home = scripted();
    let mut command = home.dreb().env("DREB_SCRIPT", "script.json").env("DREB_LOG", "trace").model(SCRIPTED).command();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    let asking = async {
        for _ in 0..COUNT {
            stdin.write_all(b"{\"type\":\"get_version\"}\n").await.unwrap();
        }
    };
    let reading = async {
        for _ in 0..COUNT {
            assert!(stdout.next_line().await.unwrap().is_some());
        }
    };
    within("all answers", async { tokio::join!(asking, reading) }).await;
    drop(stdin);
    let status = within("the end", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    // The log did say more than a pipe holds.
    let mut log = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut log).await.unwrap();
    assert!(log.len() > 60_000, "{}", log.len());
}
