//! Runs seen through the client: partial messages, waiting, queues, aborts, slow subscribers.

mod client_common;

use std::time::Duration;

use client_common::{finish, fixture, next, options, start, until};
use dreb_client::protocol::message::AgentMessage;
use dreb_client::protocol::{AssistantMessage, Event, StopReason};
use dreb_client::{ClientEvent, EventDetail, RpcClient, ServerEvent};
use dreb_tests::{FakeProvider, Gate, Home, Reply, within};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// Arguments that are cut at every character.
const ARGUMENTS: &str = r#" {"a" : [1, -2.5e+3 ,{}, [ ], "ä\u00e4\ud834\udd1e\\\"\/\n", true,false , null], "n":0,"o":{"k":{"x":-1}} , "": "" ,"limit":12} "#;

/// An answer with everything an answer can have.
fn rich() -> Reply {
    Reply::new()
        .thinking(["Let me ", "think… 𝄞"], "sig-1")
        .text(["Hä", "llo \"", "\u{2028}\\ wor", "ld"])
        .tool_call_in("c1", "bash", ["{\"comm", "and\":\"echo \\u00e4", " \\\"x\\\"\",\"time", "out\":1", "2}"])
        .tool_call("c2", "ls", &json!({"path": "."}))
        .tool_call_in("c3", "ls", ARGUMENTS.chars().map(String::from))
}

/// A message without what differs from run to run.
fn comparable(message: &AssistantMessage) -> Value {
    let mut value = serde_json::to_value(message).unwrap();
    for key in ["timestamp", "durationMs", "responseId"] {
        value.as_object_mut().unwrap().remove(key);
    }
    // Only the final message has it for certain.
    for block in value["content"].as_array_mut().unwrap() {
        block.as_object_mut().unwrap().remove("thinkingSignature");
    }
    value
}

fn partial_of(event: &ServerEvent) -> Option<Value> {
    (event.kind() == "message_update")
        .then(|| comparable(&event.partial().expect("the beginning was seen").to_message()))
}

fn ended(event: &ServerEvent) -> Option<AssistantMessage> {
    match &**event {
        Event::MessageEnd(end) => match &end.message {
            AgentMessage::Assistant(answer) => Some(answer.clone()),
            _ => None,
        },
        _ => None,
    }
}

#[tokio::test]
async fn partial_messages_grow_into_the_final_one_alike_in_both_details() {
    let mut series = Vec::new();
    for (model, detail) in [
        ("fake/fake-claude", EventDetail::Delta),
        ("fake/fake-claude", EventDetail::Full),
        ("fake-openai/fake-gpt", EventDetail::Delta),
        ("fake-openai/fake-gpt", EventDetail::Full),
    ] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.script([rich(), Reply::new().text(["done", "."])]);
        let client = start(options(&home).model(model).event_detail(detail)).await;
        let mut events = client.events_lossless();
        client.prompt("go").await.unwrap();
        let all = until(&mut events, "agent_settled").await;
        let partials: Vec<_> = all.iter().filter_map(partial_of).collect();
        for pair in all.windows(2) {
            if let (Some(partial), Some(answer)) = (pair[0].partial(), ended(&pair[1])) {
                let last = comparable(&partial.to_message());
                assert_eq!(last["content"], comparable(&answer)["content"], "{model} {detail:?}");
                assert_eq!(partial.text(), answer.text());
            }
        }
        let answers: Vec<_> = all.iter().filter_map(ended).collect();
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0].text(), "Hällo \"\u{2028}\\ world");
        let arguments: Vec<_> = answers[0].tool_calls().map(|call| Value::Object(call.arguments.clone())).collect();
        assert_eq!(arguments[0], json!({"command": "echo ä \"x\"", "timeout": 12}));
        assert_eq!(arguments[2], serde_json::from_str::<Value>(ARGUMENTS).unwrap());
        if detail == EventDetail::Full {
            // What the server repeats is what the client puts together.
            let repeated: Vec<_> = all
                .iter()
                .filter_map(|event| match &**event {
                    Event::MessageUpdate(update) => match update.message.as_deref() {
                        Some(AgentMessage::Assistant(message)) => Some(comparable(message)),
                        other => panic!("{other:?}"),
                    },
                    _ => None,
                })
                .collect();
            for (partial, repeated) in partials.iter().zip(&repeated) {
                assert_eq!(partial, repeated, "{model}");
            }
            assert_eq!(partials.len(), repeated.len());
        }
        series.push(partials);
        finish(client, &home).await;
        fake.assert_done();
    }
    assert!(series[0].len() > 15, "{}", series[0].len());
    assert_eq!(series[0], series[1]);
    assert_eq!(series[2], series[3]);
}

