//! The server inside the program's own executable. Without a harness: the client starts this program
//! again, and then its `main` must become the server before anything else happens.

mod client_common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use client_common::{empty, finish, in_home, start};
use dreb_client::RpcClientOptions;
use dreb_tests::process::Process;
use dreb_tests::{FakeProvider, Home, Reply};
use serde_json::json;

/// First argument of the copy that replaces its own file.
const REPLACED: &str = "replace-own-file";

fn main() {
    dreb_client::bundled::init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if std::env::args().nth(1).as_deref() == Some(REPLACED) {
        return runtime.block_on(the_file_was_replaced());
    }
    runtime.block_on(async {
        the_program_runs_its_own_server().await;
        the_servers_children_do_not_become_servers().await;
        dropping_the_handle_ends_it().await;
    });
    a_program_whose_file_was_replaced_starts_what_it_is();
}

async fn client(home: &Home) -> dreb_client::RpcClient {
    start(in_home(RpcClientOptions::new().bundled(), home)).await
}

async fn the_program_runs_its_own_server() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([Reply::new().tool_call("c1", "bash", &json!({"command": "echo from the tool"})), Reply::say("done")]);
    let client = client(&home).await;
    let process = Process::find(client.pid().unwrap().cast_signed()).unwrap();
    assert_eq!(process.executable(), std::env::current_exe().ok());
    assert_eq!(client.server_version().unwrap().version, env!("CARGO_PKG_VERSION"));
    let outcome = client.prompt_and_wait("hi").await.unwrap();
    assert_eq!(outcome.text(), "done");
    let messages = serde_json::to_string(&outcome.messages).unwrap();
    assert!(messages.contains("\"text\":\"from the tool\""), "{messages}");
    finish(client, &home).await;
}

/// They inherit the variable that marks the server, but not its argument.
async fn the_servers_children_do_not_become_servers() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let client = client(&home).await;
    // This program as the tool of an agent: with an argument it knows, it goes its own way.
    let program = std::env::current_exe().unwrap();
    let result = client.bash(format!("'{}' {REPLACED}; echo status $?", program.display())).await.unwrap();
    assert!(result.output.contains("not a copy"), "{}", result.output);
    assert!(result.output.ends_with("status 101\n"), "{}", result.output);
    finish(client, &home).await;
}

async fn dropping_the_handle_ends_it() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    drop(client(&home).await);
    empty(&home, Duration::from_secs(10)).await;
}

fn a_program_whose_file_was_replaced_starts_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("host");
    // By another process, so that no fork of this one holds the file open for writing.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let status = Command::new(&copy).arg(REPLACED).env("HOST_COPY", &copy).status().unwrap();
    assert!(status.success(), "{status}");
}

/// Runs in the copy: an upgrade puts another program in its place.
async fn the_file_was_replaced() {
    let copy = std::env::var_os("HOST_COPY").expect("not a copy");
    let new = Path::new(&copy).with_extension("new");
    std::fs::write(&new, "#!/bin/sh\necho another program >&2; exit 9\n").unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&new, &copy).unwrap();
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let client = client(&home).await;
    assert_eq!(client.get_messages().await.unwrap(), []);
    finish(client, &home).await;
    std::fs::remove_file(&copy).unwrap();
    let client = self::client(&home).await;
    finish(client, &home).await;
}
