//! Files, folders and arguments that are not as they should be.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use dreb_tests::notation::{BEGIN, SAY, event, messages, milestones, sequence, text};
use dreb_tests::{FakeProvider, Home, Reply, Server};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// Has the model call one tool and returns the result message.
async fn call(fake: &FakeProvider, server: &mut Server, tool: &str, arguments: Value) -> Value {
    fake.script([Reply::new().tool_call("c1", tool, &arguments), Reply::say("done")]);
    let lines = server.run("go").await;
    assert_eq!(text(messages(&lines, "assistant")[1]), "done");
    messages(&lines, "toolResult")[0].clone()
}

/// The text of a call that must fail.
async fn call_fails(fake: &FakeProvider, server: &mut Server, tool: &str, arguments: Value) -> String {
    let result = call(fake, server, tool, arguments).await;
    assert_eq!((&result["isError"], &result["details"]), (&json!(true), &json!({})), "{result}");
    text(&result)
}

#[tokio::test]
async fn a_project_folder_that_is_gone() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "get_state" })).await;
    fs::remove_dir(home.cwd()).unwrap();
    assert_eq!(
        call_fails(&fake, &mut server, "bash", json!({ "command": "echo hi" })).await,
        format!("Working directory does not exist: {}\nCannot execute bash commands.", home.cwd().display())
    );
    let missing = home.cwd().join("a.txt");
    assert_eq!(
        call_fails(&fake, &mut server, "read", json!({ "path": "a.txt" })).await,
        format!("ENOENT: no such file or directory, access '{}'", missing.display())
    );
    server.finish().await;
}

#[tokio::test]
async fn a_shell_that_does_not_exist() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let shell = home.path().join("no-such-shell");
    home.settings(&json!({ "shellPath": shell }));
    let mut server = home.dreb().start();
    let error = call_fails(&fake, &mut server, "bash", json!({ "command": "echo hi" })).await;
    assert!(error.contains(shell.to_str().unwrap()), "{error}");
    let error = server.fails(json!({ "type": "bash", "command": "echo hi" })).await;
    assert!(error.contains(shell.to_str().unwrap()), "{error}");
    server.finish().await;
}

#[tokio::test]
async fn a_path_without_any_program() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha\n");
    let mut server = home.dreb().env("PATH", home.path().join("empty")).start();
    let result = server.ok(json!({ "type": "bash", "command": "no-such-program; echo $?" })).await;
    assert!(result["output"].as_str().unwrap().ends_with("127\n"), "{result}");
    // Searching needs no program.
    let found = call(&fake, &mut server, "grep", json!({ "pattern": "alp" })).await;
    assert_eq!(text(&found), "a.txt:1: alpha");
    let found = call(&fake, &mut server, "find", json!({ "pattern": "*.txt" })).await;
    assert_eq!(text(&found), "a.txt");
    server.finish().await;
}

#[tokio::test]
async fn arguments_that_do_not_fit() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    assert_eq!(
        call_fails(&fake, &mut server, "read", json!({})).await,
        "Validation failed for tool \"read\":\n  - path: must have required property 'path'\n\nReceived arguments:\n{}"
    );
    assert_eq!(
        call_fails(&fake, &mut server, "read", json!({ "path": ["a"] })).await,
        "Validation failed for tool \"read\":\n  - path: must be string\n\nReceived arguments:\n{\n  \"path\": [\n    \"a\"\n  ]\n}"
    );
    // What can be read another way is.
    home.file("7", "one\ntwo\nthree\n");
    let result = call(&fake, &mut server, "read", json!({ "path": 7, "offset": "2", "limit": 1, "extra": null })).await;
    assert_eq!(text(&result), "two\n\n[2 more lines in file. Use offset=3 to continue.]");
    assert_eq!(call_fails(&fake, &mut server, "nothing", json!({})).await, "Tool nothing not found");
    server.finish().await;
}

