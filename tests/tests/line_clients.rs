//! Clients without a library, as the protocol document shows them, find `dreb` on the path.

use std::path::{Path, PathBuf};
use std::process::Output;

use dreb_tests::{FakeProvider, Home, Reply, binary, within};
use pretty_assertions::assert_eq;
use serde_json::json;
use tokio::process::Command;

/// Runs a client script of `tests/clients`; `None`, with a word on standard error, when there is no
/// interpreter for it.
async fn run(interpreter: &str, script: &str, home: &Home, prompt: &str) -> Option<Output> {
    let Ok(found) = Command::new(interpreter).arg("--version").output().await else {
        eprintln!("skipped: there is no {interpreter}");
        return None;
    };
    assert!(found.status.success(), "{interpreter} does not work");
    // `dreb` itself comes first, then what the interpreter needs.
    let folder = binary::dreb().parent().expect("a file has a folder");
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(PathBuf::from(folder)).chain(std::env::split_paths(&rest)))
        .expect("paths without colons");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let mut command = Command::new(interpreter);
    command.arg(script).arg(prompt).env_clear().envs(home.environment()).env("PATH", path);
    // Version managers look for their files here.
    for name in ["PYENV_ROOT", "NVM_DIR", "VOLTA_HOME", "ASDF_DATA_DIR"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.current_dir(home.cwd()).kill_on_drop(true);
    Some(within("the client to end", command.output()).await.expect("the client can be started"))
}

const CLIENTS: [(&str, &str); 2] = [("python3", "line_client.py"), ("node", "line_client.mjs")];

#[tokio::test]
async fn a_client_prints_the_answer_while_it_comes() {
    let pieces = ["Hello", ", wörld", " \u{2028}\u{1f600}", "\nsecond line"];
    for (interpreter, script) in CLIENTS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().thinking(["not printed"], "s").text(pieces));
        let Some(output) = run(interpreter, script, &home, "say hello").await else { continue };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), pieces.concat() + "\n", "{script}: {errors}");
        assert_eq!(output.status.code(), Some(0), "{script}: {errors}");
        assert_eq!(fake.request(1).await.message(-1)["content"][0]["text"], "say hello");
        assert_eq!(dreb_tests::process::living_in(&home.path()), []);
    }
}

#[tokio::test]
async fn a_client_sees_tools_run_between_two_texts() {
    for (interpreter, script) in CLIENTS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.script([
            Reply::new().text(["Looking."]).tool_call("c1", "bash", &json!({ "command": "seq 1 5000" })),
            Reply::say(" Done."),
        ]);
        let Some(output) = run(interpreter, script, &home, "count").await else { continue };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Looking. Done.\n", "{script}: {errors}");
        assert_eq!(output.status.code(), Some(0), "{script}: {errors}");
    }
}
