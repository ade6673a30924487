//! What a server leaves behind when it cannot clean up itself.
//!
//! A server kills its children when it ends, however deep they hide. One that was killed could not,
//! and its children lead process groups of their own. They are found by a tag in their environment,
//! the same variable by which the server marks them: it hands down what it was given.
//!
//! Off Linux there is no way to find them.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// Tags of the processes a process descends from, joined by `:`, the outermost first.
pub(crate) const TAG_VARIABLE: &str = "DREB_PROCESS_TAG";

/// The mark of one server and all that descends from it.
#[derive(Debug, Clone)]
pub(crate) struct Tag(String);

impl Tag {
    /// A tag nothing else has.
    pub(crate) fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static TAGS: AtomicU64 = AtomicU64::new(1);
        let count = TAGS.fetch_add(1, Ordering::Relaxed);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // The time tells it from an earlier process with the same id.
        Self(format!("client-{}-{count}-{}", std::process::id(), now.as_nanos()))
    }

    /// The variable's value for a process that would have `inherited` without this tag.
    pub(crate) fn below(&self, inherited: Option<&OsStr>) -> OsString {
        let mut value = inherited.unwrap_or_default().to_owned();
        if !value.is_empty() {
            value.push(":");
        }
        value.push(&self.0);
        value
    }

    /// Kills every process with this tag and waits, at most for `patience`, until none is left.
    ///
    /// Blocks: it reads `/proc`.
    #[cfg(target_os = "linux")]
    pub(crate) fn kill_all(&self, patience: Duration) {
        use nix::sys::signal::{Signal, kill};
        let end = std::time::Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            let found = self.find();
            for pid in &found {
                // Seen a moment ago, so its number has hardly been given away; gone is as good.
                let _ = kill(*pid, Signal::SIGKILL);
            }
            // More than once, for a process can fork between the look and the signal.
            if found.is_empty() || std::time::Instant::now() >= end {
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn kill_all(&self, _: Duration) {}

    /// The living processes with this tag. Those of other users cannot be seen.
    #[cfg(target_os = "linux")]
    fn find(&self) -> Vec<nix::unistd::Pid> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let tagged = pids.filter(|pid| {
            // Empty once the process has ended and only waits to be reaped.
            std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| self.is_in(&environment))
        });
        tagged.map(nix::unistd::Pid::from_raw).collect()
    }

    #[cfg(target_os = "linux")]
    fn is_in(&self, environment: &[u8]) -> bool {
        environment.split(|byte| *byte == 0).any(|variable| {
            let tags = variable.strip_prefix(TAG_VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            tags.is_some_and(|tags| tags.split(|byte| *byte == b':').any(|tag| tag == self.0.as_bytes()))
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_tag_is_told_from_its_neighbours() {
        let (tag, other) = (Tag("client-1-1-5".into()), Tag("client-1-1-55".into()));
        let value = other.below(Some(&tag.below(Some("outer".as_ref()))));
        assert_eq!(value, "outer:client-1-1-5:client-1-1-55");
        assert_eq!(tag.below(None), "client-1-1-5");
        assert_eq!(tag.below(Some("".as_ref())), "client-1-1-5");
        assert!(tag.is_in(b"A=b\0DREB_PROCESS_TAG=outer:client-1-1-5:x\0"));
        for stranger in [&b"DREB_PROCESS_TAG=client-1-1-55\0"[..], b"XDREB_PROCESS_TAG=client-1-1-5\0", b"", b"\0"] {
            assert!(!tag.is_in(stranger));
        }
        assert_ne!(Tag::new().0, Tag::new().0);
    }

    #[test]
    fn a_process_that_left_its_group_and_its_parents_is_found() {
        let (tag, other) = (Tag::new(), Tag::new());
        let start = |tag: &Tag| {
            let mut command = Command::new("sh");
            command.args(["-c", "setsid sleep 1000 >/dev/null & echo $!"]).env(TAG_VARIABLE, tag.below(None));
            command.stderr(Stdio::null()).output().unwrap()
        };
        start(&tag);
        start(&other);
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while tag.find().len() != 1 || other.find().len() != 1 {
            assert!(std::time::Instant::now() < end, "the processes did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        tag.kill_all(Duration::from_secs(20));
        assert_eq!((tag.find().len(), other.find().len()), (0, 1));
        other.kill_all(Duration::from_secs(20));
        assert_eq!(other.find(), []);
    }
}