#[tokio::test]
async fn a_folder_instead_of_a_file() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fs::create_dir(home.cwd().join("folder")).unwrap();
    home.file("a.txt", "alpha");
    let mut server = home.dreb().start();
    assert_eq!(
        call_fails(&fake, &mut server, "read", json!({ "path": "folder" })).await,
        "EISDIR: illegal operation on a directory, read"
    );
    let error = call_fails(&fake, &mut server, "write", json!({ "path": "folder", "content": "x" })).await;
    assert!(error.starts_with("EISDIR: illegal operation on a directory"), "{error}");
    let error = call_fails(&fake, &mut server, "write", json!({ "path": "a.txt/b", "content": "x" })).await;
    assert!(error.starts_with("ENOTDIR: ") || error.starts_with("EEXIST: "), "{error}");
    let path = home.cwd().join("a.txt");
    assert_eq!(
        call_fails(&fake, &mut server, "ls", json!({ "path": "a.txt" })).await,
        format!("Not a directory: {}", path.display())
    );
    server.finish().await;
}

#[tokio::test]
async fn a_file_of_fifty_megabytes() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let line = "x".repeat(99) + "\n";
    home.file("big.txt", line.repeat(500_000));
    home.file("wide.txt", "y".repeat(50_000_000));
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "get_state" })).await;
    let before = server.memory();
    let result = call(&fake, &mut server, "read", json!({ "path": "big.txt" })).await;
    // 51200 bytes hold 512 lines of 100 bytes, the last one without its line feed.
    assert_eq!(
        text(&result),
        line.repeat(512) + "\n[Showing lines 1-512 of 500001 (50.0KB limit). Use offset=513 to continue.]"
    );
    let truncation = &result["details"]["truncation"];
    assert_eq!(
        (&truncation["truncatedBy"], &truncation["totalLines"], &truncation["outputLines"]),
        (&json!("bytes"), &json!(500_001), &json!(512))
    );
    let result = call(&fake, &mut server, "read", json!({ "path": "big.txt", "offset": 499_999 })).await;
    assert_eq!(text(&result), line.repeat(2));
    let result = call(&fake, &mut server, "read", json!({ "path": "wide.txt" })).await;
    assert_eq!(
        text(&result),
        "[Line 1 is 47.7MB, exceeds 50.0KB limit. Use bash: sed -n '1p' wide.txt | head -c 51200]"
    );
    let after = server.memory();
    assert!(after < before + (200 << 20), "memory went from {before} to {after} bytes");
    server.finish().await;
}

#[tokio::test]
async fn a_binary_file() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.bin", [b'E', b'L', b'F', 0, 0xff, 0xfe, b'\n', 0xc3, 0x28]);
    let mut server = home.dreb().start();
    let result = call(&fake, &mut server, "read", json!({ "path": "a.bin" })).await;
    assert_eq!(text(&result), "ELF\0\u{fffd}\u{fffd}\n\u{fffd}(");
    // The provider gets no NUL.
    let request = fake.request(2).await;
    assert_eq!(request.message(-1)["content"][0]["content"], "ELF\u{fffd}\u{fffd}\n\u{fffd}(");
    let result = server.ok(json!({ "type": "bash", "command": "cat a.bin" })).await;
    assert_eq!(result["output"], "ELF\u{fffd}\u{fffd}\n\u{fffd}(");
    server.finish().await;
}

