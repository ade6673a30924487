//! Waiting for runs, against a peer in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

mod common;

use common::{Peer, agent_end, agent_start, answer_message, connect, connect_to, message, state};
use dreb_client::protocol::StopReason;
use dreb_client::{CallError, RpcClientOptions};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

async fn say_state(peer: &mut Peer, state: Value) {
    let request = peer.expect("get_state").await;
    peer.answer(&request, state).await;
}

fn settling() -> Value {
    json!({"version": "1", "protocolVersion": 1})
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_before_the_answer_is_read_is_not_missed() {
    let (client, mut peer) = connect_to(RpcClientOptions::new(), settling()).await;
    let user = json!({"role": "user", "content": "hi", "timestamp": 1});
    let peer_side = async {
        let request = peer.expect("prompt").await;
        // The tail of an earlier run, then everything in one piece.
        let mut lines = vec![message("message_end", &answer_message("old")), agent_end()];
        lines.push(json!({"id": request["id"], "type": "response", "command": "prompt", "success": true}));
        lines.extend([agent_start(), message("message_end", &user), message("message_end", &answer_message("new"))]);
        lines.extend([agent_end(), json!({"type": "agent_settled"})]);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        peer.send_bytes(text.as_bytes()).await;
        peer
    };
    let (outcome, _peer) = tokio::join!(client.prompt_and_wait("hi"), peer_side);
    let outcome = outcome.unwrap();
    assert_eq!(outcome.messages.len(), 2);
    assert_eq!(outcome.text(), "new");
    assert_eq!(outcome.stop_reason(), Some(&StopReason::Stop));
    assert_eq!(outcome.error_message(), None);
    assert_eq!((outcome.usage.output, outcome.usage.total_tokens), (2, Some(3)));
}

#[tokio::test(start_paused = true)]
async fn retries_belong_to_the_run_whether_or_not_the_server_says_when_it_has_settled() {
    for settles in [true, false] {
        let version = if settles { settling() } else { json!({"version": "1"}) };
        let (client, mut peer) = connect_to(RpcClientOptions::new(), version).await;
        let peer_side = async {
            let request = peer.expect("prompt").await;
            peer.ack(&request).await;
            peer.send(&agent_start()).await;
            let mut failed = answer_message("");
            failed["stopReason"] = "error".into();
            failed["errorMessage"] = "overloaded".into();
            peer.send(&message("message_end", &failed)).await;
            peer.send(&agent_end()).await;
            if !settles {
                say_state(&mut peer, state(false, true, false)).await;
            }
            peer.send(&agent_start()).await;
            peer.send(&message("message_end", &answer_message("good"))).await;
            peer.send(&agent_end()).await;
            if settles {
                peer.send(&json!({"type": "agent_settled"})).await;
            } else {
                // A compaction follows, whose end is no event we know.
                say_state(&mut peer, state(false, false, true)).await;
                say_state(&mut peer, state(false, false, false)).await;
            }
            peer
        };
        let (outcome, _peer) = tokio::join!(client.prompt_and_wait("hi"), peer_side);
        let outcome = outcome.unwrap();
        assert_eq!((outcome.messages.len(), outcome.text().as_str()), (2, "good"));
        assert_eq!(outcome.usage.output, 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_is_an_outcome_and_a_refused_prompt_an_error() {
    let (client, mut peer) = connect_to(RpcClientOptions::new(), settling()).await;
    let peer_side = async {
        let request = peer.expect("prompt").await;
        peer.refuse(&request, "busy").await;
        let request = peer.expect("prompt").await;
        peer.ack(&request).await;
        peer.send(&agent_start()).await;
        let mut failed = answer_message("");
        failed["stopReason"] = "error".into();
        failed["errorMessage"] = "no credit".into();
        peer.send(&message("message_end", &failed)).await;
        peer.send(&agent_end()).await;
        peer.send(&json!({"type": "agent_settled"})).await;
        peer
    };
    let client_side = async {
        let refused = client.prompt_and_wait("a").await.unwrap_err();
        assert!(matches!(refused, CallError::Failed { message, .. } if message == "busy"));
        client.prompt_and_wait("b").await.unwrap()
    };
    let (outcome, _peer) = tokio::join!(client_side, peer_side);
    assert_eq!(outcome.stop_reason(), Some(&StopReason::Error));
    assert_eq!(outcome.error_message(), Some("no credit"));
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_starts_no_run_comes_back_empty() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let peer_side = async {
        let request = peer.expect("prompt").await;
        peer.ack(&request).await;
        for _ in 0..4 {
            say_state(&mut peer, state(false, false, false)).await;
        }
        peer
    };
    let (outcome, _peer) = tokio::join!(client.prompt_and_wait("/command"), peer_side);
    assert_eq!(outcome.unwrap().messages, []);
}

#[tokio::test(start_paused = true)]
async fn a_run_cut_off_by_the_servers_death_is_an_error() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let peer_side = async {
        let request = peer.expect("prompt").await;
        peer.ack(&request).await;
        peer.send(&agent_start()).await;
        drop(peer);
    };
    let (outcome, ()) = tokio::join!(client.prompt_and_wait("hi"), peer_side);
    assert!(matches!(outcome.unwrap_err(), CallError::Exited(_)));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_idle_returns_at_once_when_idle_and_else_at_the_end() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let (result, ()) = tokio::join!(client.wait_for_idle(), say_state(&mut peer, state(false, false, false)));
    result.unwrap();

    let peer_side = async {
        say_state(&mut peer, state(true, false, false)).await;
        peer.send(&agent_end()).await;
        say_state(&mut peer, state(false, true, false)).await;
        say_state(&mut peer, state(true, false, false)).await;
        peer.send(&json!({"type": "agent_settled"})).await;
        peer
    };
    let (result, peer) = tokio::join!(client.wait_for_idle(), peer_side);
    result.unwrap();
    drop(peer);
    assert!(matches!(client.wait_for_idle().await.unwrap_err(), CallError::Exited(_)));
}

#[tokio::test(start_paused = true)]
async fn an_end_between_the_look_and_its_answer_is_not_missed() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let peer_side = async {
        let request = peer.expect("get_state").await;
        // The server looked while it was busy, and ended before the answer was out.
        let answer = common::success(&request, state(true, false, false));
        peer.send_bytes(format!("{}\n{answer}\n", json!({"type": "agent_settled"})).as_bytes()).await;
        // Whose end that was, only the server knows.
        say_state(&mut peer, state(false, false, false)).await;
        peer
    };
    let (result, _peer) = tokio::join!(client.wait_for_idle(), peer_side);
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_earlier_run_is_not_taken_for_that_of_the_present_one() {
    let (client, mut peer) = connect_to(RpcClientOptions::new(), settling()).await;
    let over = std::cell::Cell::new(false);
    let peer_side = async {
        let request = peer.expect("get_state").await;
        // One run ends and the next begins while the state is being asked for.
        let answer = common::success(&request, state(true, false, false));
        let lines = [agent_end(), json!({"type": "agent_settled"}), agent_start(), answer];
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        peer.send_bytes(text.as_bytes()).await;
        say_state(&mut peer, state(true, false, false)).await;
        assert_eq!(tokio::time::timeout(std::time::Duration::from_secs(60), peer.try_next()).await.ok(), None);
        assert!(!over.get(), "the second run has not ended");
        peer.send(&agent_end()).await;
        peer.send(&json!({"type": "agent_settled"})).await;
        peer
    };
    let waiting = async {
        client.wait_for_idle().await.unwrap();
        over.set(true);
    };
    let ((), _peer) = tokio::join!(waiting, peer_side);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_ends_while_the_state_is_asked_for_belongs_to_the_run() {
    for settles in [true, false] {
        let version = if settles { settling() } else { json!({"version": "1"}) };
        let (client, mut peer) = connect_to(RpcClientOptions::new(), version).await;
        let peer_side = async {
            let request = peer.expect("prompt").await;
            peer.ack(&request).await;
            let mut failed = answer_message("");
            failed["stopReason"] = "error".into();
            peer.send(&agent_start()).await;
            peer.send(&message("message_end", &failed)).await;
            peer.send(&agent_end()).await;
            let request = peer.expect("get_state").await;
            let mut lines = vec![agent_start(), message("message_end", &answer_message("good")), agent_end()];
            lines.extend(settles.then(|| json!({"type": "agent_settled"})));
            lines.push(common::success(&request, state(false, false, false)));
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            peer.send_bytes(text.as_bytes()).await;
            if !settles {
                say_state(&mut peer, state(false, false, false)).await;
            }
            peer
        };
        let (outcome, _peer) = tokio::join!(client.prompt_and_wait("hi"), peer_side);
        let outcome = outcome.unwrap();
        assert_eq!((outcome.messages.len(), outcome.text().as_str()), (2, "good"));
    }
}
