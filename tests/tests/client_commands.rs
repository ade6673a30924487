//! Every named method of the client against the real server.

mod client_common;

use client_common::{finish, fixture, next, options, start, until};
use dreb_client::CallError;
use dreb_client::protocol::message::AgentMessage;
use dreb_client::protocol::queue::{Prompt, QueueMode, StreamingBehavior};
use dreb_client::protocol::{ContentBlock, ImageContent, ThinkingLevel};
use dreb_tests::{FakeProvider, Gate, Home, Reply, within};
use pretty_assertions::assert_eq;
use serde_json::{Map, json};

fn refusal(result: Result<impl std::fmt::Debug, CallError>) -> (String, String) {
    match result.unwrap_err() {
        CallError::Failed { command, message, .. } => (command, message),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_new_session_is_empty() {
    let (_fake, home, client) = fixture().await;
    let state = client.get_state().await.unwrap();
    let model = state.model.unwrap();
    assert_eq!((model.provider.as_str(), model.id.as_str()), ("fake", "fake-claude"));
    assert!(!state.is_streaming && !state.is_retrying && !state.is_compacting);
    assert_eq!((state.message_count, state.pending_message_count, state.retry_attempt), (0, 0, 0));
    assert_eq!((state.steering_mode, state.follow_up_mode), (QueueMode::OneAtATime, QueueMode::OneAtATime));
    assert_eq!(client.get_messages().await.unwrap(), []);
    assert_eq!(client.get_last_assistant_text().await.unwrap(), None);
    let pending = client.get_pending_messages().await.unwrap();
    assert_eq!((pending.steering.len(), pending.follow_up.len()), (0, 0));
    assert_eq!(client.get_version().await.unwrap(), *client.server_version().unwrap());
    within("idleness", client.wait_for_idle()).await.unwrap();
    client.abort().await.unwrap();
    client.abort_bash().await.unwrap();
    finish(client, &home).await;
}

#[tokio::test]
async fn settings_of_the_session_can_be_changed() {
    let (_fake, home, client) = fixture().await;
    client.set_steering_mode(QueueMode::All).await.unwrap();
    client.set_follow_up_mode(QueueMode::All).await.unwrap();
    client.set_thinking_level(ThinkingLevel::Medium).await.unwrap();
    let state = client.get_state().await.unwrap();
    assert_eq!((state.steering_mode, state.follow_up_mode), (QueueMode::All, QueueMode::All));
    assert_eq!(state.thinking_level, ThinkingLevel::Medium);

    let models = client.get_available_models().await.unwrap();
    let ids: Vec<_> = models.iter().map(|model| format!("{}/{}", model.provider, model.id)).collect();
    assert_eq!(ids, ["fake/fake-claude", "fake/fake-mini", "fake-openai/fake-gpt", "fake-openai/fake-gpt-mini"]);
    let model = client.set_model("fake-openai", "fake-gpt-mini").await.unwrap();
    assert_eq!(model, models[3]);
    let state = client.get_state().await.unwrap();
    assert_eq!(state.model.unwrap(), models[3]);
    assert_eq!(state.thinking_level, ThinkingLevel::Off, "this model does not think");

    let (command, message) = refusal(client.set_model("fake", "nothing").await);
    assert_eq!((command.as_str(), message.as_str()), ("set_model", "Model not found: fake/nothing"));
    let (command, _) = refusal(client.set_steering_mode(QueueMode::Unknown("sometimes".into())).await);
    assert_eq!(command, "set_steering_mode");
    let (command, _) = refusal(client.set_thinking_level(ThinkingLevel::Unknown("wildly".into())).await);
    assert_eq!(command, "set_thinking_level");
    assert_eq!(client.get_state().await.unwrap().steering_mode, QueueMode::All, "refused is unchanged");
    finish(client, &home).await;
}

#[tokio::test]
async fn a_prompt_is_answered_and_kept() {
    let (fake, home, client) = fixture().await;
    fake.push(Reply::say("Hello."));
    let mut events = client.events();
    let prompt = Prompt {
        images: Some(vec![ImageContent::new("aGVsbG8=", "image/png")]),
        ..Prompt::new("Look at \u{2028} this: \"ä\" \\ 𝄞\n")
    };
    client.call(prompt).await.unwrap();
    until(&mut events, "agent_settled").await;
    assert_eq!(client.get_last_assistant_text().await.unwrap().as_deref(), Some("Hello."));
    let messages = client.get_messages().await.unwrap();
    let [AgentMessage::User(user), AgentMessage::Assistant(answer)] = &messages[..] else { panic!("{messages:?}") };
    let blocks = user.content.to_blocks();
    assert_eq!(blocks[0], ContentBlock::text("Look at \u{2028} this: \"ä\" \\ 𝄞\n"));
    assert_eq!(answer.text(), "Hello.");
    let sent = fake.request(1).await.message(-1).to_string();
    assert!(sent.contains("aGVsbG8="), "{sent}");
    finish(client, &home).await;
    fake.assert_done();
}

#[tokio::test]
async fn queued_messages_can_be_seen_and_taken_back() {
    let (fake, home, client) = fixture().await;
    let gate = Gate::new();
    fake.push(Reply::new().text_start().text_deltas(["one"]).gate(&gate).end_block());
    client.prompt("start").await.unwrap();
    gate.reached().await;
    let (command, message) = refusal(client.prompt("not now").await);
    assert_eq!(command, "prompt");
    assert!(message.contains("streamingBehavior"), "{message}");
    client.steer("s1").await.unwrap();
    client.follow_up("f1").await.unwrap();
    for (behavior, text) in [(StreamingBehavior::Steer, "s2"), (StreamingBehavior::FollowUp, "f2")] {
        client.call(Prompt { streaming_behavior: Some(behavior), ..Prompt::new(text) }).await.unwrap();
    }
    let pending = client.get_pending_messages().await.unwrap();
    assert_eq!(
        (&pending.steering[..], &pending.follow_up[..]),
        (&["s1", "s2"].map(String::from)[..], &["f1", "f2"].map(String::from)[..])
    );
    assert_eq!(pending.steering_messages[1].text, "s2");
    assert_eq!(client.get_state().await.unwrap().pending_message_count, 4);
    assert_eq!(client.clear_pending_messages().await.unwrap(), pending);
    assert_eq!(client.get_pending_messages().await.unwrap().steering, Vec::<String>::new());
    gate.release();
    within("the end", client.wait_for_idle()).await.unwrap();
    assert_eq!(client.get_messages().await.unwrap().len(), 2);
    finish(client, &home).await;
    fake.assert_done();
}

#[tokio::test]
async fn shell_commands_run_are_kept_and_can_be_aborted() {
    let (fake, home, client) = fixture().await;
    let result = client.bash("echo out; echo err >&2; exit 3").await.unwrap();
    assert_eq!((result.output.as_str(), result.exit_code), ("out\nerr\n", Some(3)));
    assert!(!result.cancelled && !result.truncated);
    let messages = client.get_messages().await.unwrap();
    assert!(matches!(&messages[..], [AgentMessage::BashExecution(run)] if run.output == "out\nerr\n"), "{messages:?}");

    // Two at once, aborted from another task; one with a child that hides.
    let started = home.cwd().join("started");
    let command = format!("setsid sleep 1000 & echo x >> '{}'; sleep 1000", started.display());
    let runs: Vec<_> = (0..2)
        .map(|_| {
            let (client, command) = (client.clone(), command.clone());
            tokio::spawn(async move { client.bash(command).await })
        })
        .collect();
    let both = || std::fs::read_to_string(&started).is_ok_and(|text| text == "x\nx\n").then_some(());
    dreb_tests::poll_until("both commands to run", dreb_tests::DEADLINE, both).await;
    client.abort_bash().await.unwrap();
    for run in runs {
        let result = within("an aborted command", run).await.unwrap().unwrap();
        assert_eq!((result.cancelled, result.exit_code), (true, None));
    }
    fake.push(Reply::say("seen"));
    client.prompt_and_wait("what did I run?").await.unwrap();
    assert!(fake.request(1).await.body.to_string().contains("out\\nerr"));
    finish(client, &home).await;
}

#[tokio::test]
async fn commands_without_a_type_go_through_as_they_are() {
    let (_fake, home, client) = fixture().await;
    let data = client.call_raw("get_pending_messages", Map::new(), None).await.unwrap();
    assert_eq!(data, json!({"steering": [], "followUp": [], "steeringMessages": [], "followUpMessages": []}));
    let (command, message) = refusal(client.call_raw("no_such_thing", Map::new(), None).await);
    assert_eq!((command.as_str(), message.as_str()), ("no_such_thing", "Unknown command: no_such_thing"));
    let fields = Map::from_iter([("message".to_owned(), json!(5))]);
    let (command, message) = refusal(client.call_raw("prompt", fields, None).await);
    assert_eq!(command, "prompt");
    assert!(message.starts_with("Command failed: Invalid prompt: message: "), "{message}");
    // A line without an id is answered by one without an id, which is nobody's.
    let mut events = client.events();
    client.send_raw(json!({"type": "nonsense"}).as_object().unwrap()).await.unwrap();
    match within("a report", events.next()).await {
        Some(dreb_client::ClientEvent::Malformed(line)) => {
            assert_eq!(line.error, "a response without an id: Unknown command: nonsense");
        }
        other => panic!("{other:?}"),
    }
    finish(client, &home).await;
}

#[tokio::test]
async fn a_large_prompt_and_a_large_answer_pass() {
    let (fake, home, client) = fixture().await;
    let text = "ä\"\\\u{2028} 𝄞".repeat(200_000);
    fake.push(Reply::say(text.clone()));
    let outcome = within("the run", client.prompt_and_wait(text.clone())).await.unwrap();
    assert!(outcome.text() == text);
    assert!(client.get_last_assistant_text().await.unwrap().is_some_and(|last| last == text));
    let AgentMessage::User(user) = &client.get_messages().await.unwrap()[0] else { panic!("the prompt is first") };
    assert!(user.content.joined_text("") == text);
    finish(client, &home).await;
}

#[tokio::test]
async fn two_clients_work_side_by_side() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let (first, second) = tokio::join!(start(options(&home)), start(options(&home)));
    let gates = [Gate::new(), Gate::new()];
    fake.push(Reply::new().text_start().text_deltas(["1"]).gate(&gates[0]).end_block());
    let mut events = [first.events(), second.events()];
    first.prompt("a").await.unwrap();
    gates[0].reached().await;
    fake.push(Reply::new().text_start().text_deltas(["2"]).gate(&gates[1]).end_block());
    second.prompt("b").await.unwrap();
    gates[1].reached().await;
    assert!(first.get_state().await.unwrap().is_streaming && second.get_state().await.unwrap().is_streaming);
    gates[1].release();
    until(&mut events[1], "agent_settled").await;
    assert!(first.get_state().await.unwrap().is_streaming, "one run is no concern of the other client");
    second.shutdown().await;
    gates[0].release();
    let all = until(&mut events[0], "agent_settled").await;
    assert!(all.iter().all(|event| event.text_delta() != Some("2")));
    assert_eq!(first.get_last_assistant_text().await.unwrap().as_deref(), Some("1"));
    finish(first, &home).await;
}

#[tokio::test]
async fn a_thousand_calls_at_once_are_all_answered() {
    let (_fake, home, client) = fixture().await;
    let session = client.get_state().await.unwrap().session_id;
    let calls: Vec<_> = (0..1000)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                match number % 3 {
                    0 => client.get_state().await.map(|state| state.session_id),
                    1 => client.get_version().await.map(|version| version.version),
                    _ => client.call_raw("get_messages", Map::new(), None).await.map(|data| data.to_string()),
                }
            })
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let answer = within("an answer", call).await.unwrap().unwrap();
        let expected = match number % 3 {
            0 => session.as_str(),
            1 => env!("CARGO_PKG_VERSION"),
            _ => r#"{"messages":[]}"#,
        };
        assert_eq!(answer, expected);
    }
    finish(client, &home).await;
}

