//! Times of the client. Prints and asserts nothing.
//!
//! ```sh
//! cargo build --release -p dreb-server && cargo bench -p dreb-client
//! ```
//!
//! The server is the binary in `DREB_BIN`, else `target/release/dreb`; without one only what needs none
//! is measured.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a program for the terminal")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use dreb_client::{ClientEvent, RpcClient, RpcClientOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

const ROUNDS: usize = 5_000;
const DELTAS: usize = 200_000;

fn main() {
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let two = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (name, runtime) in [("current_thread", &one), ("multi_thread(2)", &two)] {
        println!("{name}");
        runtime.block_on(async {
            pipe_ping_pong().await;
            through_streams().await;
            match server() {
                Some(binary) => through_the_server(&binary).await,
                None => println!("  no release binary of the server: the rest is left out"),
            }
            deltas().await;
        });
    }
}

fn server() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/dreb");
    let named = std::env::var_os("DREB_BIN").map(PathBuf::from);
    named.or(Some(built)).filter(|path| path.is_file())
}

/// One line to `cat` and back: what the operating system takes.
async fn pipe_ping_pong() {
    let mut child = tokio::process::Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        stdin.write_all(b"{\"id\":\"req-1\",\"type\":\"get_version\"}\n").await.unwrap();
        line.clear();
        stdout.read_line(&mut line).await.unwrap();
        times.push(begun.elapsed());
    }
    report("one line through `cat`", times);
}

/// The client with a peer that answers from memory: what the client itself takes.
async fn through_streams() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let mut theirs = BufReader::new(theirs);
        let mut line = String::new();
        while theirs.read_line(&mut line).await.unwrap() > 0 {
            let id = line.split('"').nth(3).unwrap();
            let answer = format!(
                "{{\"id\":\"{id}\",\"type\":\"response\",\"command\":\"get_version\",\"success\":true,\"data\":{{\"version\":\"1\"}}}}\n"
            );
            theirs.write_all(answer.as_bytes()).await.unwrap();
            line.clear();
        }
    });
    let (reader, writer) = tokio::io::split(ours);
    let client = RpcClient::from_streams(reader, writer, RpcClientOptions::new()).await.unwrap();
    report("get_version, peer in memory", calls(&client).await);
}

async fn through_the_server(binary: &Path) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("script.json"), r#"{"turns": []}"#).unwrap();
    let options = RpcClientOptions::new()
        .binary(binary)
        .cwd(folder.path())
        .env("HOME", folder.path())
        .env("DREB_SCRIPT", "script.json")
        .provider("scripted")
        .model("scripted")
        .no_session(true);
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let begun = Instant::now();
        let client = RpcClient::start(options.clone()).await.unwrap();
        starts.push(begun.elapsed());
        let begun = Instant::now();
        client.shutdown().await;
        ends.push(begun.elapsed());
    }
    report("start", starts);
    report("shutdown", ends);
    let client = RpcClient::start(options).await.unwrap();
    report("get_version, real server", calls(&client).await);
    let begun = Instant::now();
    let all = (0..1000).map(|_| client.get_version());
    futures_util::future::join_all(all).await.into_iter().for_each(|version| drop(version.unwrap()));
    println!("  {:<32} {:>10.1?} a call", "1,000 at once, real server", begun.elapsed() / 1000);
    client.shutdown().await;
}

async fn calls(client: &RpcClient) -> Vec<Duration> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        client.get_version().await.unwrap();
        times.push(begun.elapsed());
    }
    times
}

/// How fast a stream of small updates gets through to a subscriber that loses none.
async fn deltas() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let peer = tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(theirs);
        let mut first = [0; 256];
        let _ = reader.read(&mut first).await.unwrap();
        writer
            .write_all(b"{\"id\":\"req-1\",\"type\":\"response\",\"success\":true,\"data\":{\"version\":\"1\"}}\n")
            .await
            .unwrap();
        // Until the subscription is there.
        let _ = reader.read(&mut first).await.unwrap();
        let line = "{\"type\":\"message_update\",\"assistantMessageEvent\":{\"type\":\"text_delta\",\"contentIndex\":0,\"delta\":\"word \"}}\n";
        let chunk = line.repeat(1000);
        for _ in 0..DELTAS / 1000 {
            writer.write_all(chunk.as_bytes()).await.unwrap();
        }
        (reader, writer)
    });
    let (reader, writer) = tokio::io::split(ours);
    let client = RpcClient::from_streams(reader, writer, RpcClientOptions::new()).await.unwrap();
    let mut events = client.events_lossless();
    client.send_raw(&serde_json::Map::new()).await.unwrap();
    let begun = Instant::now();
    for _ in 0..DELTAS {
        assert!(matches!(events.next().await, Some(ClientEvent::Event(_))));
    }
    let took = begun.elapsed();
    println!("  {:<32} {:>10.1?} a delta", "deltas, none lost", took / u32::try_from(DELTAS).unwrap());
    drop(peer.await.unwrap());
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("  {what:<32} p50 {:>10.1?}  p99 {:>10.1?}", at(50), at(99));
}
