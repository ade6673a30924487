//! Starting the real server from Rust: where it comes from, what reaches it, why it does not start.

mod client_common;

use std::process::Stdio;
use std::time::Duration;

use client_common::{empty, finish, fixture, options, start};
use dreb_client::protocol::ThinkingLevel;
use dreb_client::{EventDetail, ExitReason, RpcClient, RpcClientOptions, StartError};
use dreb_tests::process::Process;
use dreb_tests::{FakeProvider, Home, Reply, binary, home, notation, within};
use pretty_assertions::assert_eq;
use serde_json::json;

#[tokio::test]
async fn the_handshake_tells_of_the_server() {
    let (_fake, home, client) = fixture().await;
    let version = client.server_version().unwrap();
    assert_eq!((version.version.as_str(), version.protocol_version), (env!("CARGO_PKG_VERSION"), Some(1)));
    assert!(client.has_delta_events());
    let process = Process::find(client.pid().unwrap().cast_signed()).unwrap();
    assert_eq!(process.executable().unwrap(), binary::dreb().canonicalize().unwrap());
    assert_eq!(process.parent, std::process::id().cast_signed());
    finish(client, &home).await;
}

#[tokio::test]
async fn a_runtime_of_one_thread_and_one_of_several_do() {
    // This one is of one thread. A thread of its own for the other, as runtimes cannot be nested.
    let (_fake, home, client) = fixture().await;
    assert_eq!(client.get_messages().await.unwrap(), []);
    finish(client, &home).await;
    let other = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let (_fake, home, client) = fixture().await;
            assert_eq!(client.get_messages().await.unwrap(), []);
            finish(client, &home).await;
        });
    });
    tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_somebody_else_runs_can_be_spoken_to() {
    for detail in ["delta", "full"] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().text(["Hel", "lo"]));
        let mut command = home.dreb().args(["--event-detail", detail]).command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let client = RpcClient::from_streams(reader, writer, RpcClientOptions::new()).await.unwrap();
        assert_eq!(client.pid(), None);
        assert!(client.has_delta_events());
        let mut events = client.events();
        assert_eq!(client.prompt_and_wait("hi").await.unwrap().text(), "Hello");
        let updates: Vec<_> = client_common::until(&mut events, "agent_settled")
            .await
            .into_iter()
            .filter_map(|event| event.partial().map(dreb_client::PartialMessage::text))
            .collect();
        assert_eq!(updates, ["", "Hel", "Hello", "Hello"], "{detail}");
        let notice = client.shutdown().await;
        assert!(matches!(notice.reason(), ExitReason::Disconnected), "{notice}");
        assert_eq!(within("the server", child.wait()).await.unwrap().code(), Some(0));
    }
}

