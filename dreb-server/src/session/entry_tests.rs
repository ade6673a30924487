use super::*;
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::json;

/// One line of each type, as the format's first writer has them.
const SAMPLES: &[&str] = &[
    r#"{"type":"model_change","id":"1f0c22aa","parentId":null,"timestamp":"2026-02-03T10:15:30.130Z","provider":"anthropic","modelId":"claude-opus-4-6"}"#,
    r#"{"type":"thinking_level_change","id":"7be1900d","parentId":"1f0c22aa","timestamp":"2026-02-03T10:15:30.131Z","thinkingLevel":"high"}"#,
    r#"{"type":"message","id":"09aa41b2","parentId":"c4d2e8f1","timestamp":"2026-02-03T10:15:44.510Z","message":{"role":"assistant","content":[{"type":"thinking","thinking":"Look at Cargo.toml","thinkingSignature":"sig"},{"type":"text","text":"Checking."},{"type":"toolCall","id":"call_1","name":"bash","arguments":{"command":"cargo metadata"}}],"api":"anthropic-messages","provider":"anthropic","model":"claude-opus-4-6","usage":{"input":900,"output":40,"cacheRead":0,"cacheWrite":800,"totalTokens":1740,"cost":{"input":0.0045,"output":0.001,"cacheRead":0,"cacheWrite":0.005,"total":0.0105}},"stopReason":"toolUse","timestamp":1770113741100,"responseId":"msg_1","durationMs":3400}}"#,
    r#"{"type":"message","id":"55f3b7c0","parentId":"09aa41b2","timestamp":"2026-02-03T10:15:45.020Z","message":{"role":"toolResult","toolCallId":"call_1","toolName":"bash","content":[{"type":"text","text":"…"}],"details":{},"isError":false,"timestamp":1770113745010}}"#,
    r###"{"type":"compaction","id":"8c1d77e3","parentId":"2ab8d417","timestamp":"2026-02-03T11:00:00.000Z","summary":"## Goal …","firstKeptEntryId":"55f3b7c0","tokensBefore":151200,"details":{"readFiles":["/srv/app/Cargo.toml"],"modifiedFiles":[]},"fromHook":false}"###,
    r#"{"type":"branch_summary","id":"e0b1c2d3","parentId":"c4d2e8f1","timestamp":"2026-02-03T11:05:00.000Z","fromId":"c4d2e8f1","summary":"Tried the other layout.","details":{"readFiles":[],"modifiedFiles":[]},"fromHook":false}"#,
    r#"{"type":"custom","customType":"my-ext","data":{"n":1},"id":"a1a1a1a1","parentId":"e0b1c2d3","timestamp":"2026-02-03T11:06:00.000Z"}"#,
    r#"{"type":"custom_message","customType":"my-ext","content":"Reminder","display":true,"details":{"k":"v"},"id":"b2b2b2b2","parentId":"a1a1a1a1","timestamp":"2026-02-03T11:06:01.000Z"}"#,
    r#"{"type":"session_info","id":"c3c3c3c3","parentId":"b2b2b2b2","timestamp":"2026-02-03T11:07:00.000Z","name":"Crate survey"}"#,
    r#"{"type":"label","id":"d4d4d4d4","parentId":"c3c3c3c3","timestamp":"2026-02-03T11:08:00.000Z","targetId":"c4d2e8f1","label":"start"}"#,
    r#"{"type":"label","id":"d5d5d5d5","parentId":"d4d4d4d4","timestamp":"2026-02-03T11:08:01.000Z","targetId":"c4d2e8f1"}"#,
    r#"{"type":"of_a_later_version","id":"x","parentId":"d5d5d5d5","timestamp":"2026-02-03T11:09:00.000Z","message":1,"deep":{"b":1,"a":[null]}}"#,
    r#"{"type":"session_info","id":"y","parentId":null,"timestamp":"t","name":"n","later":{"z":1,"a":2}}"#,
];

#[test]
fn every_type_is_read_and_written_back_byte_for_byte() {
    let mut kinds = Vec::new();
    for line in SAMPLES {
        let entry = Entry::decode(line).unwrap();
        assert_eq!(String::from_utf8(entry.encode().unwrap()).unwrap(), *line);
        kinds.push(entry.body.kind().to_owned());
    }
    assert_eq!(&kinds[..3], ["model_change", "thinking_level_change", "message"]);
    assert_eq!(kinds[11], "of_a_later_version");
}

/// A user's message, whose content is a list of blocks.
const USER: &str = r#"{"type":"message","id":"c4d2e8f1","parentId":"7be1900d","timestamp":"2026-02-03T10:15:41.002Z","message":{"role":"user","content":[{"type":"text","text":"List the crates"}],"timestamp":1770113741000}}"#;

#[test]
fn a_message_of_blocks_is_read_and_written_back_byte_for_byte() {
    let entry = Entry::decode(USER).unwrap();
    assert_eq!(String::from_utf8(entry.encode().unwrap()).unwrap(), USER);
}