#[tokio::test]
async fn the_streaming_answer_can_be_asked_for() {
    let (fake, home, client) = fixture().await;
    let gate = Gate::new();
    fake.push(Reply::new().text_start().text_deltas(["so ", "far"]).gate(&gate).text_deltas([" and on"]).end_block());
    let mut events = client.events();
    assert!(client.partial().is_none());
    client.prompt("go").await.unwrap();
    while next(&mut events).await.text_delta() != Some("far") {}
    assert_eq!(client.partial().unwrap().text(), "so far");
    gate.release();
    until(&mut events, "agent_settled").await;
    assert!(client.partial().is_none());
    finish(client, &home).await;
}

#[tokio::test]
async fn an_outcome_has_all_messages_and_the_sum_of_the_usage() {
    let (fake, home, client) = fixture().await;
    fake.script([rich(), Reply::say("done")]);
    let outcome = within("the run", client.prompt_and_wait("go")).await.unwrap();
    let roles: Vec<_> = outcome
        .messages
        .iter()
        .map(|message| serde_json::to_value(message).unwrap()["role"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(roles, ["user", "assistant", "toolResult", "toolResult", "toolResult", "assistant"]);
    assert_eq!((outcome.text().as_str(), outcome.stop_reason()), ("done", Some(&StopReason::Stop)));
    assert_eq!(outcome.error_message(), None);
    let usage = &outcome.usage;
    assert_eq!((usage.input, usage.output, usage.cache_read, usage.cache_write), (240, 14, 60, 22));
    assert_eq!(usage.total_tokens, Some(336));
    let total = 2.0 * (120.0 * 3.0 + 7.0 * 15.0 + 30.0 * 0.3 + 11.0 * 3.75) / 1e6;
    assert!((usage.cost.total.0 - total).abs() < 1e-12, "{} {total}", usage.cost.total.0);
    assert_eq!(client.get_messages().await.unwrap(), outcome.messages);
    assert!(!client.get_state().await.unwrap().is_streaming);
    finish(client, &home).await;
}

#[tokio::test]
async fn waiting_goes_on_across_retries() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.settings(&json!({ "retry": { "baseDelayMs": 20 } }));
    let client = start(options(&home)).await;
    let overloaded = || Reply::error(529, "overloaded_error", "Overloaded");
    fake.script([overloaded(), overloaded(), Reply::say("at last")]);
    let outcome = within("the run", client.prompt_and_wait("go")).await.unwrap();
    assert_eq!((outcome.text().as_str(), outcome.stop_reason()), ("at last", Some(&StopReason::Stop)));
    let reasons = outcome.messages.iter().filter_map(|message| match message {
        AgentMessage::Assistant(answer) => Some(answer.stop_reason.clone()),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), [StopReason::Error, StopReason::Error, StopReason::Stop]);

    fake.script([overloaded(), overloaded(), Reply::say("again")]);
    let mut events = client.events();
    client.prompt("go").await.unwrap();
    within("idleness", client.wait_for_idle()).await.unwrap();
    assert_eq!(client.get_last_assistant_text().await.unwrap().as_deref(), Some("again"));
    let ends = until(&mut events, "agent_settled").await.iter().filter(|event| event.kind() == "agent_end").count();
    assert_eq!(ends, 3, "one for each try");
    // What cannot be retried is an outcome, not an error of the call.
    fake.push(Reply::error(400, "invalid_request_error", "no such thing"));
    let outcome = within("the run", client.prompt_and_wait("go")).await.unwrap();
    assert_eq!(outcome.stop_reason(), Some(&StopReason::Error));
    assert!(outcome.error_message().unwrap().contains("no such thing"));
    finish(client, &home).await;
    fake.assert_done();
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_begun_anew_in_its_partial_message() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.settings(&json!({ "retry": { "baseDelayMs": 4 } }));
    for detail in [EventDetail::Delta, EventDetail::Full] {
        let client = start(options(&home).event_detail(detail)).await;
        fake.script([
            Reply::new().text_start().text_deltas(["void"]).drop_connection(),
            Reply::new().text(["go", "od"]),
        ]);
        let mut events = client.events_lossless();
        client.prompt("go").await.unwrap();
        let all = until(&mut events, "agent_settled").await;
        let texts: Vec<_> =
            all.iter().filter_map(|event| event.partial()).map(dreb_client::PartialMessage::text).collect();
        assert_eq!(texts[texts.len() - 4..], ["", "go", "good", "good"], "{detail:?} {texts:?}");
        finish(client, &home).await;
    }
}

#[tokio::test]
async fn steering_and_follow_ups_belong_to_the_run_that_is_waited_for() {
    let (fake, home, client) = fixture().await;
    let gate = Gate::new();
    fake.script([
        Reply::new().text_start().text_deltas(["one"]).gate(&gate).end_block(),
        Reply::say("two"),
        Reply::say("three"),
    ]);
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.prompt_and_wait("start").await }
    });
    gate.reached().await;
    client.follow_up("later").await.unwrap();
    client.steer("sooner").await.unwrap();
    // Queued as a prompt and waited for: it ends with the same run.
    gate.release();
    let outcome = within("the run", run).await.unwrap().unwrap();
    let texts: Vec<_> = outcome
        .messages
        .iter()
        .map(|message| match message {
            AgentMessage::User(user) => user.content.joined_text(""),
            AgentMessage::Assistant(answer) => answer.text(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(texts, ["start", "one", "sooner", "two", "later", "three"]);
    finish(client, &home).await;
    fake.assert_done();
}

#[tokio::test]
async fn an_abort_from_another_task_ends_the_wait() {
    let (fake, home, client) = fixture().await;
    for (reply, content) in
        [(Reply::new().text_start().text_deltas(["half"]).hang(), "half"), (Reply::new().hang(), "")]
    {
        fake.push(reply);
        let requests = fake.requests().len();
        let mut events = client.events();
        let run = tokio::spawn({
            let client = client.clone();
            async move { client.prompt_and_wait("go").await }
        });
        fake.request(requests + 1).await;
        if !content.is_empty() {
            while next(&mut events).await.text_delta() != Some(content) {}
        }
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.wait_for_idle().await }
        });
        client.abort().await.unwrap();
        let outcome = within("the run", run).await.unwrap().unwrap();
        assert_eq!((outcome.stop_reason(), outcome.text().as_str()), (Some(&StopReason::Aborted), content));
        assert_eq!(outcome.error_message(), Some("Request was aborted."));
        within("idleness", waiting).await.unwrap().unwrap();
    }
    // A tool in the middle of its work.
    fake.push(Reply::new().tool_call("c1", "bash", &json!({"command": "echo begun; setsid sleep 1000 & sleep 1000"})));
    let mut events = client.events();
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.prompt_and_wait("go").await }
    });
    until(&mut events, "tool_execution_update").await;
    client.abort().await.unwrap();
    let outcome = within("the run", run).await.unwrap().unwrap();
    assert!(
        outcome.messages.iter().any(|message| matches!(message, AgentMessage::ToolResult(result) if result.is_error))
    );
    dreb_tests::poll_until("the tool to end", Duration::from_secs(5), || {
        (dreb_tests::process::living_in(&home.path()).len() == 1).then_some(())
    })
    .await;
    finish(client, &home).await;
}