#[tokio::test]
async fn dropping_the_handle_closes_streams_and_the_server_ends() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut command = home.dreb().command();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    drop(RpcClient::from_streams(reader, writer, RpcClientOptions::new()).await.unwrap());
    assert_eq!(within("the server", child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let home = Home::empty();
    let missing = home.cwd().join("missing");
    match RpcClient::start(options(&home).binary(&missing)).await.unwrap_err() {
        StartError::BinaryNotFound { looked_at } => {
            assert_eq!(looked_at, [format!("{}: No such file or directory (os error 2)", missing.display())]);
        }
        other => panic!("{other}"),
    }
    let file = home.file("plain", "");
    for (cwd, error) in [(&missing, std::io::ErrorKind::NotFound), (&file, std::io::ErrorKind::NotADirectory)] {
        match RpcClient::start(options(&home).cwd(cwd)).await.unwrap_err() {
            StartError::WorkingDirectory { path, source } => assert_eq!((&path, source.kind()), (cwd, error)),
            other => panic!("{other}"),
        }
    }
    match RpcClient::start(options(&home)).await.unwrap_err() {
        StartError::EarlyExit(notice) => {
            assert_eq!((notice.code(), notice.was_requested()), (Some(1), false));
            assert!(notice.stderr_tail().contains("No models available.\n"), "{notice}");
            assert!(notice.stderr_tail().contains(home.agent_dir().to_str().unwrap()), "{notice}");
            let shown = StartError::EarlyExit(notice).to_string();
            assert!(shown.starts_with("the server ended before it answered: exited with status 1; standard error: "));
        }
        other => panic!("{other}"),
    }
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    match RpcClient::start(options(&home).provider("fake").model("no such model at all")).await {
        // A provider may know models that the catalog does not: then it is taken at its word.
        Ok(client) => assert_eq!(client.get_state().await.unwrap().model.unwrap().id, "no such model at all"),
        Err(error) => panic!("{error}"),
    }
    match RpcClient::start(options(&home).model("nowhere/nothing")).await.unwrap_err() {
        StartError::EarlyExit(notice) => assert_eq!(notice.code(), Some(1)),
        other => panic!("{other}"),
    }
    empty(&home, dreb_tests::DEADLINE).await;
}

#[tokio::test]
async fn a_key_reaches_the_provider_and_nobody_else() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([
        Reply::new().tool_call("c1", "bash", &json!({"command": "env; cat /proc/self/environ | tr '\\0' '\\n'"})),
        Reply::say("done"),
    ]);
    let client = start(options(&home).api_key("sk-given-42")).await;
    let outcome = client.prompt_and_wait("show the environment").await.unwrap();
    assert_eq!(outcome.text(), "done");
    for request in fake.requests() {
        assert_eq!(request.headers["x-api-key"], "sk-given-42");
        assert!(!request.body.to_string().contains("sk-given-42"));
    }
    let bash = client.bash("env").await.unwrap().output;
    let all = serde_json::to_string(&client.get_messages().await.unwrap()).unwrap();
    for output in [&bash, &all] {
        assert!(output.contains("HOME="), "{output}");
        assert!(!output.contains("sk-given-42") && !output.contains("DREB_API_KEY"), "{output}");
    }
    let arguments = std::fs::read(format!("/proc/{}/cmdline", client.pid().unwrap())).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains("sk-given-42"));
    assert!(!client.stderr_tail().contains("sk-given-42"));
    finish(client, &home).await;
}

#[tokio::test]
async fn the_environment_is_what_the_options_say() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    // Cargo gives this variable to tests.
    let mark = "CARGO_MANIFEST_DIR";
    assert!(std::env::var_os(mark).is_some());
    let variables = |output: String| -> Vec<String> { output.lines().map(str::to_owned).collect() };

    let client = start(options(&home).env("ADDED", "a b=c").env("GONE", "x").env_remove("GONE")).await;
    let cleared = variables(client.bash("env").await.unwrap().output);
    assert!(cleared.contains(&"ADDED=a b=c".to_owned()));
    assert!(!cleared.iter().any(|line| line.starts_with(mark) || line.starts_with("GONE=")), "{cleared:?}");
    finish(client, &home).await;

    let inheriting = home
        .environment()
        .into_iter()
        .fold(RpcClientOptions::new().binary(binary::dreb()).cwd(home.cwd()), |options, (name, value)| {
            options.env(name, value)
        });
    let client = start(inheriting.clone()).await;
    assert!(variables(client.bash("env").await.unwrap().output).iter().any(|line| line.starts_with(mark)));
    finish(client, &home).await;
    let client = start(inheriting.env_remove(mark)).await;
    assert!(!variables(client.bash("env").await.unwrap().output).iter().any(|line| line.starts_with(mark)));
    finish(client, &home).await;
}

