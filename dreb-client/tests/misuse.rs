//! Callers that do odd things: futures dropped at every point, a thousand calls at once, calls after
//! the end, runtimes of all kinds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{Peer, agent_end, connect, success, text_delta};
use dreb_client::{CallError, ClientEvent, RpcClient, RpcClientOptions};
use pretty_assertions::assert_eq;
use serde_json::{Map, Value, json};

/// Answers every command: `echo` with its `value`, anything else with nothing.
async fn echo(mut peer: Peer) {
    while let Some(request) = peer.try_next().await {
        let answer = success(&request, json!({"text": request["value"]}));
        if !peer.try_send_bytes(format!("{answer}\n").as_bytes()).await {
            return;
        }
    }
}

async fn ask(client: &RpcClient, value: usize) -> Result<Value, CallError> {
    let fields = Map::from_iter([("value".to_owned(), json!(value))]);
    client.call_raw("echo", fields, None).await
}

/// A generator of small numbers; a test with it does the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Polls a future so many times, without waiting for it to ask for that, and drops it.
async fn poll_some<T>(future: impl Future<Output = T>, times: u64) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..times {
        let polled = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(value) = polled {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn calls_dropped_at_any_point_cross_no_answers_and_leave_nothing() {
    let (client, peer) = connect(RpcClientOptions::new().write_budget(200)).await;
    let echoing = tokio::spawn(echo(peer));
    let mut dice = Dice(7);
    let mut finished = 0;
    for round in 0..3000 {
        let times = dice.roll(8);
        let polled = match dice.roll(3) {
            0 => poll_some(ask(&client, round), times).await,
            1 => poll_some(async { tokio::join!(ask(&client, round), ask(&client, round)).1 }, times).await,
            _ => {
                let line = json!({"type": "note", "value": round});
                poll_some(client.send_raw(line.as_object().unwrap()), times)
                    .await
                    .map(|sent| sent.map(|()| Value::Null))
            }
        };
        if let Some(answer) = polled {
            let answer = answer.unwrap();
            assert!(answer.is_null() || answer == json!({"text": round}), "{answer} in round {round}");
            finished += 1;
        }
    }
    assert!((100..2900).contains(&finished), "{finished}");
    assert_eq!(ask(&client, 5000).await.unwrap(), json!({"text": 5000}), "the connection is as good as new");
    assert!(client.late_answers() > 100);
    drop(client);
    echoing.await.unwrap();
}

#[tokio::test]
async fn a_subscription_polled_and_dropped_at_any_point_loses_nothing() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events_lossless();
    let writer = tokio::spawn(async move {
        for index in 0..2000 {
            peer.send(&text_delta(&index.to_string())).await;
            if index % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        peer
    });
    let mut dice = Dice(11);
    let mut next = 0;
    while next < 2000 {
        // Each dropped future must leave its event to the next one.
        if let Some(event) = poll_some(events.next(), dice.roll(3)).await {
            assert_eq!(event.unwrap().event().unwrap().text_delta(), Some(next.to_string().as_str()));
            next += 1;
        } else {
            tokio::task::yield_now().await;
        }
    }
    drop(writer.await.unwrap());
    drop(client);
}

#[tokio::test]
async fn a_start_dropped_at_any_point_closes_the_connection() {
    for times in 0..12 {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (reader, writer) = tokio::io::split(ours);
        let start = RpcClient::from_streams(reader, writer, RpcClientOptions::new());
        assert!(poll_some(start, times).await.is_none(), "nobody answers");
        let mut theirs = tokio::io::BufReader::new(theirs);
        let mut all = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut theirs, &mut all).await.unwrap();
        // Either nothing or the whole first command was written, never a part of it.
        assert!(all.is_empty() || all.ends_with(b"\n"), "{}", String::from_utf8_lossy(&all));
    }
}

#[tokio::test(start_paused = true)]
async fn waits_and_shutdowns_can_be_dropped_and_done_again() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    for times in 1..6 {
        let waiting = poll_some(client.wait_for_idle(), times);
        let (_, request) = tokio::join!(waiting, peer.next());
        peer.answer(&request, common::state(true, false, false)).await;
        assert!(poll_some(client.exited(), times).await.is_none());
    }
    let (dropped, closed) = tokio::join!(poll_some(client.shutdown(), 1), peer.try_next());
    assert!(dropped.is_none());
    assert_eq!(closed, None, "a shutdown that was begun goes on without its future");
    drop(peer);
    assert!(client.exited().await.was_requested());
    assert!(client.shutdown().await.was_requested());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_at_once_get_their_own_answers_in_whatever_order() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let calls: Vec<_> = (0..1000)
        .map(|value| {
            let client = client.clone();
            tokio::spawn(async move { (value, ask(&client, value).await.unwrap()) })
        })
        .collect();
    let mut requests = Vec::new();
    for _ in 0..1000 {
        requests.push(peer.next().await);
    }
    // Backwards, then those in the middle: every order there is in one.
    let (last, first) = requests.split_at(500);
    for request in first.iter().rev().chain(last) {
        peer.answer(request, json!(request["value"])).await;
    }
    for call in calls {
        let (value, answer) = call.await.unwrap();
        assert_eq!(answer, json!(value));
    }
    assert_eq!(client.late_answers(), 0);
}

