//! Names of session folders and files, and the time stamps in them.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};

/// Unix time in milliseconds, now.
#[must_use]
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(0))
}

/// `2026-02-03T10:15:30.123Z` for a Unix time in milliseconds.
#[must_use]
pub fn iso_timestamp(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(DateTime::<Utc>::from_timestamp_millis)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The Unix time in milliseconds of an ISO time stamp, `None` if it is none.
#[must_use]
pub fn timestamp_ms(text: &str) -> Option<u64> {
    let time = DateTime::parse_from_rfc3339(text).ok()?;
    u64::try_from(time.timestamp_millis()).ok()
}

/// Name of the folder that holds the sessions of a working directory, for example `--srv-app--`.
///
/// Different directories may share a name; the real one stands in each file's header.
#[must_use]
pub fn directory_name(cwd: &Path) -> String {
    let cwd = cwd.to_string_lossy();
    let relative = cwd.strip_prefix(['/', '\\']).unwrap_or(&cwd);
    format!("--{}--", relative.replace(['/', '\\', ':'], "-"))
}

/// The folder that holds the sessions of a working directory.
#[must_use]
pub fn directory(agent_dir: &Path, cwd: &Path) -> PathBuf {
    agent_dir.join("sessions").join(directory_name(cwd))
}

/// Name of a session file, for example `2026-02-03T10-15-30-123Z_0b9a6a1e-….jsonl`.
#[must_use]
pub fn file_name(timestamp: &str, session_id: &str) -> String {
    format!("{}_{session_id}.jsonl", timestamp.replace([':', '.'], "-"))
}

/// Where a session lives until its first answer is stored: `.pending` after the name.
#[must_use]
pub fn pending_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".pending");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_iso_with_milliseconds() {
        assert_eq!(iso_timestamp(1_770_113_730_123), "2026-02-03T10:15:30.123Z");
        assert_eq!(iso_timestamp(1_770_113_730_000), "2026-02-03T10:15:30.000Z");
        assert_eq!(timestamp_ms("2026-02-03T10:15:30.123Z"), Some(1_770_113_730_123));
        assert_eq!(timestamp_ms("2026-02-03T11:15:30.123+01:00"), Some(1_770_113_730_123));
        assert_eq!(timestamp_ms("yesterday"), None);
        assert_eq!(timestamp_ms("1969-12-31T23:59:59.000Z"), None);
    }

    #[test]
    fn folders_are_named_after_the_working_directory() {
        for (cwd, name) in [
            ("/srv/app one", "--srv-app one--"),
            ("/", "----"),
            ("C:\\work\\x", "--C--work-x--"),
            ("//host/share", "---host-share--"),
            ("rel/x", "--rel-x--"),
        ] {
            assert_eq!(directory_name(Path::new(cwd)), name);
        }
        assert_eq!(directory(Path::new("/h/agent"), Path::new("/srv/app")), Path::new("/h/agent/sessions/--srv-app--"));
    }

    #[test]
    fn files_are_named_after_time_and_id() {
        let name = file_name("2026-02-03T10:15:30.123Z", "0b9a6a1e-5d0f-4d3e-9a55-3c1f0f7c2a11");
        assert_eq!(name, "2026-02-03T10-15-30-123Z_0b9a6a1e-5d0f-4d3e-9a55-3c1f0f7c2a11.jsonl");
        assert_eq!(pending_path(Path::new("/s/a.jsonl")), Path::new("/s/a.jsonl.pending"));
    }
}
