//! Tests with real processes.

use std::fs;
use std::sync::Mutex;
use std::time::Instant as StdInstant;

use futures_util::FutureExt;
use pretty_assertions::assert_eq;
use protocol_schema::ContentBlock;
use tokio::sync::Notify;

use super::super::ToolSettings;
use super::*;

/// Keeps all reports and tells when one comes.
#[derive(Default)]
struct Recorder {
    reports: Mutex<Vec<(ToolProgress, StdInstant)>>,
    came: Notify,
    is_stuck: bool,
}

impl ProgressSink for Recorder {
    fn report(&self, progress: ToolProgress) -> BoxFuture<'_, ()> {
        let is_first = {
            let mut reports = self.reports.lock().unwrap();
            reports.push((progress, StdInstant::now()));
            reports.len() == 1
        };
        self.came.notify_one();
        if self.is_stuck && !is_first { std::future::pending().boxed() } else { std::future::ready(()).boxed() }
    }
}

impl Recorder {
    fn last_text(&self) -> String {
        self.reports.lock().unwrap().last().map(|(report, _)| text_of(&report.so_far)).unwrap_or_default()
    }

    async fn until(&self, is_enough: impl Fn(&str) -> bool) {
        while !is_enough(&self.last_text()) {
            self.came.notified().await;
        }
    }
}

fn text_of(output: &ToolOutput) -> String {
    match output.content.as_slice() {
        [] => String::new(),
        [ContentBlock::Text(block)] => block.text.clone(),
        other => panic!("unexpected content {other:?}"),
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    children: Arc<Children>,
    tool: BashTool,
    sink: Arc<Recorder>,
    context: ToolContext,
}

fn fixture() -> Fixture {
    fixture_with(Recorder::default(), ToolSettings::default())
}

fn fixture_with(recorder: Recorder, settings: ToolSettings) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let children = Arc::new(Children::new());
    let tool = BashTool::new(Arc::clone(&children), folder.path().into(), Environment::of_process());
    let sink = Arc::new(recorder);
    let context = ToolContext {
        cwd: folder.path().canonicalize().unwrap(),
        cancel: CancellationToken::new(),
        progress: Arc::clone(&sink) as _,
        settings: Arc::new(settings),
    };
    Fixture { folder, children, tool, sink, context }
}

impl Fixture {
    fn call(&self, arguments: Value) -> BoxFuture<'static, Result<ToolOutput, ToolError>> {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        self.tool.execute(arguments, self.context.clone())
    }

    async fn run(&self, command: &str) -> Result<ToolOutput, ToolError> {
        self.call(json!({ "command": command })).await
    }

    /// The only file with a whole output.
    fn saved_path(&self) -> String {
        let paths: Vec<_> = fs::read_dir(&self.folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .collect();
        assert_eq!(paths.len(), 1);
        paths[0].display().to_string()
    }
}

fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|line| Some(!line.rsplit_once(") ")?.1.starts_with(['Z', 'X'])))
        .unwrap_or(false)
}

