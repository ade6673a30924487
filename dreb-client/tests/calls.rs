//! Calls against a peer in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

mod common;

use std::time::Duration;

use common::{connect, success, text_delta};
use dreb_client::protocol::queue::Prompt;
use dreb_client::protocol::session::GetState;
use dreb_client::{CallError, ClientEvent, ExitReason, RpcClient, RpcClientOptions, StartError};
use pretty_assertions::assert_eq;
use serde_json::{Map, Value, json};

#[tokio::test]
async fn answers_out_of_order_reach_their_callers() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let peer_side = async {
        let first = peer.expect("get_last_assistant_text").await;
        let second = peer.expect("bash").await;
        assert_eq!(second["command"], "ls");
        assert_ne!(first["id"], second["id"]);
        peer.answer(&second, json!({"output": "out", "exitCode": 0, "cancelled": false, "truncated": false})).await;
        peer.answer(&first, json!({"text": null})).await;
    };
    let (text, bash, ()) = tokio::join!(client.get_last_assistant_text(), client.bash("ls"), peer_side);
    assert_eq!(text.unwrap(), None);
    assert_eq!(bash.unwrap().output, "out");
}

#[tokio::test]
async fn a_refusal_carries_the_servers_words() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let peer_side = async {
        let request = peer.expect("prompt").await;
        peer.refuse(&request, "No model selected.").await;
        request["id"].as_str().unwrap().to_owned()
    };
    let (result, sent) = tokio::join!(client.prompt("hi"), peer_side);
    match result.unwrap_err() {
        CallError::Failed { command, id, message } => {
            assert_eq!((command.as_str(), id, message.as_str()), ("prompt", sent, "No model selected."));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn malformed_answers_are_protocol_errors_of_their_call() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    for (data, expected) in [
        (Value::Null, "invalid type: null"),
        (json!({"messages": 5}), "invalid type: integer `5`, expected a sequence"),
    ] {
        let peer_side = async {
            let request = peer.expect("get_messages").await;
            peer.answer(&request, data).await;
        };
        let (result, ()) = tokio::join!(client.get_messages(), peer_side);
        match result.unwrap_err() {
            CallError::Protocol { command, reason, .. } => {
                assert_eq!(command, "get_messages");
                assert!(reason.contains(expected), "{reason}");
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_answer_times_out_and_is_counted_when_it_comes() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let (result, request) = tokio::join!(client.get_state(), peer.expect("get_state"));
    match result.unwrap_err() {
        error @ CallError::Timeout { .. } => assert_eq!(
            error.to_string(),
            format!(
                "no answer to get_state ({}) within 30s; the server may still complete it",
                request["id"].as_str().unwrap()
            )
        ),
        other => panic!("{other}"),
    }
    assert_eq!(client.late_answers(), 0);
    peer.answer(&request, json!({})).await;
    let (answer, ()) = tokio::join!(client.get_last_assistant_text(), async {
        let request = peer.expect("get_last_assistant_text").await;
        peer.answer(&request, json!({"text": "x"})).await;
    });
    assert_eq!(answer.unwrap().as_deref(), Some("x"));
    assert_eq!(client.late_answers(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_the_commands_own_unless_given() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let limit = Some(Duration::from_millis(5));
    let (result, _) = tokio::join!(client.call_with_timeout(GetState {}, limit), peer.expect("get_state"));
    assert!(matches!(result.unwrap_err(), CallError::Timeout { after, .. } if after == Duration::from_millis(5)));
    // `bash` has none: a day later it still waits.
    let waiting = tokio::time::timeout(Duration::from_secs(86_400), client.bash("sleep"));
    let (result, _) = tokio::join!(waiting, peer.expect("bash"));
    assert!(result.is_err());
}

#[tokio::test]
async fn dropping_a_call_forgets_its_id_and_nothing_else() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let other = tokio::spawn({
        let client = client.clone();
        async move { client.bash("other").await }
    });
    let kept = peer.expect("bash").await;
    let dropped = {
        let call = client.get_state();
        tokio::select! {
            biased;
            request = peer.expect("get_state") => request,
            _ = call => panic!("nobody answered"),
        }
    };
    peer.answer(&dropped, json!({})).await;
    peer.answer(&kept, json!({"output": "kept", "cancelled": false, "truncated": false})).await;
    assert_eq!(other.await.unwrap().unwrap().output, "kept");
    assert_eq!(client.late_answers(), 1);
}

#[tokio::test]
async fn an_unpolled_call_sends_nothing() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    drop(client.prompt("never"));
    let (result, ()) = tokio::join!(client.prompt("now"), async {
        let request = peer.expect("prompt").await;
        assert_eq!(request["message"], "now");
        peer.ack(&request).await;
    });
    result.unwrap();
}

#[tokio::test]
async fn all_calls_fail_with_the_same_cause_when_the_peer_goes_after_what_it_wrote_was_read() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get_last_assistant_text().await })
        })
        .collect();
    let mut requests = Vec::new();
    for _ in 0..5 {
        requests.push(peer.next().await);
    }
    // The very last bytes answer one of them, without a line feed.
    peer.send_bytes(success(&requests[2], json!({"text": "last"})).to_string().as_bytes()).await;
    drop(peer);
    let mut answered = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(text) => {
                assert_eq!(text.as_deref(), Some("last"));
                answered += 1;
            }
            Err(CallError::Exited(notice)) => {
                assert!(matches!(notice.reason(), ExitReason::Disconnected), "{notice}");
                assert!(!notice.was_requested());
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(answered, 1);
    assert!(matches!(client.get_state().await.unwrap_err(), CallError::Exited(_)));
    assert!(matches!(client.exited().await.reason(), ExitReason::Disconnected));
}

