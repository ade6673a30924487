//! Processes, seen through `/proc`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sync::poll_until;

/// A process that will not be mistaken for a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// The process it is a child of.
    pub parent: i32,
    /// Its command line, arguments joined by spaces.
    pub command: String,
    /// When it started, in clock ticks since boot.
    started: u64,
}

impl Process {
    /// The living process with this number; `None` if there is none or it only waits to be reaped.
    #[must_use]
    pub fn find(pid: i32) -> Option<Self> {
        if matches!(stat(pid)?.field(0), "Z" | "X") {
            return None;
        }
        Self::find_any(pid)
    }

    /// Like [`find`](Self::find), and takes one that has ended and waits to be reaped.
    #[must_use]
    pub fn find_any(pid: i32) -> Option<Self> {
        let stat = stat(pid)?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
        Some(Self { pid, parent: stat.number(1)?, command, started: stat.number(19)? })
    }

    /// Whether it still lives.
    #[must_use]
    pub fn alive(&self) -> bool {
        Self::find(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Waits for its end for at most `limit`.
    ///
    /// # Panics
    ///
    /// It still lives then.
    pub async fn gone_within(&self, limit: Duration) {
        poll_until(&format!("the end of {self:?}"), limit, || (!self.alive()).then_some(())).await;
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if self.alive() {
            // It may have ended in between.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Resident memory in bytes, 0 if it has ended.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
        kib * 1024
    }

    /// Processor time it has used, zero if it has ended.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let ticks = stat(self.pid).and_then(|stat| Some(stat.number::<u64>(11)? + stat.number::<u64>(12)?));
        // The kernel tells user space 100 ticks a second on every architecture in use.
        Duration::from_millis(ticks.unwrap_or(0) * 10)
    }

    /// The executable's path, `None` if it has ended.
    #[must_use]
    pub fn executable(&self) -> Option<std::path::PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }
}

struct Stat(String);

impl Stat {
    /// A field after the process's name, which may contain anything.
    fn field(&self, index: usize) -> &str {
        self.0.split(' ').nth(index).unwrap_or_default()
    }

    fn number<T: std::str::FromStr>(&self, index: usize) -> Option<T> {
        self.field(index).parse().ok()
    }
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(Stat(rest.to_owned()))
}

/// All living processes.
#[must_use]
pub fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Process::find).collect()
}

/// The living descendants of a process, without itself.
#[must_use]
pub fn descendants(pid: i32) -> Vec<Process> {
    let mut rest = all();
    let mut parents = vec![pid];
    let mut found = Vec::new();
    while let Some(parent) = parents.pop() {
        let (children, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|process| process.parent == parent);
        parents.extend(children.iter().map(|child| child.pid));
        found.extend(children);
        rest = others;
    }
    found
}

/// The living processes whose `HOME` is this folder, however they are related. Tests of one home
/// find the processes of that home, also those whose parents have gone.
#[must_use]
pub fn living_in(home: &Path) -> Vec<Process> {
    let mark = format!("HOME={}", home.display());
    let lives_here = |process: &Process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all().into_iter().filter(lives_here).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn children_are_found_and_seen_to_end() {
        let home = tempfile::tempdir().unwrap();
        let mut child = tokio::process::Command::new("sh")
            .args(["-c", "sleep 1000 & wait"])
            .env("HOME", home.path())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let shell = Process::find(child.id().unwrap().cast_signed()).unwrap();
        let sleep = poll_until("the sleep", crate::DEADLINE, || {
            descendants(shell.pid).into_iter().find(|process| process.command == "sleep 1000")
        })
        .await;
        assert_eq!(sleep.parent, shell.pid);
        assert!(shell.memory() > 0);
        let mut here: Vec<_> = living_in(home.path()).iter().map(|process| process.pid).collect();
        here.sort_unstable();
        let mut both = vec![shell.pid, sleep.pid];
        both.sort_unstable();
        assert_eq!(here, both);
        sleep.signal(Signal::SIGKILL);
        sleep.gone_within(crate::DEADLINE).await;
        child.wait().await.unwrap();
        assert!(!shell.alive());
        assert_eq!(living_in(home.path()), []);
    }
}
