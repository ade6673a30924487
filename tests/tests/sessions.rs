//! What is on disk, and when.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use dreb_tests::home::{files, json_lines};
use dreb_tests::notation::messages;
use dreb_tests::{FakeProvider, Gate, Home, Reply};
use nix::sys::signal::Signal;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn pending(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".pending");
    name.into()
}

/// Checks that the entries are one chain.
fn assert_chain(lines: &[Value]) {
    let mut parent = Value::Null;
    for entry in &lines[1..] {
        assert_eq!(entry["parentId"], parent, "{entry}");
        let id = entry["id"].as_str().unwrap();
        assert!(id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        parent = entry["id"].clone();
    }
}

#[tokio::test]
async fn a_session_file_has_header_entries_name_and_mode_of_the_format() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    fake.script([Reply::new().tool_call("c1", "read", &json!({ "path": "a.txt" })), Reply::say("done")]);
    let mut server = home.dreb().start();
    let state = server.ok(json!({ "type": "get_state" })).await;
    let lines = server.run("go").await;
    let file = home.session_file();
    assert_eq!(state["sessionFile"], json!(file));
    let name = file.file_name().unwrap().to_str().unwrap();
    let (time, id) = name.strip_suffix(".jsonl").unwrap().split_once('_').unwrap();
    assert_eq!(state["sessionId"], id);
    assert_eq!(id.len(), 36);

    let stored = home.session_lines();
    assert_eq!(keys(&stored[0]), ["type", "version", "id", "timestamp", "cwd"]);
    assert_eq!(
        (&stored[0]["type"], &stored[0]["version"], &stored[0]["id"], &stored[0]["cwd"]),
        (&json!("session"), &json!(3), &json!(id), &json!(home.cwd()))
    );
    assert_eq!(time, stored[0]["timestamp"].as_str().unwrap().replace([':', '.'], "-"));
    assert_eq!(keys(&stored[1]), ["type", "id", "parentId", "timestamp", "provider", "modelId"]);
    assert_eq!((&stored[1]["type"], &stored[1]["modelId"]), (&json!("model_change"), &json!("fake-claude")));
    assert_eq!(keys(&stored[2]), ["type", "id", "parentId", "timestamp", "thinkingLevel"]);
    assert_eq!((&stored[2]["type"], &stored[2]["thinkingLevel"]), (&json!("thinking_level_change"), &json!("high")));
    let mut expected = Vec::new();
    expected.extend(messages(&lines, "user"));
    expected.push(messages(&lines, "assistant")[0]);
    expected.extend(messages(&lines, "toolResult"));
    expected.push(messages(&lines, "assistant")[1]);
    let kept: Vec<_> = stored[3..].iter().map(|entry| &entry["message"]).collect();
    assert_eq!(kept, expected, "a message is stored as its event shows it");
    assert_eq!(keys(&stored[3]), ["type", "id", "parentId", "timestamp", "message"]);
    assert_chain(&stored);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let auth = home.agent_dir().join("auth.json");
    if auth.exists() {
        assert_eq!(fs::metadata(auth).unwrap().permissions().mode() & 0o777, 0o600);
    }
    server.finish().await;
    assert_eq!(files(&home.sessions()), [file]);
}

#[tokio::test]
async fn an_entry_is_on_disk_before_its_event_is_told() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    fake.script([
        Reply::new().tool_call("c1", "read", &json!({ "path": "a.txt" })),
        Reply::say("done"),
        Reply::say("more"),
    ]);
    let mut server = home.dreb().start();
    let state = server.ok(json!({ "type": "get_state" })).await;
    let file = PathBuf::from(state["sessionFile"].as_str().unwrap());
    let mut ends = 0;
    for prompt in ["go", "on"] {
        server.prompt(prompt).await;
        loop {
            let line = server.next().await;
            if line["type"] == "agent_settled" {
                break;
            }
            if line["type"] != "message_end" {
                continue;
            }
            ends += 1;
            let at = if file.exists() { file.clone() } else { pending(&file) };
            let stored = json_lines(&at);
            let found = stored.iter().any(|entry| entry["message"] == line["message"]);
            assert!(found, "{} lacks {}", at.display(), line["message"]);
        }
    }
    assert_eq!(ends, 6);
    server.finish().await;
}

