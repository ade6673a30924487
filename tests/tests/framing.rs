//! Lines: how they are split, what is said of bad ones, and that no input harms the server.

use dreb_tests::notation::{messages, shorts, text};
use dreb_tests::{FakeProvider, Home, Reply, Server};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

/// Cap on the length of a line unless told otherwise.
const CAP: usize = 256 << 20;

async fn server() -> (FakeProvider, Home) {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    (fake, home)
}

/// Sends a line and returns the next line.
async fn answer(server: &mut Server, line: impl AsRef<[u8]>) -> Value {
    let mut line = line.as_ref().to_vec();
    line.push(b'\n');
    server.send_raw(line).await;
    server.next().await
}

#[tokio::test]
async fn bad_lines_are_told_what_is_wrong() {
    let (_fake, home) = server().await;
    let mut server = home.dreb().start();
    let unknown = |shown: &str| json!({ "type": "response", "command": "unknown", "success": false, "error": format!("Unknown command: {shown}") });
    for line in ["42", "\"text\"", "[]", "{}", "null", "true", "{\"id\":null}"] {
        let mut expected = unknown("undefined");
        if line.contains("id") {
            expected["id"] = Value::Null;
        }
        assert_eq!(answer(&mut server, line).await, expected, "{line}");
    }
    assert_eq!(answer(&mut server, "{\"type\":null}").await, unknown("null"));
    assert_eq!(answer(&mut server, "{\"type\":5}").await, unknown("5"));
    assert_eq!(
        answer(&mut server, "{\"id\":\"u1\",\"type\":\"no_such_command\"}").await,
        json!({
            "id": "u1",
            "type": "response",
            "command": "no_such_command",
            "success": false,
            "error": "Unknown command: no_such_command",
        })
    );
    // No dialog is open that this could answer; the reference drops it, too.
    server.send_raw("{\"type\":\"extension_ui_response\",\"id\":\"gone\",\"cancelled\":true}\n").await;
    for line in ["{not json", "{} x", "{\"type\":\"prompt\",\"message\":\"a\"", "\u{feff}{\"type\":\"abort\"}", "'x'"] {
        let answer = answer(&mut server, line).await;
        assert_eq!((&answer["command"], answer.get("id")), (&json!("parse"), None), "{answer}");
        assert!(answer["error"].as_str().unwrap().starts_with("Failed to parse command: "), "{answer}");
    }
    server.finish().await;
}