fn pids(text: &str) -> Vec<i32> {
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Prints the pids of three sleepers and waits; the last one is an orphan in its own session.
const SLEEPERS: &str =
    "sleep 1000 & echo $!; nohup sleep 1000 >/dev/null 2>&1 & echo $!; (setsid sleep 1000 & echo $!); echo ready; wait";

#[tokio::test]
async fn short_results() {
    for (command, expected) in [
        ("echo a; echo b", Ok("a\nb")),
        ("printf 'no newline'", Ok("no newline")),
        ("echo out; echo err >&2", Ok("out\nerr")),
        ("true", Ok("(no output)")),
        ("cat", Ok("(no output)")),
        (r"printf '10%%\r20%%\r\e[32mdone\e[0m\n'", Ok("done")),
        ("echo x; kill -9 $$", Ok("x")),
        ("echo x; exit 7", Err("x\n\nCommand exited with code 7")),
        ("exit 1", Err("(no output)\n\nCommand exited with code 1")),
        (r"printf '\xff\xfe\0x'", Ok("\u{fffd}\u{fffd}x")),
    ] {
        let fixture = fixture();
        let result = fixture.run(command).await;
        let expected = expected.map(ToolOutput::text).map_err(ToolError::new);
        assert_eq!(result, expected, "{command}");
        assert!(fixture.children.is_empty());
    }
}

#[tokio::test]
async fn many_lines_are_cut() {
    let fixture = fixture();
    let output = fixture.run("seq 1 3000").await.unwrap();
    let path = fixture.saved_path();
    let kept: Vec<String> = (1001..=3000).map(|number| number.to_string()).collect();
    let kept = kept.join("\n");
    let notice = format!("[Showing lines 1001-3000 of 3000. Full output: {path}]");
    assert_eq!(text_of(&output), format!("{kept}\n\n{notice}"));
    let details = json!({
        "truncation": {
            "content": kept, "truncated": true, "truncatedBy": "lines",
            "totalLines": 3000, "totalBytes": 13892, "outputLines": 2000, "outputBytes": 9999,
            "lastLinePartial": false, "firstLineExceedsLimit": false, "maxLines": 2000, "maxBytes": 51200
        },
        "fullOutputPath": path
    });
    assert_eq!(output.details, Some(details));
    assert_eq!(fs::read_to_string(path).unwrap().lines().count(), 3000);
}

#[tokio::test]
async fn many_bytes_are_cut_with_true_totals() {
    let fixture = fixture();
    // 30,000 lines of 100 bytes: more than is kept in memory.
    let error = fixture.run("printf '%099d\\n' {1..30000}; exit 2").await.unwrap_err().0;
    let path = fixture.saved_path();
    let first = 30000 - 51200 / 100 + 1;
    let expected = format!(
        "\n\n[Showing lines {first}-30000 of 30000 (50.0KB limit). Full output: {path}]\n\nCommand exited with code 2"
    );
    let kept = error.strip_suffix(&expected).expect("the notice");
    assert_eq!(kept.lines().count(), 512);
    assert!(kept.starts_with(&format!("{first:099}\n")) && kept.ends_with("030000"));
    assert_eq!(fs::metadata(path).unwrap().len(), 3_000_000);
}

#[tokio::test]
async fn of_a_long_line_the_end_is_shown() {
    let fixture = fixture();
    let output = fixture.run("echo first; head -c 1048576 /dev/zero | tr '\\0' x").await.unwrap();
    let notice = format!("\n\n[Showing last 50.0KB of line 2 (line is 1.0MB). Full output: {}]", fixture.saved_path());
    assert_eq!(text_of(&output), "x".repeat(51200) + &notice);
    assert_eq!(output.details.unwrap()["truncation"]["totalBytes"], 1_048_582);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_does_not_end_the_command() {
    let mut fixture = fixture();
    let missing = fixture.folder.path().join("missing");
    fixture.tool = BashTool::new(Arc::clone(&fixture.children), missing, Environment::of_process());
    let output = fixture.run("seq 1 30000").await.unwrap();
    let text = text_of(&output);
    assert!(
        text.ends_with("30000. Full output: not saved (No such file or directory (os error 2))]"),
        "{}",
        &text[text.len() - 120..]
    );
    assert_eq!(output.details.unwrap()["fullOutputPath"], Value::Null);
}

#[tokio::test]
async fn a_timeout_ends_every_process() {
    let fixture = fixture();
    let error = fixture.call(json!({"command": SLEEPERS, "timeout": 2.5})).await.unwrap_err().0;
    let output = error.strip_suffix("\n\nCommand timed out after 2.5 seconds").expect("the message");
    let pids = pids(output);
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|&pid| !is_alive(pid)));
    assert_eq!(fixture.sink.last_text(), output);

    let error = fixture.call(json!({"command": "sleep 1000", "timeout": 1})).await.unwrap_err().0;
    assert_eq!(error, "Command timed out after 1 seconds");
    let output = fixture.call(json!({"command": "echo x", "timeout": 0})).await.unwrap();
    assert_eq!(text_of(&output), "x");
    assert!(fixture.children.is_empty());
}

#[tokio::test]
async fn an_abort_ends_every_process() {
    let fixture = fixture();
    let abort = async {
        fixture.sink.until(|text| text.contains("ready")).await;
        assert!(pids(&fixture.sink.last_text()).iter().all(|&pid| is_alive(pid)));
        fixture.context.cancel.cancel();
    };
    let (result, ()) = tokio::join!(fixture.run(SLEEPERS), abort);
    let error = result.unwrap_err().0;
    let output = error.strip_suffix("\n\nCommand aborted").expect("the message");
    let pids = pids(output);
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|&pid| !is_alive(pid)));
    assert!(fixture.children.is_empty());
    assert_eq!(fixture.run("echo never").await, Err(ToolError::new("Command aborted")));
}

#[tokio::test]
async fn an_abort_does_not_wait_for_a_stuck_client() {
    let fixture = fixture_with(Recorder { is_stuck: true, ..Recorder::default() }, ToolSettings::default());
    let abort = async {
        fixture.sink.until(|text| text.contains('y')).await;
        fixture.context.cancel.cancel();
    };
    let (result, ()) = tokio::join!(fixture.run("yes"), abort);
    assert!(result.unwrap_err().0.ends_with("\n\nCommand aborted"));
}