#[tokio::test]
async fn options_become_what_the_server_does() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::say("ok"));
    let sessions = home.path().join("elsewhere");
    let options = options(&home)
        .provider("fake-openai")
        .model("fake-gpt")
        .thinking(ThinkingLevel::Low)
        .session_dir(&sessions)
        .tools(["read", "bash"])
        // Values that look like flags.
        .system_prompt("--no-session is what I begin with")
        .append_system_prompt("- and a point at the end");
    let client = start(options).await;
    assert_eq!(client.stderr_tail().lines().filter(|line| !line.contains("running as root")).count(), 0);
    let state = client.get_state().await.unwrap();
    let model = state.model.unwrap();
    assert_eq!((model.provider.as_str(), model.id.as_str()), ("fake-openai", "fake-gpt"));
    assert_eq!(state.thinking_level, ThinkingLevel::Low);
    client.prompt_and_wait("hi").await.unwrap();
    let body = fake.request(1).await.body;
    let tools: Vec<_> = body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(tools, ["read", "bash"]);
    let system = body["messages"][0].to_string();
    assert!(system.contains("--no-session is what I begin with"), "{system}");
    assert!(system.contains("- and a point at the end"), "{system}");
    assert_eq!(home::files(&sessions).len(), 1);
    finish(client, &home).await;

    let silent = start(client_common::options(&home).no_session(true).tools::<[&str; 0]>([])).await;
    fake.push(Reply::say("ok"));
    silent.prompt_and_wait("hi").await.unwrap();
    assert_eq!(silent.get_state().await.unwrap().session_file, None);
    assert_eq!(fake.request(2).await.body.get("tools"), None);
    assert_eq!(home::files(&home.sessions()), Vec::<std::path::PathBuf>::new());
    finish(silent, &home).await;
}

#[tokio::test]
async fn a_command_prefix_stands_before_the_real_server() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::say("through"));
    let client = start(options(&home).command_prefix(["nice", "-n", "1", "env", "WRAPPED=yes"])).await;
    assert_eq!(client.prompt_and_wait("hi").await.unwrap().text(), "through");
    assert_eq!(client.bash("echo $WRAPPED").await.unwrap().output, "yes\n");
    finish(client, &home).await;
}

#[tokio::test]
async fn after_a_shutdown_a_new_start_takes_up_work_again() {
    let (fake, home, first) = fixture().await;
    fake.script([Reply::say("one"), Reply::say("two")]);
    assert_eq!(first.prompt_and_wait("a").await.unwrap().text(), "one");
    first.shutdown().await;
    let second = start(options(&home)).await;
    assert_ne!(first.pid(), second.pid());
    assert_eq!(second.prompt_and_wait("b").await.unwrap().text(), "two");
    // Two sessions, one each.
    assert_eq!(second.get_messages().await.unwrap().len(), 2);
    assert_eq!(home::files(&home.sessions()).len(), 2);
    finish(second, &home).await;
    assert!(first.prompt("c").await.is_err(), "the old handle stays closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_clients_start_at_once_each_with_its_own_server() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    // The machine may be small and busy; nothing here is about speed.
    let options = options(&home).no_session(true).start_timeout(Duration::from_secs(120));
    let starts: Vec<_> = (0..100).map(|_| tokio::spawn(RpcClient::start(options.clone()))).collect();
    let mut clients = Vec::new();
    for start in starts {
        clients.push(within("a start", start).await.unwrap().unwrap());
    }
    let mut pids: Vec<_> = clients.iter().map(|client| client.pid().unwrap()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 100);
    let calls: Vec<_> =
        clients.iter().cloned().map(|client| tokio::spawn(async move { client.get_state().await })).collect();
    let mut sessions = std::collections::HashSet::new();
    for call in calls {
        sessions.insert(call.await.unwrap().unwrap().session_id);
    }
    assert_eq!(sessions.len(), 100);
    drop(clients);
    empty(&home, dreb_tests::DEADLINE).await;
}

#[tokio::test]
async fn full_detail_shows_whole_messages_in_the_events() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::new().text(["Hel", "lo"]));
    let client = start(options(&home).event_detail(EventDetail::Full)).await;
    let mut events = client.events();
    client.prompt("hi").await.unwrap();
    let all = client_common::until(&mut events, "agent_settled").await;
    let texts: Vec<_> = all
        .iter()
        .filter(|event| event.kind() == "message_update")
        .map(|event| notation::text(&serde_json::to_value(&**event).unwrap()["message"]))
        .collect();
    assert_eq!(texts, ["", "Hel", "Hello", "Hello"]);
    finish(client, &home).await;
}