#[tokio::test]
async fn calls_of_one_task_keep_their_order_when_the_budget_is_used_up() {
    let (client, mut peer) = connect(RpcClientOptions::new().write_budget(1)).await;
    let calls = futures_util::future::join_all((0..200).map(|value| ask(&client, value)));
    let peer_side = async {
        for value in 0..200 {
            let request = peer.next().await;
            assert_eq!(request["value"], value);
            peer.answer(&request, json!(value)).await;
        }
    };
    let (answers, ()) = tokio::join!(calls, peer_side);
    for (value, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), value);
    }
}

#[tokio::test]
async fn after_the_end_everything_says_so_at_once() {
    let (client, peer) = connect(RpcClientOptions::new()).await;
    let before = client.events();
    drop(peer);
    let notice = client.exited().await;
    assert!(!notice.was_requested());
    let line = json!({"type": "note"});
    let gone = |result: Result<(), CallError>| matches!(result.unwrap_err(), CallError::Exited(_));
    assert!(gone(client.prompt("a").await));
    assert!(gone(client.abort().await));
    assert!(gone(client.wait_for_idle().await));
    assert!(gone(client.prompt_and_wait("a").await.map(drop)));
    assert!(gone(client.send_raw(line.as_object().unwrap()).await));
    assert!(client.partial().is_none());
    for mut events in [before, client.events(), client.events_lossless(), client.events_without_updates()] {
        assert!(matches!(events.next().await, Some(ClientEvent::Exited(_))));
        assert!(events.next().await.is_none());
        assert!(events.next().await.is_none());
    }
    // Asked to end after it has ended by itself: what happened stays what it was.
    assert!(!client.shutdown().await.was_requested());
    assert!(matches!(client.abort().await.unwrap_err(), CallError::Exited(_)));
}

#[test]
fn handles_and_subscriptions_can_be_dropped_outside_of_any_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, mut peer) = runtime.block_on(connect(RpcClientOptions::new()));
    let events = client.events();
    let clone = client.clone();
    std::thread::spawn(move || drop((events, clone))).join().unwrap();
    let mut events = client.events();
    std::thread::spawn(move || drop(client)).join().unwrap();
    runtime.block_on(async {
        assert_eq!(peer.try_next().await, None, "the connection was closed");
        drop(peer);
        assert!(matches!(events.next().await, Some(ClientEvent::Exited(notice)) if notice.was_requested()));
    });
}

#[test]
fn a_client_can_be_used_from_another_runtime_than_its_own() {
    let build = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (home, away) = (build(), build());
    let (client, peer) = home.block_on(connect(RpcClientOptions::new()));
    let echoing = home.spawn(echo(peer));
    away.block_on(async {
        assert_eq!(ask(&client, 3).await.unwrap(), json!({"text": 3}));
        client.shutdown().await;
    });
    home.block_on(echoing).unwrap();
}

/// Notes how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_subscription_wakes_the_task_that_polled_it_last() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events();
    let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
    for count in [&first, &second] {
        let waker = Waker::from(Arc::clone(count));
        let polled = pin!(events.next()).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    peer.send(&agent_end()).await;
    while second.0.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(first.0.load(Ordering::SeqCst), 0);
    assert!(events.next().await.is_some());
}

#[tokio::test]
async fn extreme_options_do_no_harm() {
    let zero = RpcClientOptions::new().event_budget(0).write_budget(0).update_capacity(0).grace_period(Duration::ZERO);
    let all = RpcClientOptions::new()
        .event_budget(usize::MAX)
        .write_budget(usize::MAX)
        .update_capacity(usize::MAX)
        .max_line(usize::MAX)
        .start_timeout(Duration::MAX)
        .grace_period(Duration::MAX);
    for options in [zero, all] {
        let (client, mut peer) = connect(options).await;
        let mut events = client.events();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let reading = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                while let Some(ClientEvent::Event(event)) = events.next().await {
                    seen.lock().unwrap().push(event.kind().to_owned());
                }
            }
        });
        let (text, ()) = tokio::join!(client.get_last_assistant_text(), async {
            let request = peer.expect("get_last_assistant_text").await;
            peer.send(&text_delta("a")).await;
            peer.send(&agent_end()).await;
            peer.answer(&request, json!({"text": "x"})).await;
        });
        assert_eq!(text.unwrap().as_deref(), Some("x"));
        let (notice, ()) = tokio::join!(client.shutdown(), async {
            assert_eq!(peer.try_next().await, None);
            drop(peer);
        });
        assert!(notice.was_requested());
        reading.await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["message_update", "agent_end"]);
    }
}