#[tokio::test]
async fn dropping_the_future_ends_every_process() {
    let fixture = fixture();
    let mut call = fixture.run(SLEEPERS).boxed_local();
    tokio::select! {
        result = &mut call => panic!("ended by itself: {result:?}"),
        () = fixture.sink.until(|text| text.contains("ready")) => {}
    }
    let pids = pids(&fixture.sink.last_text());
    assert_eq!(pids.len(), 3);
    drop(call);
    let deadline = StdInstant::now() + Duration::from_secs(10);
    while pids.iter().any(|&pid| is_alive(pid)) {
        assert!(StdInstant::now() < deadline, "still alive");
        tokio::task::yield_now().await;
    }
    assert!(fixture.children.is_empty());
}

#[tokio::test]
async fn a_background_process_does_not_hold_up_the_result() {
    let fixture = fixture();
    let output = fixture.run("sleep 1000 & echo $!").await.unwrap();
    let pid: i32 = text_of(&output).parse().unwrap();
    assert!(is_alive(pid));
    assert_eq!(fixture.children.kill_all(), 0);
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn progress_is_throttled_and_complete() {
    let fixture = fixture();
    let output = fixture.run("for i in {1..40}; do echo line $i; sleep 0.01; done").await.unwrap();
    let reports = fixture.sink.reports.lock().unwrap();
    let (first, _) = &reports[0];
    assert_eq!(*first, ToolProgress { so_far: ToolOutput::default(), new_text: String::new() });
    let (last, _) = reports.last().unwrap();
    assert_eq!(last.so_far.content, output.content);
    assert_eq!(last.so_far.details, Some(json!({"truncation": null, "fullOutputPath": null})));
    assert!(reports.len() > 3);
    // The last one comes when the command ends, whenever that is.
    for pair in reports[..reports.len() - 1].windows(2) {
        assert!(pair[1].1 - pair[0].1 >= REPORT_INTERVAL - Duration::from_millis(5));
    }
    let pieces: String = reports.iter().map(|(report, _)| report.new_text.as_str()).collect();
    assert_eq!(pieces, text_of(&output) + "\n");
}

#[tokio::test]
async fn progress_of_a_long_output_is_its_end() {
    let fixture = fixture();
    fixture.run("seq 1 3000; echo; sleep 0.3; seq 1 20000").await.unwrap();
    let path = fixture.saved_path();
    let reports = fixture.sink.reports.lock().unwrap();
    let (last, _) = reports.last().unwrap();
    let details = last.so_far.details.as_ref().unwrap();
    assert_eq!(details["truncation"]["totalLines"], 23_001);
    assert_eq!(details["fullOutputPath"], path.as_str());
    assert!(text_of(&last.so_far).starts_with("18001\n"));
    assert!(reports.iter().all(|(report, _)| text_of(&report.so_far).len() <= MAX_BYTES));
    assert!(reports.iter().all(|(report, _)| report.new_text.len() <= MAX_BYTES));
}

#[tokio::test]
async fn commands_run_at_the_same_time() {
    let fixture = fixture();
    // Each waits for the file of the other.
    let command = |own, other| format!("touch {own}; until [ -e {other} ]; do sleep 0.01; done; echo {own}");
    let (first, second) = (command("a", "b"), command("b", "a"));
    let (first, second) = tokio::join!(fixture.run(&first), fixture.run(&second));
    assert_eq!((text_of(&first.unwrap()), text_of(&second.unwrap())), ("a".into(), "b".into()));
}

#[tokio::test]
async fn a_missing_folder_is_told() {
    let mut fixture = fixture();
    fixture.context.cwd = "/no/such/folder".into();
    let expected = "Working directory does not exist: /no/such/folder\nCannot execute bash commands.";
    assert_eq!(fixture.run("true").await, Err(ToolError::new(expected)));
}

#[tokio::test]
async fn settings_and_folder_are_followed() {
    let settings = ToolSettings {
        shell_path: Some("/bin/sh".into()),
        shell_command_prefix: Some("greeting=hello".into()),
        ..ToolSettings::default()
    };
    let fixture = fixture_with(Recorder::default(), settings);
    let output = fixture.run("echo $greeting from $0 in $PWD").await.unwrap();
    assert_eq!(text_of(&output), format!("hello from /bin/sh in {}", fixture.context.cwd.display()));
}
