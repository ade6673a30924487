use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use pretty_assertions::assert_eq;
use protocol_schema::{AgentMessage, AssistantMessage, ContentBlock, ThinkingLevel, UserMessage};

use super::*;
use crate::session::names::pending_path;

fn options(root: &Path) -> LogOptions {
    LogOptions {
        cwd: root.join("work"),
        session_dir: None,
        agent_dir: root.join("agent"),
        persist: true,
        parent_session: None,
        agent_type: None,
    }
}

fn model() -> EntryBody {
    EntryBody::ModelChange { provider: "p".into(), model_id: "m".into() }
}

fn user(text: &str) -> EntryBody {
    AgentMessage::User(UserMessage::new(vec![ContentBlock::text(text)], 1)).into()
}

fn answer() -> EntryBody {
    AgentMessage::Assistant(AssistantMessage::empty("a", "p", "m", 1)).into()
}

fn read(path: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_session_grows_from_nothing_over_pending_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = SessionLog::create(LogOptions {
        parent_session: Some("/old.jsonl".into()),
        agent_type: Some("Explore".into()),
        ..options(folder.path())
    })
    .unwrap();
    let path = log.path().unwrap();
    let pending = pending_path(&path);
    let cwd = folder.path().join("work");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert_eq!(path.parent().unwrap(), directory(&folder.path().join("agent"), &cwd));
    assert!(name.ends_with(&format!("Z_{}.jsonl", log.session_id())), "{name}");

    log.append(model()).durable.await.unwrap();
    let level = EntryBody::ThinkingLevelChange { thinking_level: ThinkingLevel::High };
    log.append(level).durable.await.unwrap();
    assert!(!folder.path().join("agent").exists());

    let prompt = log.append(user("hi"));
    prompt.durable.await.unwrap();
    assert!(!path.exists());
    assert_eq!(read(&pending).len(), 4);
    assert_eq!((mode(&pending), mode(pending.parent().unwrap())), (0o600, 0o700));

    log.append(answer()).durable.await.unwrap();
    assert!(!pending.exists());
    let lines = read(&path);
    assert_eq!(lines.len(), 5);
    assert_eq!(
        serde_json::to_string(&lines[0]).unwrap(),
        format!(
            r#"{{"type":"session","version":3,"id":"{}","timestamp":"{}","cwd":"{}","parentSession":"/old.jsonl","agentType":"Explore"}}"#,
            log.session_id(),
            log.header().timestamp,
            cwd.display()
        )
    );
    assert_eq!(lines[3]["id"], prompt.id.as_str());
    assert_eq!(lines[1]["parentId"], serde_json::Value::Null);
    for pair in lines[1..].windows(2) {
        assert_eq!(pair[1]["parentId"], pair[0]["id"]);
    }
    assert_eq!(log.leaf(), lines[4]["id"].as_str());
    assert_eq!(log.entries().len(), 4);
    let branch: Vec<_> = log.branch().map(|entry| entry.body.kind()).collect();
    assert_eq!(branch, ["message", "message", "thinking_level_change", "model_change"]);
    let context = log.build_context();
    assert_eq!((context.messages.len(), context.thinking_level), (2, Some(ThinkingLevel::High)));
    log.close().await.unwrap();
}

#[tokio::test]
async fn entries_that_nobody_awaits_are_written_in_order_until_the_close() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = SessionLog::create(options(folder.path())).unwrap();
    let mut ids = vec![log.append(answer()).id];
    ids.extend((0..200).map(|number| log.append(user(&number.to_string())).id));
    log.flush().await.unwrap();
    let stored: Vec<_> =
        read(&log.path().unwrap())[1..].iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(stored, ids);
    log.append(user("last"));
    log.close().await.unwrap();
    assert_eq!(read(&log.path().unwrap()).len(), 203);
    let late = log.append(user("late"));
    assert!(matches!(late.durable.await, Err(SessionError::Closed)));
    assert_eq!(log.entries().len(), 203);
}

#[tokio::test]
async fn an_entry_follows_the_leaf_wherever_it_was_moved() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = SessionLog::create(options(folder.path())).unwrap();
    let first = log.append(answer()).id;
    log.append(user("left"));
    assert!(!log.set_leaf(Some("gone")));
    assert!(log.set_leaf(Some(&first)));
    log.append(user("other"));
    assert!(log.set_leaf(None));
    log.append(user("root"));
    log.close().await.unwrap();
    let parents: Vec<_> = read(&log.path().unwrap())[1..].iter().map(|line| line["parentId"].clone()).collect();
    assert_eq!(parents, [None, Some(first.as_str()), Some(&first), None].map(serde_json::Value::from));
}

#[tokio::test]
async fn a_folder_of_ones_own_is_used_flat_and_relative_to_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    for (dir, expected) in [("mine", folder.path().join("work/mine")), ("/abs/x", "/abs/x".into())] {
        let log = SessionLog::create(LogOptions { session_dir: Some(dir.into()), ..options(folder.path()) }).unwrap();
        assert_eq!(log.folder().unwrap(), expected);
        assert_eq!(log.path().unwrap().parent().unwrap(), expected);
    }
}

#[tokio::test]
async fn without_storage_everything_is_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = SessionLog::create(LogOptions { persist: false, ..options(folder.path()) }).unwrap();
    assert_eq!((log.path(), log.folder()), (None, None));
    log.append(user("hi")).durable.await.unwrap();
    log.append(answer()).durable.await.unwrap();
    log.flush().await.unwrap();
    log.close().await.unwrap();
    assert_eq!(log.build_context().messages.len(), 2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_failing_disk_is_reported_and_made_up_for() {
    let folder = tempfile::tempdir().unwrap();
    // A file where the folder should be fails for root too.
    let dir = folder.path().join("sessions");
    fs::write(&dir, "in the way").unwrap();
    let mut log = SessionLog::create(LogOptions { session_dir: Some(dir.clone()), ..options(folder.path()) }).unwrap();
    let path = log.path().unwrap();
    let error = log.append(user("1")).durable.await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("Cannot write session file {}: ", path.display())), "{error}");
    log.append(answer()).durable.await.unwrap_err();
    log.flush().await.unwrap_err();
    assert_eq!(log.entries().len(), 2);

    fs::remove_file(&dir).unwrap();
    log.append(user("2")).durable.await.unwrap();
    let texts: Vec<_> = read(&path)[1..].iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts, log.entries().iter().map(|entry| entry.id.clone()).collect::<Vec<_>>());

    fs::remove_dir_all(&dir).unwrap();
    log.append(user("3")).durable.await.unwrap();
    assert_eq!(read(&path).len(), 5);
}

#[tokio::test]
async fn dropping_the_log_still_writes_what_is_queued() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = SessionLog::create(options(folder.path())).unwrap();
    let path = log.path().unwrap();
    log.append(answer());
    let last = log.append(user("x"));
    drop(log);
    last.durable.await.unwrap();
    assert_eq!(read(&path).len(), 3);
}
