//! Memory of the `bash` tool under a huge output. A process of its own, so that nothing else counts.

// A helper of a test may fail like the test itself.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;

use dreb_server::environment::Environment;
use dreb_server::process::Children;
use dreb_server::tools::bash::BashTool;
use dreb_server::tools::{ProgressSink, Tool, ToolContext, ToolProgress, ToolSettings};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use protocol_schema::ContentBlock;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

struct Nowhere;

impl ProgressSink for Nowhere {
    fn report(&self, _: ToolProgress) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// Most memory this process has had so far.
#[cfg(target_os = "linux")]
fn peak_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_huge_output_needs_little_memory() {
    const BYTES: usize = 24_000_000;
    let folder = tempfile::tempdir().unwrap();
    let tool = BashTool::new(Arc::new(Children::new()), folder.path().into(), Environment::of_process());
    let context = ToolContext {
        cwd: folder.path().into(),
        cancel: CancellationToken::new(),
        progress: Arc::new(Nowhere),
        settings: Arc::new(ToolSettings::default()),
    };
    let before = peak_bytes();
    // Half of it lines, half of it one long line.
    let command = format!("yes 'a line' | head -c {0}; head -c {0} /dev/zero | tr '\\0' x", BYTES / 2);
    let Value::Object(arguments) = json!({ "command": command }) else { unreachable!() };
    let output = tool.execute(arguments, context).await.unwrap();

    let [ContentBlock::Text(block)] = output.content.as_slice() else { panic!("one text block") };
    let details = output.details.unwrap();
    let path = details["fullOutputPath"].as_str().unwrap();
    let notice = format!("\n\n[Showing last 50.0KB of line 1714286 (line is 11.4MB). Full output: {path}]");
    assert_eq!(block.text, "x".repeat(51200) + &notice);
    assert_eq!(details["truncation"]["totalBytes"], BYTES);
    assert_eq!(fs::metadata(path).unwrap().len(), BYTES as u64);
    let growth = peak_bytes() - before;
    assert!(growth < 10_000_000, "{growth} bytes");
}