#[tokio::test]
async fn shutdown_closes_for_every_clone_and_can_be_repeated() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let clone = client.clone();
    let waiting = tokio::spawn(async move { clone.get_state().await });
    peer.expect("get_state").await;
    let mut events = client.events();
    let peer_side = async {
        // The client's side is closed, and the peer may still say something.
        assert_eq!(peer.try_next().await, None);
        peer.send(&text_delta("bye")).await;
        drop(peer);
    };
    let (notice, ()) = tokio::join!(client.shutdown(), peer_side);
    assert!(notice.was_requested());
    assert!(matches!(waiting.await.unwrap().unwrap_err(), CallError::Closed));
    assert!(matches!(client.get_state().await.unwrap_err(), CallError::Closed));
    let prompt = json!({"type": "extension_ui_response", "id": "u", "cancelled": true});
    assert!(matches!(client.send_raw(prompt.as_object().unwrap()).await.unwrap_err(), CallError::Closed));
    assert!(client.shutdown().await.was_requested());
    assert_eq!(events.next().await.unwrap().event().and_then(|event| event.text_delta()), Some("bye"));
    assert!(matches!(events.next().await, Some(ClientEvent::Exited(_))));
    assert!(events.next().await.is_none());
    // Who comes late still hears how it ended.
    let mut late = client.events();
    assert!(matches!(late.next().await, Some(ClientEvent::Exited(_))));
    assert!(late.next().await.is_none());
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_connection_and_subscriptions_hear_of_it() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let mut events = client.events();
    let clone = client.clone();
    drop(client);
    let (result, ()) = tokio::join!(clone.abort(), async {
        let request = peer.expect("abort").await;
        peer.ack(&request).await;
    });
    result.unwrap();
    drop(clone);
    assert_eq!(peer.try_next().await, None);
    drop(peer);
    assert!(matches!(events.next().await, Some(ClientEvent::Exited(notice)) if notice.was_requested()));
}

#[test]
fn calls_end_when_the_runtime_of_the_connection_is_dropped() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, peer) = runtime.block_on(connect(RpcClientOptions::new()));
    let mut events = client.events();
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(async {
        assert!(matches!(client.get_state().await.unwrap_err(), CallError::Exited(notice)
            if matches!(notice.reason(), ExitReason::RuntimeStopped)));
        assert!(matches!(events.next().await, Some(ClientEvent::Exited(_))));
    });
    drop(peer);
}

#[tokio::test]
async fn giant_lines_pass_in_both_directions() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let text = "ä\u{2028}\"\\".repeat(1 << 20);
    let peer_side = async {
        let request = peer.expect("prompt").await;
        assert_eq!(request["message"], text.as_str());
        peer.ack(&request).await;
        let request = peer.expect("get_last_assistant_text").await;
        peer.answer(&request, json!({"text": text})).await;
    };
    let client_side = async {
        client.prompt(text.as_str()).await.unwrap();
        client.get_last_assistant_text().await.unwrap().unwrap()
    };
    let (answer, ()) = tokio::join!(client_side, peer_side);
    assert!(answer == text);
}