#[tokio::test]
async fn a_dropped_wait_leaves_the_run_alone() {
    let (fake, home, client) = fixture().await;
    let gate = Gate::new();
    fake.push(Reply::new().text_start().text_deltas(["on"]).gate(&gate).end_block());
    let run = tokio::spawn({
        let client = client.clone();
        async move { client.prompt_and_wait("go").await }
    });
    gate.reached().await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    assert!(client.get_state().await.unwrap().is_streaming);
    gate.release();
    within("idleness", client.wait_for_idle()).await.unwrap();
    assert_eq!(client.get_last_assistant_text().await.unwrap().as_deref(), Some("on"));
    finish(client, &home).await;
}

const DELTAS: usize = 10_000;

/// Has an answer of ten thousand deltas streamed and returns the client with three subscriptions that
/// nobody has read.
async fn flood(home: &Home, fake: &FakeProvider) -> (RpcClient, [dreb_client::Events; 3]) {
    let deltas: Vec<String> = (0..DELTAS).map(|number| format!("{number} ")).collect();
    fake.push(Reply::new().text(deltas).in_one_write());
    let client = start(options(home).update_capacity(100).no_session(true)).await;
    let subscriptions = [client.events_lossless(), client.events(), client.events_without_updates()];
    client.prompt("go").await.unwrap();
    within("idleness", client.wait_for_idle()).await.unwrap();
    (client, subscriptions)
}