#[tokio::test]
async fn edits_that_cannot_be_made() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "beta beta\n");
    let mut server = home.dreb().start();
    let edit = |path: &str, old: &str, new: &str| json!({ "path": path, "oldText": old, "newText": new });
    for (arguments, error) in [
        (
            edit("a.txt", "gamma", "x"),
            "Could not find the exact text in a.txt. The old text must match exactly including all whitespace and newlines.",
        ),
        (
            edit("a.txt", "beta", "x"),
            "Found 2 occurrences of the text in a.txt. The text must be unique. Please provide more context to make it unique.",
        ),
        (
            edit("a.txt", "beta beta", "beta beta"),
            "No changes made to a.txt. The replacement produced identical content. This might indicate an issue with special characters or the text not existing as expected.",
        ),
        (edit("missing.txt", "a", "b"), "Could not access file: missing.txt. Error code: ENOENT"),
    ] {
        assert_eq!(call_fails(&fake, &mut server, "edit", arguments).await, error);
    }
    assert_eq!(home.read("a.txt"), "beta beta\n");
    server.finish().await;
}

/// A copy of the server in this home, and the home itself, handed to a user without rights; `None`
/// when the tests do not run as root, whom permissions would not bind.
fn unprivileged(home: &Home) -> Option<(PathBuf, u32)> {
    if !nix::unistd::Uid::effective().is_root() {
        return None;
    }
    const NOBODY: u32 = 65_534;
    let program = home.path().join("dreb");
    fs::copy(dreb_tests::binary::dreb(), &program).unwrap();
    fn give(path: &Path) {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        for entry in fs::read_dir(path).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                give(&path);
            } else {
                chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
    }
    give(&home.path());
    Some((program, NOBODY))
}

/// Starts the server as a user whom permissions bind.
fn start_bound(home: &Home) -> Server {
    match unprivileged(home) {
        Some((program, user)) => home.dreb().program(program).user(user).start(),
        None => home.dreb().start(),
    }
}

#[tokio::test]
async fn a_file_that_may_not_be_read_or_written() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let secret = home.file("secret.txt", "secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let locked = home.cwd().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    let mut server = start_bound(&home);
    for (tool, arguments) in [
        ("read", json!({ "path": "secret.txt" })),
        ("write", json!({ "path": "secret.txt", "content": "x" })),
        ("write", json!({ "path": "locked/new.txt", "content": "x" })),
    ] {
        let error = call_fails(&fake, &mut server, tool, arguments).await;
        assert!(error.starts_with("EACCES: permission denied"), "{error}");
    }
    assert_eq!(
        call_fails(&fake, &mut server, "edit", json!({ "path": "secret.txt", "oldText": "a", "newText": "b" })).await,
        "Could not access file: secret.txt. Error code: EACCES"
    );
    server.finish().await;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(home.read("secret.txt"), "secret");
}

