//! Shell commands that the client runs itself, without the model.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::truncate::{Limits, truncate_tail};
use crate::process::{
    Children, OutputFile, OutputTail, Sanitizer, ShellError, ShellOptions, ShellProcess, Utf8Decoder,
};

/// Where and how a command of the client runs.
#[derive(Debug, Clone)]
pub struct UserCommandOptions {
    /// Shell and working directory.
    pub shell: ShellOptions,
    /// Folder for the file of a long output.
    pub temp_dir: PathBuf,
}

/// What came of a command of the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserCommandResult {
    /// The output as plain text, of a long one the end: 2000 lines or 50 KB.
    pub output: String,
    /// Exit status, `None` if it was cancelled or killed by a signal.
    pub exit_code: Option<i32>,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// Whether `output` is only the end.
    pub truncated: bool,
    /// File with the whole output. A long output may have one without being cut.
    pub full_output_path: Option<PathBuf>,
}

/// Runs a command line to its end, or kills its processes when it is cancelled. Dropping the future
/// kills them, too.
///
/// # Errors
/// The command line did not start. A failing command is not an error.
pub async fn run_user_command(
    children: &Arc<Children>,
    command: &str,
    options: &UserCommandOptions,
    cancel: CancellationToken,
) -> Result<UserCommandResult, ShellError> {
    if cancel.is_cancelled() {
        return Ok(UserCommandResult { cancelled: true, ..UserCommandResult::default() });
    }
    let mut shell = ShellProcess::spawn(children, command, &options.shell).await?;
    let mut output = PlainOutput::new(options.temp_dir.clone());
    let cancelled = tokio::select! {
        () = output.read(&mut shell) => false,
        () = cancel.cancelled() => true,
    };
    if cancelled {
        shell.kill().await;
        output.read(&mut shell).await;
    }
    let exit_code = shell.finish().code.filter(|_| !cancelled);
    Ok(UserCommandResult { exit_code, cancelled, ..output.finish().await })
}

/// The output without escape sequences and control characters, in memory and in the file alike.
struct PlainOutput {
    decoder: Utf8Decoder,
    sanitizer: Sanitizer,
    tail: OutputTail,
    file: OutputFile,
}

impl PlainOutput {
    fn new(temp_dir: PathBuf) -> Self {
        Self {
            decoder: Utf8Decoder::default(),
            sanitizer: Sanitizer::default(),
            tail: OutputTail::default(),
            file: OutputFile::new(temp_dir),
        }
    }

    /// Reads to the end. Cancel-safe.
    async fn read(&mut self, shell: &mut ShellProcess) {
        while let Some(chunk) = shell.next_chunk().await {
            let text = self.decoder.push(&chunk);
            self.push(&text, chunk.len());
            self.file.flush().await;
        }
    }

    fn push(&mut self, text: &str, raw_bytes: usize) {
        let plain = self.sanitizer.push(text);
        self.tail.push(&plain);
        self.file.push(Bytes::from(plain), raw_bytes);
    }