#[tokio::test]
async fn until_the_first_answer_the_entries_wait_beside_the_file() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let gate = Gate::new();
    fake.push(Reply::new().gate(&gate).text(["answer"]));
    let mut server = home.dreb().start();
    let state = server.ok(json!({ "type": "get_state" })).await;
    let file = PathBuf::from(state["sessionFile"].as_str().unwrap());
    assert_eq!(files(&home.sessions()), Vec::<PathBuf>::new(), "an empty session leaves no file");
    server.prompt("go").await;
    server.until_short("E(user)").await;
    gate.reached().await;
    assert_eq!(files(&home.sessions()), [pending(&file)]);
    let early = json_lines(&pending(&file));
    let kinds: Vec<_> = early.iter().map(|entry| entry["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["session", "model_change", "thinking_level_change", "message"]);
    gate.release();
    server.until_short("E(assistant)").await;
    assert_eq!(files(&home.sessions()), std::slice::from_ref(&file));
    let stored = json_lines(&file);
    assert_eq!(stored[..4], early);
    assert_eq!(stored.len(), 5);
    server.until("agent_settled").await;
    server.finish().await;
}

#[tokio::test]
async fn a_kill_at_any_moment_loses_nothing_that_was_told() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    for round in 0..6 {
        let folder = home.cwd().join(format!("sessions-{round}"));
        fake.script(
            (0..20).map(|turn| Reply::new().tool_call(&format!("c{turn}"), "read", &json!({ "path": "a.txt" }))),
        );
        let mut server = home.dreb().arg("--session-dir").arg(&folder).arg("--model").arg("fake/fake-mini").start();
        server.prompt("go").await;
        let mut told = Vec::new();
        // A different moment in each round.
        while told.len() < 1 + round * 3 {
            let line = server.next().await;
            if line["type"] == "message_end" {
                told.push(line["message"].clone());
            }
        }
        for process in server.own_processes() {
            process.signal(Signal::SIGKILL);
        }
        server.exit().await;
        let [file] = files(&folder).try_into().unwrap();
        let stored: Vec<_> = json_lines(&file).into_iter().map(|mut entry| entry["message"].take()).collect();
        for message in told {
            assert!(stored.contains(&message), "round {round} lost {message}");
        }
        drop(server);
        // What the killed server did not ask for.
        fake.clear();
    }
}

#[tokio::test]
async fn without_a_session_nothing_is_stored() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::say("gone"));
    let mut server = home.dreb().arg("--no-session").start();
    assert_eq!(server.ok(json!({ "type": "get_state" })).await.get("sessionFile"), None);
    server.run("go").await;
    assert_eq!(server.ok(json!({ "type": "get_messages" })).await["messages"].as_array().unwrap().len(), 2);
    server.finish().await;
    assert_eq!(files(&home.sessions()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_session_folder_of_its_own_is_used_flat() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let folder = home.path().join("elsewhere");
    fake.push(Reply::say("here"));
    let mut server = home.dreb().arg("--session-dir").arg(&folder).start();
    server.run("go").await;
    server.finish().await;
    assert_eq!(files(&folder).len(), 1);
    assert_eq!(files(&home.sessions()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn settings_set_over_the_wire_are_kept_beside_unknown_ones() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.settings(&json!({ "mine": { "b": 1, "a": [] }, "steeringMode": "one-at-a-time" }));
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "set_steering_mode", "mode": "all" })).await;
    server.ok(json!({ "type": "set_model", "provider": "fake", "modelId": "fake-mini" })).await;
    server.finish().await;
    let settings = fs::read_to_string(home.agent_dir().join("settings.json")).unwrap();
    assert_eq!(
        settings,
        "{\n  \"mine\": {\n    \"b\": 1,\n    \"a\": []\n  },\n  \"steeringMode\": \"all\",\n  \"defaultProvider\": \"fake\",\n  \"defaultModel\": \"fake-mini\"\n}"
    );
    let mut server = home.dreb().start();
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["steeringMode"], &state["model"]["id"]), (&json!("all"), &json!("fake-mini")));
    server.finish().await;
}

#[tokio::test]
async fn a_shell_result_that_waits_for_the_next_prompt_is_stored_at_the_end() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::new().text_start().text_deltas(["half"]).hang());
    let mut server = home.dreb().start();
    server.prompt("go").await;
    server.until_short("U:text_delta").await;
    server.ok(json!({ "type": "bash", "command": "echo kept" })).await;
    let (_, status) = server.close_stdin_and_wait().await;
    assert_eq!(status.code(), Some(0));
    let stored = home.session_lines();
    let roles: Vec<_> = stored.iter().filter_map(|entry| entry["message"]["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "bashExecution"]);
    assert_eq!(stored.last().unwrap()["message"]["output"], "kept\n");
    assert_chain(&stored);
}