#[test]
fn bodies_are_typed() {
    let entry = Entry::decode(SAMPLES[4]).unwrap();
    assert_eq!((entry.id.as_str(), entry.parent_id.as_deref()), ("8c1d77e3", Some("2ab8d417")));
    assert_eq!(
        entry.body,
        EntryBody::Compaction(Compaction {
            summary: "## Goal …".into(),
            first_kept_entry_id: "55f3b7c0".into(),
            tokens_before: 151_200,
            details: Some(json!({ "readFiles": ["/srv/app/Cargo.toml"], "modifiedFiles": [] })),
            from_hook: Some(false),
        })
    );
    let fraction = SAMPLES[4].replace("151200", "151199.5");
    assert_eq!(Entry::decode(&fraction).unwrap().body, entry.body);
    let start: Vec<_> = SAMPLES.iter().map(|line| Entry::decode(line).unwrap().body.is_start_entry()).collect();
    assert_eq!(start.iter().filter(|start| **start).count(), 2);
    let answers: Vec<_> = SAMPLES.iter().filter(|line| Entry::decode(line).unwrap().body.is_assistant()).collect();
    assert_eq!(answers, [&SAMPLES[2]]);
}

#[test]
fn the_header_is_read_and_written_back_byte_for_byte() {
    for line in [
        r#"{"type":"session","version":3,"id":"0b9a6a1e-5d0f-4d3e-9a55-3c1f0f7c2a11","timestamp":"2026-02-03T10:15:30.123Z","cwd":"/srv/app","parentSession":"/data/sessions/old.jsonl","agentType":"Explore"}"#,
        r#"{"type":"session","version":3,"id":"x","timestamp":"t","cwd":"/","later":[1]}"#,
    ] {
        let header: SessionHeader = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&header).unwrap(), line);
    }
    let old: SessionHeader = serde_json::from_str(r#"{"type":"session","id":"x"}"#).unwrap();
    assert_eq!((old.version, old.cwd.as_str()), (1, ""));
    assert!(serde_json::from_str::<SessionHeader>(r#"{"type":"message","id":"x"}"#).is_err());
}

#[test]
fn messages_are_stored_under_their_role() {
    let custom = r#"{"role":"custom","customType":"c","content":"x","display":false,"timestamp":5}"#;
    assert_eq!(
        EntryBody::from(AgentMessage::from_json(custom).unwrap()),
        EntryBody::CustomMessage {
            custom_type: "c".into(),
            content: Content::Text("x".into()),
            display: false,
            details: None
        }
    );
    let user = AgentMessage::from_json(r#"{"role":"user","content":"x","timestamp":5}"#).unwrap();
    assert_eq!(EntryBody::from(user.clone()), EntryBody::Message(Box::new(user)));
}

#[test]
fn what_is_no_entry_is_refused_with_the_reason() {
    for (line, reason) in [
        ("null", "invalid type: null, expected an object"),
        ("5", "invalid type: integer `5`, expected an object"),
        (r#"{"id":"a"}"#, "missing field `type`"),
        (r#"{"type":"later"}"#, "missing field `id`"),
        (r#"{"type":"message","id":"a"}"#, "`message`: expected an object"),
        (r#"{"type":"message","id":"a","message":5}"#, "`message`: expected an object"),
        (r#"{"type":"label","id":"a","targetId":5}"#, "`targetId`: invalid type: integer `5`, expected a string"),
        (r#"{"type":"session_info","id":"a""#, "EOF while parsing an object"),
    ] {
        let error = Entry::decode(line).unwrap_err().to_string();
        assert!(error.starts_with(&format!("not a session entry: {reason}")), "{line}: {error}");
    }
}

#[test]
fn a_malformed_body_may_keep_its_place_in_the_tree() {
    let line = r#"{"type":"message","id":"a","parentId":"p","timestamp":"t"}"#;
    let (entry, fault) = Entry::decode_leniently(line).unwrap();
    assert!(fault.is_some());
    assert_eq!((entry.id.as_str(), entry.parent_id.as_deref()), ("a", Some("p")));
    assert_eq!(entry.body, EntryBody::Unknown { kind: "message".into() });
    let (_, fault) = Entry::decode_leniently(SAMPLES[0]).unwrap();
    assert!(fault.is_none());
    assert!(Entry::decode_leniently(r#"{"type":"message"}"#).is_err());
}

#[test]
fn lone_surrogates_and_keys_that_stand_twice_are_read() {
    let line = r#"{"type":"session_info","id":"a","id":"b","parentId":null,"timestamp":"t","name":"x \ud83d y"}"#;
    let entry = Entry::decode(line).unwrap();
    assert_eq!(entry.id, "b");
    assert_eq!(entry.body, EntryBody::SessionInfo { name: Some("x \u{fffd} y".into()) });
}

proptest! {
    #[test]
    fn any_text_survives(name in any::<String>(), id in any::<String>(), parent in any::<Option<String>>()) {
        let entry = Entry {
            id,
            parent_id: parent,
            timestamp: "t".into(),
            body: EntryBody::SessionInfo { name: Some(name) },
            extra: Extra::new(),
        };
        let line = String::from_utf8(entry.encode().unwrap()).unwrap();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(Entry::decode(&line).unwrap(), entry);
    }

    #[test]
    fn no_line_panics(line in r#"(\{"type":"(message|label|compaction|x)",("id":"a",)?"?(message|summary)":.{0,40}\}?)|.{0,60}"#) {
        if let Ok(entry) = Entry::decode(&line) {
            prop_assert_eq!(Entry::decode(std::str::from_utf8(&entry.encode().unwrap()).unwrap()).unwrap(), entry);
        }
    }
}