#[tokio::test]
async fn an_edit_tells_its_difference() {
    let (fake, home, client) = fixture().await;
    home.file("poem.txt", "one\ntwo\nthree\n");
    let edit = json!({"path": "poem.txt", "oldText": "two", "newText": "TWO"});
    fake.script([
        Reply::new().tool_call("c1", "read", &json!({"path": "poem.txt"})).tool_call("c2", "edit", &edit),
        Reply::say("done"),
    ]);
    let mut events = client.events();
    let outcome = within("the run", client.prompt_and_wait("shout")).await.unwrap();
    assert_eq!(home.read("poem.txt"), "one\nTWO\nthree\n");
    let results: Vec<_> = outcome
        .messages
        .iter()
        .filter_map(|message| match message {
            AgentMessage::ToolResult(result) => Some(result),
            _ => None,
        })
        .collect();
    assert_eq!(results.iter().map(|result| result.tool_call_id.as_str()).collect::<Vec<_>>(), ["c1", "c2"]);
    assert!(results.iter().all(|result| !result.is_error));
    assert_eq!(results[1].details, Some(json!({"diff": " 1 one\n-2 two\n+2 TWO\n 3 three", "firstChangedLine": 2})));
    let ends: Vec<_> = loop_until_settled(&mut events).await;
    assert_eq!(ends, [("c1", false), ("c2", false)].map(|(id, failed)| (id.to_owned(), failed)));
    finish(client, &home).await;
}

/// The ends of tool calls up to the end of the run, ordered by id.
async fn loop_until_settled(events: &mut dreb_client::Events) -> Vec<(String, bool)> {
    let mut ends = Vec::new();
    loop {
        let event = next(events).await;
        match &*event {
            dreb_client::protocol::Event::ToolExecutionEnd(end) => ends.push((end.tool_call_id.clone(), end.is_error)),
            dreb_client::protocol::Event::AgentSettled(_) => break,
            _ => {}
        }
    }
    ends.sort();
    ends
}