#[tokio::test]
async fn a_session_folder_that_cannot_be_written() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let sessions = home.agent_dir().join("sessions");
    fs::create_dir_all(home.sessions()).unwrap();
    for folder in [home.sessions(), sessions] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let mut server = start_bound(&home);
    fake.push(Reply::say("an answer all the same"));
    let lines = server.run("go").await;
    // The run goes on, and the client is told that it is not stored.
    let errors: Vec<_> = lines.iter().filter(|line| line["type"] == "extension_error").collect();
    assert!(!errors.is_empty(), "{lines:?}");
    for error in errors {
        let text = error["error"].as_str().unwrap();
        assert!(text.contains("ermission denied") && text.contains("/.dreb/agent/sessions/"), "{text}");
    }
    let mut shorts = milestones(&lines);
    shorts.retain(|short| short != "extension_error");
    assert_eq!(shorts, sequence(&[BEGIN, &["S(assistant)", "E(assistant)", "turn_end", "agent_end", "agent_settled"]]));
    fake.push(Reply::say("and another"));
    let lines = server.run("next").await;
    assert_eq!(text(messages(&lines, "assistant")[0]), "and another");
    let all = server.ok(json!({ "type": "get_messages" })).await;
    assert_eq!(all["messages"].as_array().unwrap().len(), 4);
    server.finish().await;
    for folder in [home.agent_dir().join("sessions"), home.sessions()] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// A small file system in memory, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with a word on standard error, when this process may not mount.
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&at).output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(at)),
            other => {
                eprintln!("skipped: no small disk can be mounted here: {other:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let Some(disk) = SmallDisk::mount(home.cwd().join("small")) else { return };
    fs::write(disk.0.join("kept.txt"), "kept\n").unwrap();
    let mut server = home.dreb().start();
    let large = "x".repeat(3 << 20);
    let error = call_fails(&fake, &mut server, "write", json!({ "path": "small/large.txt", "content": large })).await;
    assert!(error.starts_with("ENOSPC: no space left on device"), "{error}");
    // A file that was there before is still what it was.
    let error = call_fails(&fake, &mut server, "write", json!({ "path": "small/kept.txt", "content": large })).await;
    assert!(error.starts_with("ENOSPC: no space left on device"), "{error}");
    let edit = json!({ "path": "small/kept.txt", "oldText": "kept", "newText": large });
    let error = call_fails(&fake, &mut server, "edit", edit).await;
    assert!(error.contains("ENOSPC"), "{error}");
    assert_eq!(home.read("small/kept.txt"), "kept\n");
    server.finish().await;
}

#[tokio::test]
async fn a_full_disk_under_the_session() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let Some(disk) = SmallDisk::mount(home.path().join("disk")) else { return };
    let mut server = home.dreb().arg("--session-dir").arg(&disk.0).start();
    fake.push(Reply::say("fits"));
    server.run("go").await;
    fs::write(disk.0.join("filler"), vec![0; 1 << 20]).unwrap_err();
    let long = "y".repeat(100_000);
    fake.push(Reply::say(long.as_str()));
    let lines = server.run("next").await;
    let error = event(&lines, "extension_error")["error"].as_str().unwrap();
    assert!(error.contains("o space left on device"), "{error}");
    assert_eq!(text(messages(&lines, "assistant")[0]), long);
    // Once there is room again, storing goes on, and the file is sound.
    fs::remove_file(disk.0.join("filler")).unwrap();
    fake.push(Reply::say("room"));
    let lines = server.run("third").await;
    assert!(lines.iter().all(|line| line["type"] != "extension_error"));
    let file = dreb_tests::home::files(&disk.0).pop().unwrap();
    let stored = dreb_tests::home::json_lines(&file);
    assert_eq!(text(&stored.last().unwrap()["message"]), "room");
    server.finish().await;
}

#[tokio::test]
async fn configuration_that_cannot_be_read_does_not_keep_the_server_from_starting() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fs::write(home.agent_dir().join("settings.json"), "{ not json").unwrap();
    fake.push(Reply::say("defaults"));
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    assert_eq!(milestones(&lines), sequence(&[BEGIN, &[SAY[0], SAY[4]], &["turn_end", "agent_end", "agent_settled"]]));
    assert!(server.stderr().contains("settings"), "{}", server.stderr());
    // The broken file is the user's; it is not replaced.
    assert_eq!(fs::read_to_string(home.agent_dir().join("settings.json")).unwrap(), "{ not json");
    server.finish().await;
}

#[tokio::test]
async fn a_start_that_cannot_work_says_why() {
    let fake = FakeProvider::start().await;
    for (home, arguments, error) in [
        (Home::empty(), vec![], "No models available."),
        (
            Home::empty(),
            vec!["--api-key", "k"],
            "--api-key requires a model to be specified via --model, --provider/--model, or --models",
        ),
        (
            Home::new(&fake),
            vec!["--model", "zzz/none"],
            "Model \"zzz/none\" not found. Use --list-models to see available models.",
        ),
        (Home::new(&fake), vec!["@file.txt"], "Error: @file arguments are not supported in RPC mode"),
    ] {
        let mut server = home.dreb().args(arguments).start();
        let (lines, status) = server.wait().await;
        assert_eq!(lines, Vec::<Value>::new());
        assert_eq!(status.code(), Some(1));
        assert!(server.stderr().contains(error), "{}", server.stderr());
    }
}