#[tokio::test]
async fn ten_thousand_deltas_are_lost_to_nobody_or_counted_to_the_last() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let (client, [mut lossless, mut joined, mut without]) = flood(&home, &fake).await;
    let all = until(&mut lossless, "agent_settled").await;
    let deltas: Vec<_> = all.iter().filter_map(|event| event.text_delta()).collect();
    assert_eq!(deltas.len(), DELTAS);
    let whole: String = (0..DELTAS).map(|number| format!("{number} ")).collect();
    assert!(deltas.concat() == whole);
    let updates = all.iter().filter(|event| event.kind() == "message_update").count();
    assert_eq!(updates, DELTAS + 2, "a beginning and an end");

    // The slow one: what came before the answer, one gap, the newest hundred, what came after it.
    let mut kinds = Vec::new();
    let mut lost = 0;
    let mut last = None;
    while kinds.last().map(String::as_str) != Some("agent_settled") {
        match within("an event", joined.next()).await.unwrap() {
            ClientEvent::Lagged(count) => {
                lost += count;
                kinds.push("lagged".to_owned());
            }
            ClientEvent::Event(event) => {
                last = event.partial().cloned().or(last);
                kinds.push(event.kind().to_owned());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lost, u64::try_from(updates - 100).unwrap());
    assert_eq!(kinds.iter().filter(|kind| *kind == "message_update").count(), 100);
    kinds.dedup();
    let expected = [
        "agent_start",
        "turn_start",
        "message_start",
        "message_end",
        "message_start",
        "lagged",
        "message_update",
        "message_end",
        "turn_end",
        "agent_end",
        "agent_settled",
    ];
    assert_eq!(kinds, expected);
    // What was lost is in the partial message all the same.
    assert!(last.unwrap().text() == whole);

    let kinds: Vec<_> =
        until(&mut without, "agent_settled").await.iter().map(|event| event.kind().to_owned()).collect();
    let important = expected.into_iter().filter(|kind| !["lagged", "message_update"].contains(kind));
    assert_eq!(kinds, important.collect::<Vec<_>>());
    finish(client, &home).await;
}

#[tokio::test]
async fn a_lossless_subscriber_slows_the_server_down_and_gets_everything() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let deltas: Vec<String> = (0..DELTAS).map(|number| format!("{number:0100} ")).collect();
    fake.push(Reply::new().text(deltas).in_one_write());
    // Far less than the answer: 6 MB of updates.
    let client = start(options(&home).event_budget(64 << 10).no_session(true)).await;
    let mut events = client.events_lossless();
    client.prompt("go").await.unwrap();
    while next(&mut events).await.text_delta().is_none() {}
    // Unread events hold up no call.
    assert!(client.get_state().await.unwrap().is_streaming, "the server waits for the reader");
    let rest = until(&mut events, "agent_settled").await;
    assert_eq!(rest.iter().filter(|event| event.text_delta().is_some()).count(), DELTAS - 1);
    finish(client, &home).await;
}