#[tokio::test]
async fn a_command_larger_than_the_write_budget_is_sent_and_others_wait_for_it() {
    let (client, mut peer) = connect(RpcClientOptions::new().write_budget(1000)).await;
    let (big, small) = ("b".repeat(300_000), "s");
    let peer_side = async {
        for expected in [big.as_str(), small] {
            let request = peer.expect("prompt").await;
            assert!(request["message"] == expected);
            peer.ack(&request).await;
        }
    };
    let (first, second, ()) = tokio::join!(biased; client.prompt(big.as_str()), client.prompt(small), peer_side);
    first.unwrap();
    second.unwrap();
}

#[tokio::test]
async fn commands_without_a_type_can_be_sent_too() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let fields: Map<String, Value> = json!({"value": 5, "id": "mine", "type": "other"}).as_object().unwrap().clone();
    let peer_side = async {
        let request = peer.expect("new_thing").await;
        assert_eq!(request["value"], 5);
        peer.answer(&request, json!([1, null])).await;
        assert_eq!(peer.next().await, json!({"type": "extension_ui_response", "id": "u", "confirmed": true}));
    };
    let client_side = async {
        let data = client.call_raw("new_thing", fields, None).await.unwrap();
        assert_eq!(data, json!([1, null]));
        let line = json!({"type": "extension_ui_response", "id": "u", "confirmed": true});
        client.send_raw(line.as_object().unwrap()).await.unwrap();
    };
    tokio::join!(client_side, peer_side);
}

#[tokio::test]
async fn a_prompt_takes_all_its_fields() {
    let (client, mut peer) = connect(RpcClientOptions::new()).await;
    let prompt = Prompt {
        streaming_behavior: Some(dreb_client::protocol::queue::StreamingBehavior::FollowUp),
        ..Prompt::new("m")
    };
    let (result, ()) = tokio::join!(client.call(prompt), async {
        let request = peer.expect("prompt").await;
        assert_eq!(request["streamingBehavior"], "followUp");
        peer.ack(&request).await;
    });
    result.unwrap();
}

#[tokio::test]
async fn the_handshake_tells_what_the_server_can_do() {
    let version = json!({"version": "2", "protocolVersion": 1, "capabilities": ["event-detail-delta"]});
    let (client, _peer) = common::connect_to(RpcClientOptions::new(), version).await;
    assert_eq!(client.server_version().unwrap().version, "2");
    assert!(client.has_delta_events());
    let (client, _peer) = connect(RpcClientOptions::new()).await;
    assert!(!client.has_delta_events());
    assert_eq!(client.pid(), None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_a_handshake_timeout_and_a_closed_one_an_early_exit() {
    let (ours, _theirs) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(ours);
    let options = RpcClientOptions::new().start_timeout(Duration::from_secs(3));
    match RpcClient::from_streams(reader, writer, options).await.unwrap_err() {
        StartError::HandshakeTimeout { after, .. } => assert_eq!(after, Duration::from_secs(3)),
        other => panic!("{other}"),
    }
    let (ours, theirs) = tokio::io::duplex(1024);
    drop(theirs);
    let (reader, writer) = tokio::io::split(ours);
    let error = RpcClient::from_streams(reader, writer, RpcClientOptions::new()).await.unwrap_err();
    assert!(matches!(error, StartError::EarlyExit(_)), "{error}");
}

#[tokio::test]
async fn a_server_without_the_first_command_is_alive_all_the_same() {
    let (ours, theirs) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(ours);
    let peer_side = async {
        use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
        let mut theirs = BufReader::new(theirs);
        let mut line = String::new();
        theirs.read_line(&mut line).await.unwrap();
        let request: Value = serde_json::from_str(&line).unwrap();
        let error = json!({"id": request["id"], "type": "response", "command": "get_version", "success": false,
            "error": "Unknown command: get_version"});
        theirs.write_all(format!("banner\n{error}\n").as_bytes()).await.unwrap();
        theirs
    };
    let (client, _peer) = tokio::join!(RpcClient::from_streams(reader, writer, RpcClientOptions::new()), peer_side);
    assert!(client.unwrap().server_version().is_none());
}
