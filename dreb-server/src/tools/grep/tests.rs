use std::fs;
use std::os::unix::fs::PermissionsExt;

use pretty_assertions::assert_eq;

use super::*;
use crate::tools::testing::{Run, run, text};

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

async fn grep_text(dir: &Path, arguments: Value) -> String {
    text(&run(&GrepTool::new(), dir, arguments).await.unwrap()).to_owned()
}

#[tokio::test]
async fn matches_come_with_path_and_line() {
    let dir = tree(&[("b.md", "alpha\r\nbeta again\r\n"), ("a/x.txt", "Beta\n"), (".h/y", "beta"), (".git/z", "beta")]);
    for (arguments, expected) in [
        (json!({"pattern": "beta"}), ".git/z:1: beta\n.h/y:1: beta\nb.md:2: beta again"),
        (json!({"pattern": "BETA", "ignoreCase": true, "path": "a"}), "x.txt:1: Beta"),
        (json!({"pattern": "^b.*n$", "path": "b.md"}), "No matches found"),
        (json!({"pattern": "^b.*n", "path": "b.md"}), "b.md:2: beta again"),
        (json!({"pattern": "b.ta"}), ".git/z:1: beta\n.h/y:1: beta\nb.md:2: beta again"),
        (json!({"pattern": "b.ta", "literal": true}), "No matches found"),
        (json!({"pattern": "(?i)beta", "glob": "*.txt"}), "a/x.txt:1: Beta"),
        (json!({"pattern": "(?i)beta", "glob": "!*.txt", "path": "a"}), "No matches found"),
        (json!({"pattern": "(?i)beta", "glob": "a/*.txt", "path": "a"}), "x.txt:1: Beta"),
        (json!({"pattern": "(?i)beta", "glob": "./*.txt", "path": "a"}), "No matches found"),
    ] {
        assert_eq!(grep_text(dir.path(), arguments.clone()).await, expected, "{arguments}");
    }
}

#[tokio::test]
async fn a_glob_may_start_at_the_searched_folder() {
    let dir = tree(&[("src/lib/x.rs", "hit"), ("src/x.rs", "hit"), ("lib/x.rs", "hit")]);
    let arguments = json!({"pattern": "hit", "path": "src", "glob": "lib/*.rs"});
    assert_eq!(grep_text(dir.path(), arguments).await, "lib/x.rs:1: hit");
}

#[tokio::test]
async fn lines_around_matches_are_shown_for_each() {
    let content: String = (0..10).map(|n| format!("line {n}\n")).collect();
    let dir = tree(&[("long.txt", &content)]);
    assert_eq!(
        grep_text(dir.path(), json!({"pattern": "line [13]", "context": 1})).await,
        "long.txt-1- line 0\nlong.txt:2: line 1\nlong.txt-3- line 2\nlong.txt-3- line 2\nlong.txt:4: line \
         3\nlong.txt-5- line 4"
    );
    assert_eq!(
        grep_text(dir.path(), json!({"pattern": "line [029]", "context": 2, "limit": 2})).await,
        "long.txt:1: line 0\nlong.txt-2- line 1\nlong.txt-3- line 2\nlong.txt-1- line 0\nlong.txt-2- line \
         1\nlong.txt:3: line 2\nlong.txt-4- line 3\nlong.txt-5- line 4\n\n[2 matches limit reached. Use limit=4 for \
         more, or refine pattern]"
    );
    assert_eq!(
        grep_text(dir.path(), json!({"pattern": "line [09]", "context": 1})).await,
        "long.txt:1: line 0\nlong.txt-2- line 1\nlong.txt-9- line 8\nlong.txt:10: line 9"
    );
}

#[tokio::test]
async fn the_limit_is_told() {
    let dir = tree(&[("a", "x\nx\nx\n"), ("b", "x\n")]);
    assert_eq!(
        run(&GrepTool::new(), dir.path(), json!({"pattern": "x", "limit": 2})).await,
        Ok(ToolOutput::text("a:1: x\na:2: x\n\n[2 matches limit reached. Use limit=4 for more, or refine pattern]")
            .with_details(json!({"matchLimitReached": 2})))
    );
    let zero = run(&GrepTool::new(), dir.path(), json!({"pattern": "x", "limit": 0})).await.unwrap();
    assert_eq!(zero.details, Some(json!({"matchLimitReached": 1})));
    assert_eq!(run(&GrepTool::new(), dir.path(), json!({"pattern": "x"})).await.unwrap().details, None);
}

