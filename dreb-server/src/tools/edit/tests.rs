use std::fs;
use std::os::unix::fs::PermissionsExt;

use pretty_assertions::assert_eq;

use super::*;
use crate::tools::testing::{Run, run};

/// Edits `a.txt` with this content; gives the output and the new content.
async fn edit_of(content: &[u8], old: &str, new: &str) -> (Result<ToolOutput, ToolError>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.txt");
    fs::write(&file, content).unwrap();
    let output = run(&EditTool::new(), dir.path(), json!({"path": "a.txt", "oldText": old, "newText": new})).await;
    (output, fs::read(file).unwrap())
}

#[tokio::test]
async fn the_result_carries_a_diff() {
    let (output, content) = edit_of(b"alpha\nbeta\ngamma\n", "beta", "BETA").await;
    assert_eq!(
        output,
        Ok(ToolOutput::text("Successfully replaced text in a.txt.")
            .with_details(json!({"diff": " 1 alpha\n-2 beta\n+2 BETA\n 3 gamma", "firstChangedLine": 2})))
    );
    assert_eq!(content, b"alpha\nBETA\ngamma\n");
}

#[tokio::test]
async fn mark_line_endings_and_stray_bytes_stay() {
    let (output, content) = edit_of("\u{feff}a\r\nb\r\nc\r\n".as_bytes(), "a\nb", "x\r\ny\nz").await;
    output.unwrap();
    assert_eq!(content, "\u{feff}x\r\ny\r\nz\r\nc\r\n".as_bytes());

    let (output, content) = edit_of(b"caf\xe9 = 1\nn = 2\n", "n = 2", "n = 3").await;
    assert_eq!(output.unwrap().details.unwrap()["diff"], " 1 caf\u{fffd} = 1\n-2 n = 2\n+2 n = 3");
    assert_eq!(content, b"caf\xe9 = 1\nn = 3\n");
    let (output, content) = edit_of(b"caf\xe9 = 1\n", "caf\u{fffd} = 1", "cafe = 1").await;
    output.unwrap();
    assert_eq!(content, b"cafe = 1\n");
}

#[tokio::test]
async fn refused_edits_say_why() {
    for (content, old, new, text) in [
        (
            "abc",
            "x",
            "y",
            "Could not find the exact text in a.txt. The old text must match exactly including all whitespace and \
             newlines.",
        ),
        (
            "hello\r\nworld\r\n---\r\nhello\nworld\n",
            "hello\nworld\n",
            "y",
            "Found 2 occurrences of the text in a.txt. The text must be unique. Please provide more context to make \
             it unique.",
        ),
        (
            "abc",
            "b",
            "b",
            "No changes made to a.txt. The replacement produced identical content. This might indicate an issue with \
             special characters or the text not existing as expected.",
        ),
    ] {
        let (output, unchanged) = edit_of(content.as_bytes(), old, new).await;
        assert_eq!(output, Err(ToolError::new(text)));
        assert_eq!(unchanged, content.as_bytes());
    }
}

#[tokio::test]
async fn files_that_cannot_be_edited_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let error = async |path: &str| {
        let arguments = json!({"path": path, "oldText": "a", "newText": "b"});
        run(&EditTool::new(), dir.path(), arguments).await.unwrap_err().0
    };
    assert_eq!(error("missing.txt").await, "Could not access file: missing.txt. Error code: ENOENT");
    assert_eq!(error(".").await, "EISDIR: illegal operation on a directory, read");
    assert_eq!(error("/dev/null").await, "Not a regular file: /dev/null is a device");
    let file = dir.path().join("read-only");
    fs::write(&file, "a").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    if !nix::unistd::geteuid().is_root() {
        assert_eq!(error("read-only").await, "Could not access file: read-only. Error code: EACCES");
    }
}

#[tokio::test]
async fn edits_of_one_file_at_the_same_time_all_count() {
    let dir = tempfile::tempdir().unwrap();
    let tool = EditTool::new();
    let lines: Vec<String> = (0..20).map(|n| format!("<{n}>")).collect();
    fs::write(dir.path().join("a"), lines.join("\n")).unwrap();
    let edits: Vec<_> = lines
        .iter()
        .map(|line| json!({"path": "a", "oldText": line, "newText": line.replace('<', "[")}))
        .map(|arguments| tokio::spawn(Run::new(dir.path()).start(&tool, arguments)))
        .collect();
    for edit in edits {
        edit.await.unwrap().unwrap();
    }
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), lines.join("\n").replace('<', "["));
}