#[tokio::test]
async fn wrong_fields_are_named_and_change_nothing() {
    let (_fake, home) = server().await;
    let mut server = home.dreb().start();
    let before = server.ok(json!({ "type": "get_state" })).await;
    let string = "invalid type: integer `5`, expected a string";
    let cases = [
        (r#"{"id":1,"type":"prompt"}"#, "prompt", "message: required".to_owned()),
        (r#"{"id":1,"type":"prompt","message":5}"#, "prompt", format!("message: {string}")),
        (r#"{"id":1,"type":"steer","message":5}"#, "steer", format!("message: {string}")),
        (r#"{"id":1,"type":"follow_up"}"#, "follow_up", "message: required".to_owned()),
        (
            r#"{"id":1,"type":"prompt","message":"m","images":[{"type":"image","mimeType":"x"}]}"#,
            "prompt",
            "images[0].data: required".to_owned(),
        ),
        (r#"{"id":1,"type":"set_model","provider":"fake"}"#, "set_model", "modelId: required".to_owned()),
        (r#"{"id":1,"type":"bash"}"#, "bash", "command: required".to_owned()),
        (r#"{"id":1,"type":"bash","command":5}"#, "bash", format!("command: {string}")),
        (r#"{"id":1,"type":"set_steering_mode"}"#, "set_steering_mode", "mode: required".to_owned()),
        (r#"{"id":1,"type":"set_thinking_level"}"#, "set_thinking_level", "level: required".to_owned()),
    ];
    for (line, command, error) in cases {
        assert_eq!(
            answer(&mut server, line).await,
            json!({
                "id": 1,
                "type": "response",
                "command": command,
                "success": false,
                "error": format!("Command failed: Invalid {command}: {error}"),
            }),
            "{line}"
        );
    }
    let wrong = answer(&mut server, r#"{"type":"prompt","message":"m","images":"nope"}"#).await;
    assert!(wrong["error"].as_str().unwrap().starts_with("Command failed: Invalid prompt: images: "), "{wrong}");
    let wrong = answer(&mut server, r#"{"type":"prompt","message":"m","streamingBehavior":"bogus"}"#).await;
    assert!(
        wrong["error"].as_str().unwrap().starts_with("Command failed: Invalid prompt: streamingBehavior: "),
        "{wrong}"
    );
    // Words of the settings are refused in the words of `set_settings`.
    assert_eq!(
        server.fails(json!({ "type": "set_steering_mode", "mode": "bogus" })).await,
        "Invalid steeringMode: \"bogus\". Valid values: all, one-at-a-time"
    );
    assert_eq!(
        server.fails(json!({ "type": "set_follow_up_mode", "mode": "bogus" })).await,
        "Invalid followUpMode: \"bogus\". Valid values: all, one-at-a-time"
    );
    let level = server.fails(json!({ "type": "set_thinking_level", "level": "bogus" })).await;
    assert!(level.starts_with("Invalid defaultThinkingLevel: \"bogus\". Valid values: off, minimal, low, "), "{level}");
    assert_eq!(server.ok(json!({ "type": "get_state" })).await, before);
    server.finish().await;
}

#[tokio::test]
async fn ids_of_every_kind_come_back_as_they_were() {
    let (_fake, home) = server().await;
    let mut server = home.dreb().start();
    for id in ["\"x\"", "5", "-1.5", "null", "true", "[1,\"a\"]", "{\"b\":1,\"a\":[]}", "12345678901234567890"] {
        let line = answer(&mut server, format!("{{\"id\":{id},\"type\":\"get_version\"}}")).await;
        assert_eq!(line["id"].to_string(), id);
        assert_eq!(line["success"], true);
        let failed = answer(&mut server, format!("{{\"id\":{id},\"type\":\"nope\"}}")).await;
        assert_eq!(failed["id"].to_string(), id);
    }
    let without = answer(&mut server, "{\"type\":\"get_version\"}").await;
    assert_eq!(without.get("id"), None);
    let doubled = answer(&mut server, "{\"id\":1,\"type\":\"nope\",\"id\":2,\"type\":\"get_version\"}").await;
    assert_eq!((&doubled["id"], &doubled["command"]), (&json!(2), &json!("get_version")));
    server.finish().await;
}

#[tokio::test]
async fn lines_end_with_a_line_feed_and_nothing_else() {
    let (fake, home) = server().await;
    let mut server = home.dreb().start();
    // CR LF, blank lines, two lines in one write.
    server
        .send_raw("{\"id\":1,\"type\":\"get_version\"}\r\n\n\r\n   \n{\"id\":2,\"type\":\"get_version\"}\n{\"id\":3,\"type\":\"get_version\"}\n")
        .await;
    for id in 1..=3 {
        let line = server.next().await;
        assert_eq!((&line["id"], &line["success"]), (&json!(id), &json!(true)));
    }
    // One line in many writes.
    for byte in "{\"id\":\"é\u{1f600}\",\"type\":\"get_version\"}\n".bytes() {
        server.send_raw([byte]).await;
    }
    assert_eq!(server.next().await["id"], "é\u{1f600}");
    // Line separators of other standards are ordinary characters, both ways.
    let odd = "a\u{2028}b\u{2029}c\u{85}d\u{b}e";
    fake.push(Reply::say(odd));
    let lines = server.run(odd).await;
    assert_eq!(text(messages(&lines, "user")[0]), odd);
    assert_eq!(text(messages(&lines, "assistant")[0]), odd);
    server.finish().await;
}

#[tokio::test]
async fn the_last_line_needs_no_line_feed() {
    let (_fake, home) = server().await;
    let mut server = home.dreb().start();
    server.send_raw("{\"id\":1,\"type\":\"get_version\"}\n{\"id\":2,\"type\":\"get_version\"}").await;
    let (lines, status) = server.close_stdin_and_wait().await;
    let ids: Vec<_> = lines.iter().map(|line| &line["id"]).collect();
    assert_eq!(ids, [1, 2]);
    assert_eq!(status.code(), Some(0));

    let mut server = home.dreb().start();
    server.send_raw("{\"id\":1,").await;
    let (lines, status) = server.close_stdin_and_wait().await;
    assert_eq!(shorts(&lines), ["R!parse"]);
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn invalid_utf_8_is_a_parse_error() {
    let (_fake, home) = server().await;
    let mut server = home.dreb().start();
    for bytes in [&b"\xff\xfe"[..], b"{\"type\":\"get_version\",\"x\":\"\xc3\x28\"}", b"{\"type\":\"get_\xe2\x82"] {
        let line = answer(&mut server, bytes).await;
        assert_eq!(shorts(std::slice::from_ref(&line)), ["R!parse"], "{line}");
        assert!(line["error"].as_str().unwrap().starts_with("Failed to parse command: "), "{line}");
    }
    server.ok(json!({ "type": "get_version" })).await;
    server.finish().await;
}

#[tokio::test]
async fn lone_surrogates_become_replacement_characters() {
    let (fake, home) = server().await;
    fake.push(Reply::say("ok"));
    let mut server = home.dreb().start();
    server.send_raw("{\"type\":\"prompt\",\"message\":\"a\\ud83d b \\ud83d\\ude00\"}\n").await;
    let lines = server.until("agent_settled").await;
    assert_eq!(text(messages(&lines, "user")[0]), "a\u{fffd} b \u{1f600}");
    let request = fake.request(1).await;
    assert_eq!(request.message(-1)["content"][0]["text"], "a\u{fffd} b \u{1f600}");
    server.finish().await;
}

#[tokio::test]
async fn a_line_of_five_megabytes_is_a_line() {
    let (fake, home) = server().await;
    fake.push(Reply::say("long"));
    let mut server = home.dreb().start();
    let long = "0123456789abcdef".repeat(5 << 16);
    let lines = server.run(&long).await;
    assert_eq!(text(messages(&lines, "user")[0]).len(), 5 << 20);
    let request = fake.request(1).await;
    assert_eq!(request.message(-1)["content"][0]["text"].as_str().unwrap(), long);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_over_the_cap_is_refused_and_the_next_one_read() {
    let (_fake, home) = server().await;
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "get_version" })).await;
    let mut stdin = server.take_stdin();
    let writing = tokio::spawn(async move {
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..=CAP / piece.len() {
            stdin.write_all(&piece).await.unwrap();
        }
        stdin.write_all(b"\n{\"id\":\"next\",\"type\":\"get_version\"}\n").await.unwrap();
        stdin
    });
    let refused = server.next().await;
    assert_eq!(shorts(std::slice::from_ref(&refused)), ["R!parse"], "{refused}");
    let next = server.next().await;
    assert_eq!((&next["id"], &next["success"]), (&json!("next"), &json!(true)));
    server.set_stdin(writing.await.unwrap());
    server.finish().await;
}

/// A generator that gives the same numbers in every run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// A line that is no valid command, of one of many kinds.
fn bad_line(numbers: &mut Numbers) -> Vec<u8> {
    let whole = r#"{"id":"v","type":"prompt","message":"some text","images":[{"type":"image","data":"AA==","mimeType":"image/png"}]}"#;
    match numbers.below(8) {
        // A command that was cut off; never at its very beginning, which is a blank line.
        0 => whole[..1 + numbers.below(whole.len() - 1)].into(),
        // Bytes of any value, but for the line feed, behind one that is not white space.
        1 => {
            let mut bytes = vec![b'!'];
            for _ in 0..numbers.below(200) {
                let byte = numbers.next().to_le_bytes()[0];
                bytes.push(if byte == b'\n' { b'?' } else { byte });
            }
            bytes
        }
        // JSON that is no object.
        2 => numbers.pick(&["0", "-1e309", "[{\"type\":\"abort\"}]", "\"abort\"", "null", "false", "[[[]]]"]).into(),
        // Nested deeper than anybody needs.
        3 => numbers.pick(&["[", "{\"a\":"]).repeat(1 + numbers.below(1000)).into_bytes(),
        // Commands nobody knows.
        4 => format!("{{\"id\":{},\"type\":\"x{}\"}}", numbers.next(), numbers.next()).into_bytes(),
        // Wrong kinds of fields.
        5 => format!(
            "{{\"id\":{},\"type\":\"{}\",\"message\":{},\"command\":{}}}",
            numbers.below(10),
            numbers.pick(&["prompt", "steer", "follow_up", "bash"]),
            numbers.pick(&["5", "null", "[]", "{}", "true"]),
            numbers.pick(&["5", "null", "[]", "{}", "true"]),
        )
        .into_bytes(),
        // A whole command with something behind it.
        6 => format!("{whole}{}", numbers.pick(&["}", ",", " x", "\"", "{}", "]", "\u{0}"])).into_bytes(),
        // One byte of a command changed into something that breaks it.
        _ => {
            let mut bytes = whole.as_bytes().to_vec();
            // Between the braces and before the first value, where every byte is structure.
            let at = [0, 1, 5, 9, bytes.len() - 1][numbers.below(5)];
            bytes[at] = [b'~', 0, 0xff, b'<'][numbers.below(4)];
            bytes
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_bad_lines_are_answered_and_do_no_harm() {
    const LINES: usize = 100_000;
    const WARM_UP: usize = 20_000;
    let (fake, home) = server().await;
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "get_version" })).await;
    let mut stdin = server.take_stdin();
    let writing = tokio::spawn(async move {
        let mut numbers = Numbers(20_261_201);
        let mut batch = Vec::new();
        for line in 1..=LINES {
            batch.extend_from_slice(&bad_line(&mut numbers));
            batch.push(b'\n');
            if line % 500 == 0 {
                stdin.write_all(&batch).await.unwrap();
                batch.clear();
            }
        }
        stdin
    });
    let mut before = 0;
    for line in 1..=LINES {
        let answer = server.next().await;
        assert_eq!((&answer["type"], &answer["success"]), (&json!("response"), &json!(false)), "line {line}: {answer}");
        if line == WARM_UP {
            before = server.memory();
        }
    }
    let after = server.memory();
    assert!(before > 0);
    assert!(after < before + (16 << 20), "memory went from {before} to {after} bytes");
    server.set_stdin(writing.await.unwrap());
    fake.push(Reply::say("still here"));
    let lines = server.run("are you there").await;
    assert_eq!(text(messages(&lines, "assistant")[0]), "still here");
    server.finish().await;
}