#[tokio::test]
async fn long_lines_and_long_results_are_cut() {
    let long = format!("{}x", "é".repeat(500));
    let dir = tree(&[("a", &long)]);
    assert_eq!(
        run(&GrepTool::new(), dir.path(), json!({"pattern": "x$"})).await,
        Ok(ToolOutput::text(format!(
            "a:1: {}... [truncated]\n\n[Some lines truncated to 500 chars. Use read tool to see full lines]",
            "é".repeat(500)
        ))
        .with_details(json!({"linesTruncated": true})))
    );
    let dir = tree(&[("a", &format!("{}\n", "x".repeat(400)).repeat(200))]);
    let output = run(&GrepTool::new(), dir.path(), json!({"pattern": "x", "limit": 150})).await.unwrap();
    assert!(text(&output).ends_with(
        "x\n\n[150 matches limit reached. Use limit=300 for more, or refine pattern. 50.0KB limit reached]"
    ));
    let details = output.details.unwrap();
    assert_eq!(details["truncation"]["totalLines"], 150);
    assert_eq!(details["truncation"]["outputLines"], 125);
}

#[tokio::test]
async fn ignored_and_binary_files_are_left_out() {
    let dir = tree(&[
        (".ignore", "out\n"),
        ("out/a", "hit"),
        ("in/a", "hit"),
        ("in/b", "hit\n\0"),
        (".dreb/memory/m.md", "hit"),
        (".dreb/secrets/s", "hit"),
    ]);
    fs::write(dir.path().join(".ignore"), "out\n.dreb\n").unwrap();
    assert_eq!(grep_text(dir.path(), json!({"pattern": "hit"})).await, "in/a:1: hit\n.dreb/memory/m.md:1: hit");
    assert_eq!(grep_text(dir.path(), json!({"pattern": "hit", "path": "in"})).await, "a:1: hit");
    assert_eq!(grep_text(dir.path(), json!({"pattern": "hit", "path": "in/b"})).await, "b:1: hit");
    assert_eq!(grep_text(dir.path(), json!({"pattern": "hit", "path": "out/a"})).await, "a:1: hit");
}

#[tokio::test]
async fn failures_are_told() {
    let dir = tree(&[("a", "x")]);
    let at = dir.path().display();
    let error = async |arguments| run(&GrepTool::new(), dir.path(), arguments).await.unwrap_err().0;
    assert_eq!(error(json!({"pattern": "x", "path": "none"})).await, format!("Path not found: {at}/none"));
    assert_eq!(
        error(json!({"pattern": "(x"})).await,
        "rg: regex parse error:\n    (?:(x)\n    ^\nerror: unclosed group"
    );
    assert_eq!(error(json!({"pattern": "a\nb"})).await, "rg: the literal \"\\n\" is not allowed in a regex");
    assert_eq!(error(json!({"pattern": "x", "path": "/dev/zero"})).await, "Not a regular file: /dev/zero is a device");
    assert!(error(json!({"pattern": "x", "glob": "[a"})).await.contains("unclosed character class"));
    let aborted = Run::new(dir.path()).cancelled().start(&GrepTool::new(), json!({"pattern": "x"})).await;
    assert_eq!(aborted, Err(ToolError::new("Operation aborted")));
}

#[tokio::test]
async fn unreadable_files_are_named() {
    let dir = tree(&[("a", "x"), ("b", "x")]);
    fs::set_permissions(dir.path().join("b"), fs::Permissions::from_mode(0o000)).unwrap();
    let expected = if nix::unistd::geteuid().is_root() {
        "a:1: x\nb:1: x"
    } else {
        "a:1: x\n\nWarning: Failed to read 1 file(s): b"
    };
    assert_eq!(grep_text(dir.path(), json!({"pattern": "x"})).await, expected);
    assert_eq!(
        text(&output(Found::new(1), 1, &(0..22).map(|n| n.to_string()).collect::<Vec<_>>())),
        "No matches found\n\nWarning: Failed to read 22 file(s): 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, \
         15, 16, 17, 18, 19 and 2 more"
    );
}

#[test]
fn a_huge_file_does_not_hold_up_an_abort() {
    let token = tokio_util::sync::CancellationToken::new();
    let abort = Abort::new(token.clone());
    token.cancel();
    let mut file = AbortableFile { file: File::open("/dev/zero").unwrap(), abort: &abort };
    assert_eq!(file.read(&mut [0; 8]).unwrap_err().to_string(), "aborted");
}
