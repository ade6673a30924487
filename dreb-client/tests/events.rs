//! Subscriptions against a peer in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

mod common;

use common::{agent_end, answer_message, connect, message, text_delta, text_start};
use dreb_client::protocol::Event;
use dreb_client::{ClientEvent, EventDetail, Events, RpcClient, RpcClientOptions};
use futures_util::StreamExt;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// Has the peer answer a call, so that everything it wrote before has been taken in.
async fn sync(client: &RpcClient, peer: &mut common::Peer) {
    let (result, ()) = tokio::join!(client.get_last_assistant_text(), async {
        let request = peer.expect("get_last_assistant_text").await;
        peer.answer(&request, json!({"text": null})).await;
    });
    result.unwrap();
}

/// What waits in a subscription, in short.
async fn waiting(events: &mut Events) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(Some(event)) = futures_util::FutureExt::now_or_never(events.next()) {
        all.push(match event {
            ClientEvent::Event(event) => event.text_delta().map_or_else(|| event.kind().to_owned(), str::to_owned),
            ClientEvent::Lagged(count) => format!("lagged {count}"),
            ClientEvent::Malformed(line) => format!("malformed {}", line.line),
            ClientEvent::Exited(_) => "exited".to_owned(),
            other => format!("{other:?}"),
        });
    }
    all
}

#[tokio::test]
async fn a_subscriber_gets_what_comes_after_it_subscribed() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    peer.send(&text_delta("before")).await;
    sync(&client, &mut peer).await;
    let mut events = client.events();
    let mut second = client.events_without_updates();
    for event in [text_delta("after"), agent_end(), json!({"type": "extension_ui_request", "id": "u"})] {
        peer.send(&event).await;
    }
    peer.send_bytes(b"\n\r\nnot json\n{\"type\":\"agent_end\"}\n").await;
    sync(&client, &mut peer).await;
    let common = ["agent_end", "extension_ui_request", "malformed not json", "malformed {\"type\":\"agent_end\"}"];
    assert_eq!(waiting(&mut events).await, [&["after"][..], &common[..]].concat());
    assert_eq!(waiting(&mut second).await, common);
}

#[tokio::test]
async fn a_slow_subscriber_loses_only_updates_and_learns_how_many_and_where() {
    let (client, mut peer) = connect(RpcClientOptions::new().update_capacity(3)).await;
    let mut joined = client.events();
    let mut lossless = client.events_lossless();
    let mut sent = Vec::new();
    for block in 0..3 {
        for index in 0..4 {
            sent.push(format!("{block}.{index}"));
            peer.send(&text_delta(&format!("{block}.{index}"))).await;
        }
        sent.push("agent_end".into());
        peer.send(&agent_end()).await;
    }
    sync(&client, &mut peer).await;
    assert_eq!(
        waiting(&mut joined).await,
        ["lagged 4", "agent_end", "lagged 4", "agent_end", "lagged 1", "2.1", "2.2", "2.3", "agent_end"]
    );
    assert_eq!(waiting(&mut lossless).await, sent);
    // The count starts anew.
    for index in 0..5 {
        peer.send(&text_delta(&index.to_string())).await;
    }
    sync(&client, &mut peer).await;
    assert_eq!(waiting(&mut joined).await, ["lagged 2", "2", "3", "4"]);
}

#[tokio::test]
async fn unread_events_up_to_the_budget_hold_up_no_answer() {
    let (client, mut peer) = connect(RpcClientOptions::new().event_budget(1 << 20)).await;
    let _unread = client.events_lossless();
    let line = text_delta(&"x".repeat(1000)).to_string();
    // Three times the budget, an update counting its text and 512 bytes: while a call waits the client reads on.
    let (result, ()) = tokio::join!(client.get_last_assistant_text(), async {
        let request = peer.expect("get_last_assistant_text").await;
        for _ in 0..2 << 10 {
            peer.send_bytes(format!("{line}\n").as_bytes()).await;
        }
        peer.answer(&request, json!({"text": "found"})).await;
    });
    assert_eq!(result.unwrap().as_deref(), Some("found"));
}

#[tokio::test]
async fn past_the_budget_the_peer_has_to_wait_until_the_subscriber_reads() {
    const LINES: usize = 4000;
    let (client, mut peer) = connect(RpcClientOptions::new().event_budget(100_000)).await;
    let mut events = client.events_lossless();
    let written = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let writer = tokio::spawn({
        let written = written.clone();
        async move {
            let line = format!("{}\n", text_delta(&"x".repeat(900)));
            for _ in 0..LINES {
                peer.send_bytes(line.as_bytes()).await;
                written.fetch_add(line.len(), std::sync::atomic::Ordering::Relaxed);
            }
            peer
        }
    });
    // Everything on this one thread runs until nobody can go on.
    let mut last = usize::MAX;
    loop {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let now = written.load(std::sync::atomic::Ordering::Relaxed);
        if now == last {
            break;
        }
        last = now;
    }
    // Updates count 512 bytes more than their text: the budget, a read, and what the pipe holds.
    assert!((64_000..400_000).contains(&last), "{last}");
    for index in 0..LINES {
        assert!(matches!(events.next().await, Some(ClientEvent::Event(_))), "{index}");
    }
    writer.await.unwrap();
}

