use std::fs;

use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;

struct Home {
    folder: tempfile::TempDir,
    paths: Paths,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths {
            home: folder.path().into(),
            agent_dir: folder.path().join("agent"),
            cwd: folder.path().join("work"),
            temp_dir: folder.path().join("tmp"),
        };
        Self { folder, paths }
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn global(&self) -> String {
        fs::read_to_string(self.paths.agent_dir.join("settings.json")).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(&self.paths.agent_dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn missing_files_are_empty_and_no_fault() {
    let home = Home::new();
    let (settings, warnings) = Settings::open(&home.paths);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(*settings.get(), Values::default());
    assert!(!home.paths.agent_dir.exists());
}

#[tokio::test]
async fn a_broken_file_is_reported_counts_as_empty_and_is_never_written() {
    let home = Home::new();
    home.write("agent/settings.json", "{\"defaultModel\": ");
    home.write("work/.dreb/settings.json", r#"{"defaultModel":"p"}"#);
    let (settings, warnings) = Settings::open(&home.paths);
    let path = home.paths.agent_dir.join("settings.json");
    assert_eq!(
        warnings,
        [format!(
            "Warning (startup, global settings): {}: EOF while parsing a value at line 1 column 17",
            path.display()
        )]
    );
    assert_eq!(settings.get().default_model(), Some("p"));
    let error = settings.update(&[("defaultModel", json!("x"))]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Cannot write settings: the global settings file failed to load (fix or remove the corrupt settings.json first)"
    );
    assert_eq!(home.global(), "{\"defaultModel\": ");

    home.write("agent/settings.json", "{}");
    assert_eq!(settings.reload().await, Vec::<String>::new());
    settings.update(&[("defaultModel", json!("x"))]).await.unwrap();
    assert_eq!(home.global(), "{\n  \"defaultModel\": \"x\"\n}");
}

#[tokio::test]
async fn a_file_broken_after_the_start_is_left_alone_too() {
    let home = Home::new();
    home.write("agent/settings.json", "{}");
    let (settings, _) = Settings::open(&home.paths);
    home.write("agent/settings.json", "[]");
    let error = settings.update(&[("a", json!(1))]).await.unwrap_err();
    assert!(matches!(error, SettingsError::Corrupt(Scope::Global)), "{error}");
    assert_eq!(home.global(), "[]");
    assert_eq!(home.names(), ["settings.json"]);
}

#[tokio::test]
async fn writes_keep_unknown_keys_their_order_and_what_others_wrote() {
    let home = Home::new();
    home.write("agent/settings.json", r#"{"zeta":{"b":1,"a":[]},"queueMode":"all","compaction":{"own":1.5}}"#);
    let (settings, _) = Settings::open(&home.paths);
    assert_eq!(settings.get().steering_mode(), protocol_schema::queue::QueueMode::All);
    home.write(
        "agent/settings.json",
        r#"{"zeta":{"b":1,"a":[]},"queueMode":"all","compaction":{"own":1.5},"theirs":true}"#,
    );
    settings.update(&[("compaction.enabled", json!(false)), ("defaultModel", json!("m"))]).await.unwrap();
    assert_eq!(
        home.global(),
        r#"{
  "zeta": {
    "b": 1,
    "a": []
  },
  "compaction": {
    "own": 1.5,
    "enabled": false
  },
  "theirs": true,
  "steeringMode": "all",
  "defaultModel": "m"
}"#
    );
    assert!(!settings.get().compaction().enabled);
    assert_eq!(settings.clone().get().default_model(), Some("m"));
    settings.update(&[("defaultModel", Value::Null)]).await.unwrap();
    assert_eq!(settings.get().default_model(), None);
    assert!(!home.global().contains("defaultModel"));
    assert_eq!(home.names(), ["settings.json"]);
}

#[tokio::test]
async fn an_update_that_nobody_waits_for_is_whole_and_keeps_its_turn() {
    let home = Home::new();
    let (settings, _) = Settings::open(&home.paths);
    let changes = [("a", json!(1))];
    let mut update = Box::pin(settings.update(&changes));
    // One poll starts the work, then the caller goes away.
    assert!(futures_util::poll!(&mut update).is_pending());
    drop(update);
    settings.update(&[("b", json!(2))]).await.unwrap();
    assert_eq!(home.global(), "{\n  \"a\": 1,\n  \"b\": 2\n}");
    assert_eq!(settings.get().value("a"), Some(&json!(1)));
}

#[tokio::test]
async fn keys_with_dots_have_a_way_in() {
    let home = Home::new();
    let (settings, _) = Settings::open(&home.paths);
    let path = ["modelSettings", "gpt-5.2", "thinkingDisplay"].map(str::to_owned).to_vec();
    settings.update_paths(vec![(path, json!("omitted"))]).await.unwrap();
    assert_eq!(settings.get().thinking_display("gpt-5.2").as_deref(), Some("omitted"));
}

#[tokio::test]
async fn a_held_lock_is_an_error_that_changes_nothing() {
    let home = Home::new();
    home.write("agent/settings.json", "{}");
    let (settings, _) = Settings::open(&home.paths);
    let _lock = lock::Lock::acquire(&home.paths.agent_dir.join("settings.json")).unwrap();
    let error = settings.update(&[("a", json!(1))]).await.unwrap_err();
    assert_eq!(error.to_string(), "Failed to persist settings: global: Lock file is already being held");
    assert_eq!(home.global(), "{}");
    assert_eq!(settings.get().value("a"), None);
}

#[cfg(unix)]
#[tokio::test]
async fn mode_and_link_of_the_file_stay() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    home.write("dotfiles/dreb.json", "{}");
    let real = home.folder.path().join("dotfiles/dreb.json");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir_all(&home.paths.agent_dir).unwrap();
    let link = home.paths.agent_dir.join("settings.json");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let (settings, _) = Settings::open(&home.paths);
    settings.update(&[("a", json!(1))]).await.unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&real).unwrap(), "{\n  \"a\": 1\n}");
    assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
}

/// Two servers on one home folder, and a reader that takes no lock.
#[test]
fn two_writers_lose_nothing_and_a_reader_never_sees_a_torn_file() {
    const WRITES: usize = 200;
    let home = Home::new();
    home.write("agent/settings.json", r#"{"kept":"yes"}"#);
    let path = home.paths.agent_dir.join("settings.json");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = ["a", "b"]
            .map(|name| {
                let paths = &home.paths;
                scope.spawn(move || {
                    let (settings, _) = Settings::open(paths);
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    for number in 0..WRITES {
                        let key = format!("{name}.{number}");
                        // Another process may starve this one; it is told, and tries again.
                        while let Err(error) = runtime.block_on(settings.update(&[(&key, json!(number))])) {
                            assert!(error.to_string().ends_with("Lock file is already being held"), "{error}");
                        }
                    }
                })
            })
            .into_iter()
            .collect();
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let text = fs::read_to_string(&path).unwrap();
                let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
                assert_eq!(value["kept"], "yes");
                reads += 1;
            }
            reads
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    let value: Value = serde_json::from_str(&home.global()).unwrap();
    for name in ["a", "b"] {
        let all = value[name].as_object().unwrap();
        assert_eq!(all.len(), WRITES);
        assert!((0..WRITES).all(|number| all[&number.to_string()] == json!(number)));
    }
    assert_eq!(home.names(), ["settings.json"]);
}
