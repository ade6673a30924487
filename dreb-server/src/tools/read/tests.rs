use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use base64::Engine;
use pretty_assertions::assert_eq;

use super::*;
use crate::tools::ToolSettings;
use crate::tools::testing::{Run, run, text};

async fn read_text_of(content: impl AsRef<[u8]>, extra: Value) -> Result<ToolOutput, ToolError> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f.txt"), content).unwrap();
    let mut arguments = json!({"path": "f.txt"});
    arguments.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    run(&ReadTool::new(), dir.path(), arguments).await
}

#[tokio::test]
async fn a_file_that_fits_comes_as_it_is() {
    for content in ["", "a", "a\nb\n", "a\r\nb\r\n", "\u{feff}é"] {
        assert_eq!(read_text_of(content, json!({})).await, Ok(ToolOutput::text(content)));
    }
    assert_eq!(read_text_of(b"a\xff\xe2\x82z\x00", json!({})).await, Ok(ToolOutput::text("a\u{fffd}\u{fffd}z\0")));
}

#[tokio::test]
async fn offset_and_limit_pick_lines() {
    let lines = "1\n2\n3\n4\n5";
    for (arguments, expected) in [
        (json!({"offset": 0}), "1\n2\n3\n4\n5"),
        (json!({"offset": -3}), "1\n2\n3\n4\n5"),
        (json!({"offset": 4}), "4\n5"),
        (json!({"offset": 5, "limit": 9}), "5"),
        (json!({"limit": 2}), "1\n2\n\n[3 more lines in file. Use offset=3 to continue.]"),
        (json!({"offset": 2, "limit": 2}), "2\n3\n\n[2 more lines in file. Use offset=4 to continue.]"),
        (json!({"offset": 4, "limit": 2}), "4\n5"),
        (json!({"offset": 2.9, "limit": 1.5}), "2\n\n[3 more lines in file. Use offset=3 to continue.]"),
    ] {
        assert_eq!(read_text_of(lines, arguments).await, Ok(ToolOutput::text(expected)));
    }
    let error = read_text_of("a\nb\n", json!({"offset": 99})).await.unwrap_err();
    assert_eq!(error.0, "Offset 99 is beyond end of file (3 lines total)");
    assert_eq!(read_text_of("a\nb\n", json!({"offset": 3})).await, Ok(ToolOutput::text("")));
}

#[tokio::test]
async fn long_files_are_cut_by_lines() {
    let content: String = (1..=5000).map(|n| format!("line {n}\n")).collect();
    let output = read_text_of(&content, json!({})).await.unwrap();
    assert!(text(&output).starts_with("line 1\nline 2\n"));
    assert!(text(&output).ends_with("\nline 2000\n\n[Showing lines 1-2000 of 5001. Use offset=2001 to continue.]"));
    let truncation = &output.details.unwrap()["truncation"];
    assert_eq!(truncation["truncatedBy"], "lines");
    assert_eq!(truncation["totalLines"], 5001);
    assert_eq!(truncation["totalBytes"], content.len());
    assert_eq!(truncation["outputLines"], 2000);

    let output = read_text_of(&content, json!({"offset": 2001, "limit": 2500})).await.unwrap();
    assert!(text(&output).ends_with("\n\n[Showing lines 2001-4000 of 5001. Use offset=4001 to continue.]"));
    assert_eq!(output.details.unwrap()["truncation"]["totalLines"], 2500);
}

#[tokio::test]
async fn long_files_are_cut_by_bytes() {
    let content = format!("{}\n", "x".repeat(999)).repeat(100);
    let output = read_text_of(&content, json!({"offset": 2})).await.unwrap();
    assert!(text(&output).ends_with("x\n\n[Showing lines 2-52 of 101 (50.0KB limit). Use offset=53 to continue.]"));
    let truncation = &output.details.unwrap()["truncation"];
    assert_eq!((&truncation["truncatedBy"], &truncation["outputBytes"]), (&json!("bytes"), &json!(50_999)));
}

#[tokio::test]
async fn a_line_longer_than_the_limit_is_named() {
    let output = read_text_of(format!("a\n{}\nb", "x".repeat(120_000)), json!({"offset": 2})).await.unwrap();
    assert_eq!(text(&output), "[Line 2 is 117.2KB, exceeds 50.0KB limit. Use bash: sed -n '2p' f.txt | head -c 51200]");
    let truncation = &output.details.unwrap()["truncation"];
    assert_eq!((&truncation["firstLineExceedsLimit"], &truncation["content"]), (&json!(true), &json!("")));
}

