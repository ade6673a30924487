//! Memory under a long stream. Alone in its binary, for it measures the process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

mod common;

use common::{agent_end, connect, text_delta};
use dreb_client::protocol::Event;
use dreb_client::{ClientEvent, RpcClientOptions};
use pretty_assertions::assert_eq;

/// A build without optimisation takes half a minute for a million.
const DELTAS: u64 = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };

#[tokio::test]
async fn unread_deltas_take_flat_memory_and_are_counted_to_the_last() {
    let (client, mut peer) = connect(RpcClientOptions::new().update_capacity(100)).await;
    let mut events = client.events();
    let writer = tokio::spawn(async move {
        let line = format!("{}\n", text_delta("word "));
        let chunk = line.repeat(1000);
        for _ in 0..DELTAS / 1000 {
            peer.send_bytes(chunk.as_bytes()).await;
        }
        peer.send(&agent_end()).await;
        peer
    });
    let mut watch = client.events_without_updates();
    let before = resident_kib();
    assert!(matches!(watch.next().await, Some(ClientEvent::Event(event)) if event.kind() == "agent_end"));
    let grown = resident_kib().saturating_sub(before);
    let peer = writer.await.unwrap();
    assert!(matches!(events.next().await, Some(ClientEvent::Lagged(lost)) if lost == DELTAS - 100));
    for _ in 0..100 {
        assert_eq!(events.next().await.unwrap().event().and_then(Event::text_delta), Some("word "));
    }
    assert_eq!(events.next().await.unwrap().event().map(Event::kind), Some("agent_end"));
    assert!(grown < 16 << 10, "{grown} KiB more");
    drop(peer);
}

/// Resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