#[tokio::test]
async fn a_dropped_subscription_lets_the_reader_go_on() {
    let (client, mut peer) = connect(RpcClientOptions::new().event_budget(10_000)).await;
    let unread = client.events_lossless();
    let writer = tokio::spawn(async move {
        for _ in 0..1000 {
            peer.send(&text_delta(&"x".repeat(900))).await;
        }
        peer.send(&agent_end()).await;
        peer
    });
    let mut events = client.events_without_updates();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!writer.is_finished());
    drop(unread);
    assert!(matches!(events.next().await, Some(ClientEvent::Event(event)) if event.kind() == "agent_end"));
    writer.await.unwrap();
}

/// The lines of one streamed answer, in the form of `--event-detail delta` or in full.
fn answer_lines(full: bool) -> Vec<Value> {
    let mut whole = answer_message("");
    let mut lines = vec![message("message_start", &whole)];
    let mut update = |content: Value, mut sub: Value| {
        whole["content"] = content;
        whole["usage"] = common::usage(7);
        let mut line = json!({"type": "message_update"});
        if full {
            line["message"] = whole.clone();
            if let Some(sub) = sub.as_object_mut() {
                sub.remove("id");
                sub.remove("toolName");
                sub.insert("partial".into(), whole.clone());
            }
        } else {
            line["usage"] = whole["usage"].clone();
        }
        line["assistantMessageEvent"] = sub;
        lines.push(line);
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let call = |arguments: Value| json!({"type": "toolCall", "id": "c", "name": "read", "arguments": arguments});
    update(json!([text("")]), json!({"type": "text_start", "contentIndex": 0}));
    update(json!([text("He")]), json!({"type": "text_delta", "contentIndex": 0, "delta": "He"}));
    update(json!([text("Hey")]), json!({"type": "text_delta", "contentIndex": 0, "delta": "y"}));
    update(json!([text("Hey")]), json!({"type": "text_end", "contentIndex": 0, "content": "Hey"}));
    let start = json!({"type": "toolcall_start", "contentIndex": 1, "id": "c", "toolName": "read"});
    update(json!([text("Hey"), call(json!({}))]), start);
    let delta = json!({"type": "toolcall_delta", "contentIndex": 1, "delta": "{\"path\":\"a"});
    update(json!([text("Hey"), call(json!({"path": "a"}))]), delta);
    let end = json!({"type": "toolcall_end", "contentIndex": 1, "toolCall": call(json!({"path": "ab"}))});
    update(json!([text("Hey"), call(json!({"path": "ab"}))]), end);
    lines
}

#[tokio::test]
async fn the_partial_answer_is_the_same_from_both_forms() {
    let expected: Vec<Value> = answer_lines(true).iter().skip(1).map(|line| line["message"].clone()).collect();
    for (full, detail) in [(false, EventDetail::Delta), (true, EventDetail::Delta), (true, EventDetail::Full)] {
        let (client, mut peer) = connect(RpcClientOptions::new().event_detail(detail)).await;
        let events = client.events();
        assert!(client.partial().is_none());
        for line in answer_lines(full) {
            peer.send(&line).await;
        }
        sync(&client, &mut peer).await;
        let last = serde_json::to_value(client.partial().unwrap().to_message()).unwrap();
        assert_eq!(&last, expected.last().unwrap());
        peer.send(&message("message_end", &answer_message("Hey"))).await;
        sync(&client, &mut peer).await;
        assert!(client.partial().is_none());
        drop(peer);
        // Only now are they read: each still shows its own state.
        let all: Vec<_> = events.collect().await;
        let partials: Vec<Value> = all
            .iter()
            .filter_map(|event| match event {
                ClientEvent::Event(event) => event.partial(),
                _ => None,
            })
            .map(|partial| serde_json::to_value(partial.to_message()).unwrap())
            .collect();
        assert_eq!(partials, expected, "full lines: {full}, {detail:?}");
        let Some(Event::MessageUpdate(update)) = all[2].event() else { panic!("{:?}", all[2]) };
        assert_eq!(update.message.is_some(), detail == EventDetail::Full);
        assert_eq!(update.usage.is_some(), detail == EventDetail::Delta);
    }
}

#[tokio::test]
async fn an_answer_seen_from_the_middle_starts_at_the_first_whole_message() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events();
    peer.send(&text_start()).await;
    peer.send(&text_delta("x")).await;
    sync(&client, &mut peer).await;
    assert!(client.partial().is_none());
    peer.send(&answer_lines(true)[2]).await;
    sync(&client, &mut peer).await;
    assert_eq!(client.partial().unwrap().text(), "He");
    for expected in [None, None, Some("He".to_owned())] {
        let Some(ClientEvent::Event(event)) = events.next().await else { panic!() };
        assert_eq!(event.partial().map(dreb_client::PartialMessage::text), expected);
    }
}

#[tokio::test]
async fn a_line_over_the_limit_is_reported_and_skipped() {
    let (client, mut peer) = connect(RpcClientOptions::new().max_line(1000)).await;
    let mut events = client.events();
    peer.send(&text_delta(&"x".repeat(200_000))).await;
    peer.send(&text_delta("next")).await;
    match events.next().await.unwrap() {
        ClientEvent::Malformed(line) => {
            assert_eq!(line.length, text_delta(&"x".repeat(200_000)).to_string().len());
            assert_eq!((line.line.as_str(), line.error.as_str()), ("", "longer than the limit of 1000 bytes"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(events.next().await.unwrap().event().and_then(Event::text_delta), Some("next"));
}