#[tokio::test]
async fn what_cannot_be_read_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let error = async |path: &str| run(&ReadTool::new(), dir.path(), json!({"path": path})).await.unwrap_err().0;
    assert_eq!(error("missing.txt").await, format!("ENOENT: no such file or directory, access '{at}/missing.txt'"));
    assert_eq!(error(".").await, "EISDIR: illegal operation on a directory, read");
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(error("pipe").await, format!("Not a regular file: {at}/pipe is a named pipe"));
    assert_eq!(error("/dev/zero").await, "Not a regular file: /dev/zero is a device");
    if !nix::unistd::geteuid().is_root() {
        let secret = dir.path().join("secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(error("secret").await, format!("EACCES: permission denied, access '{at}/secret'"));
    }
    let call = Run::new(dir.path()).cancelled();
    let aborted = call.start(&ReadTool::new(), json!({"path": "pipe"})).await.unwrap_err();
    assert_eq!(aborted.0, "Operation aborted");
}

#[tokio::test]
async fn an_image_comes_as_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let png = image::tests::png(3, 2);
    fs::write(dir.path().join("picture.txt"), &png).unwrap();
    let output = run(&ReadTool::new(), dir.path(), json!({"path": "picture.txt"})).await.unwrap();
    let data = base64::engine::general_purpose::STANDARD.encode(&png);
    assert_eq!(
        output.content,
        [ContentBlock::text("Read image file [image/png]"), ContentBlock::Image(ImageContent::new(data, "image/png"))]
    );
    assert_eq!(output.details, None);
}

#[tokio::test]
async fn a_large_image_is_scaled_unless_the_settings_forbid_it() {
    let dir = tempfile::tempdir().unwrap();
    let png = image::tests::png(2400, 60);
    fs::write(dir.path().join("wide.png"), &png).unwrap();
    let output = run(&ReadTool::new(), dir.path(), json!({"path": "wide.png"})).await.unwrap();
    assert_eq!(
        text(&output),
        "Read image file [image/png]\n[Image: original 2400x60, displayed at 2000x50. Multiply coordinates by 1.20 \
         to map to original image.]"
    );
    assert_eq!(output.content.len(), 2);

    let settings = ToolSettings { auto_resize_images: false, ..ToolSettings::default() };
    let call = Run::new(dir.path()).with_settings(settings);
    let output = call.start(&ReadTool::new(), json!({"path": "wide.png"})).await.unwrap();
    let data = base64::engine::general_purpose::STANDARD.encode(&png);
    assert_eq!(text(&output), "Read image file [image/png]");
    assert_eq!(output.content[1], ContentBlock::Image(ImageContent::new(data, "image/png")));
}

#[tokio::test]
async fn a_broken_image_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let png = image::tests::png(30, 20);
    fs::write(dir.path().join("cut.png"), &png[..png.len() / 2]).unwrap();
    assert_eq!(
        run(&ReadTool::new(), dir.path(), json!({"path": "cut.png"})).await,
        Ok(ToolOutput::text(
            "Read image file [image/png]\n[Image omitted: could not be resized below the inline image size limit.]"
        ))
    );
}

#[tokio::test]
async fn tmp_read_stays_below_its_folder() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root_path = root.path().canonicalize().unwrap();
    let outside_path = outside.path().canonicalize().unwrap();
    fs::write(root_path.join("in.txt"), "in").unwrap();
    fs::write(outside_path.join("out.txt"), "out").unwrap();
    symlink(outside_path.join("out.txt"), root_path.join("link")).unwrap();
    let tool = ReadTool::below(root_path.clone());
    let read = async |path: &str| run(&tool, &outside_path, json!({"path": path})).await;

    assert_eq!(read("in.txt").await, Ok(ToolOutput::text("in")));
    let denied = format!(
        "Error: Access denied. tmp_read can only read files under {}. Resolved path: {}/out.txt",
        root_path.display(),
        outside_path.display()
    );
    assert_eq!(read("link").await, Ok(ToolOutput::text(&*denied)));
    assert_eq!(read(outside_path.join("out.txt").to_str().unwrap()).await, Ok(ToolOutput::text(&*denied)));
    let missing = root_path.join("none");
    assert_eq!(
        read("none").await,
        Err(ToolError::new(format!("ENOENT: no such file or directory, access '{}'", missing.display())))
    );
    assert_eq!(
        read("/none/x").await,
        Ok(ToolOutput::text(format!(
            "Error: Access denied. tmp_read can only read files under {}. Resolved path: /none/x",
            root_path.display()
        )))
    );
}