    async fn finish(mut self) -> UserCommandResult {
        let rest = std::mem::take(&mut self.decoder).finish();
        self.push(rest, 0);
        let truncation = truncate_tail(self.tail.text(), Limits::default());
        let mut output = truncation.content;
        if truncation.truncated {
            self.file.write().await;
        }
        let saved = self.file.finish().await;
        if truncation.truncated && saved.error.is_some() {
            output.push_str(&format!("\n\n[Full output: {}]", saved.describe()));
        }
        UserCommandResult {
            output,
            truncated: truncation.truncated,
            // A file that is neither whole nor needed is not worth naming.
            full_output_path: saved.path.filter(|_| truncation.truncated || saved.error.is_none()),
            ..UserCommandResult::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pretty_assertions::assert_eq;

    use super::*;
    use crate::environment::Environment;

    struct Fixture {
        folder: tempfile::TempDir,
        children: Arc<Children>,
        options: UserCommandOptions,
        cancel: CancellationToken,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let options = UserCommandOptions {
            shell: ShellOptions {
                cwd: folder.path().into(),
                shell_path: None,
                command_prefix: None,
                environment: Environment::of_process(),
            },
            temp_dir: folder.path().into(),
        };
        Fixture { folder, children: Arc::new(Children::new()), options, cancel: CancellationToken::new() }
    }

    impl Fixture {
        async fn run(&self, command: &str) -> UserCommandResult {
            run_user_command(&self.children, command, &self.options, self.cancel.clone()).await.unwrap()
        }
    }

    #[tokio::test]
    async fn a_short_output_is_plain_text() {
        let fixture = fixture();
        let result =
            fixture.run(r"printf '\e[31mred\e[0m\r\n\xff\0\ttab\n' ; echo err >&2; printf '\xe2\x82'; exit 3").await;
        let expected = UserCommandResult {
            output: "red\n\u{fffd}\ttab\nerr\n\u{fffd}".into(),
            exit_code: Some(3),
            ..UserCommandResult::default()
        };
        assert_eq!(result, expected);
    }

    #[tokio::test]
    async fn many_lines_are_cut_and_saved() {
        let fixture = fixture();
        let result = fixture.run("seq 1 3000").await;
        let lines: Vec<String> = (1002..=3000).map(|number| format!("{number}\n")).collect();
        assert_eq!(result.output, lines.concat());
        assert!(result.truncated);
        let saved = fs::read_to_string(result.full_output_path.unwrap()).unwrap();
        assert_eq!(saved.lines().count(), 3000);
    }

    #[tokio::test]
    async fn many_bytes_are_cut_and_saved() {
        let fixture = fixture();
        let result = fixture.run("head -c 3000000 /dev/zero | tr '\\0' x").await;
        assert_eq!(result.output, "x".repeat(50 * 1024));
        assert!(result.truncated);
        assert_eq!(fs::metadata(result.full_output_path.unwrap()).unwrap().len(), 3_000_000);
    }

    #[tokio::test]
    async fn a_file_may_exist_without_a_cut() {
        let fixture = fixture();
        // 60,000 bytes, of which 20,000 are text.
        let result = fixture.run(r"printf '\e[mxx%.0s' {1..10000}; printf '\r%.0s' {1..10000}").await;
        assert_eq!(result.output, "x".repeat(20_000));
        assert!(!result.truncated);
        assert_eq!(fs::read_to_string(result.full_output_path.unwrap()).unwrap(), result.output);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_told() {
        let mut fixture = fixture();
        fixture.options.temp_dir = fixture.folder.path().join("missing");
        let result = fixture.run("seq 1 3000").await;
        assert!(
            result.output.ends_with("3000\n\n\n[Full output: not saved (No such file or directory (os error 2))]"),
            "{}",
            &result.output[result.output.len() - 100..]
        );
        assert_eq!((result.exit_code, result.truncated, result.full_output_path), (Some(0), true, None));
    }

    #[tokio::test]
    async fn cancelling_ends_all_that_run_at_once() {
        let fixture = fixture();
        let mark = fixture.folder.path().join("mark");
        let run = |number| {
            let command = format!("echo out{number}; echo >> {}; setsid sleep 1000 & sleep 1000", mark.display());
            let fixture = &fixture;
            async move { fixture.run(&command).await }
        };
        let cancel = async {
            // Both have begun when both have written their line.
            while fs::read_to_string(&mark).unwrap_or_default() != "\n\n" {
                tokio::task::yield_now().await;
            }
            fixture.cancel.cancel();
        };
        let (first, second, ()) = tokio::join!(run(1), run(2), cancel);
        for (number, result) in [(1, first), (2, second)] {
            let expected =
                UserCommandResult { output: format!("out{number}\n"), cancelled: true, ..UserCommandResult::default() };
            assert_eq!(result, expected);
        }
        assert!(fixture.children.is_empty());

        let late = fixture.run("echo never").await;
        assert_eq!(late, UserCommandResult { cancelled: true, ..UserCommandResult::default() });
    }

    #[tokio::test]
    async fn a_signal_leaves_no_exit_code() {
        let result = fixture().run("kill -TERM $$").await;
        assert_eq!(result, UserCommandResult::default());
    }
}
