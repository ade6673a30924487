//! Finding and killing all processes that descend from a child.
//!
//! Three marks lead to a descendant: its process group, its chain of parents, and a tag in its
//! environment. The last one also finds daemons, whose parent is gone and whose group is their own.
//! Out of reach are only daemons that cleared their environment as well. Off Linux only the group is
//! known.

// Start times and tags are told apart by means of /proc only.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

use std::time::{Duration, Instant};

use nix::errno::Errno;
#[cfg(target_os = "linux")]
use nix::sys::signal::kill;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

#[cfg(target_os = "linux")]
use self::linux::{Found, find, start_time};

/// Environment variable that marks the descendants of a child: tags joined by `:`, outermost first.
pub const TAG_VARIABLE: &str = "DREB_PROCESS_TAG";

/// Rounds of stopping processes before they are killed. Each round catches what was forked in the
/// one before; a second round is rarely needed.
#[cfg(target_os = "linux")]
const MAX_STOP_ROUNDS: usize = 32;

/// Pauses between two looks at processes that were killed and are not gone yet: the first and the
/// longest, doubling in between.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A child that leads a process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Leader {
    pub(super) pid: i32,
    /// Start in clock ticks since boot; tells the process from a later one with the same pid.
    start: u64,
}

impl Leader {
    /// The leader with this pid. It must not have been waited for yet.
    pub(super) fn new(pid: i32) -> Self {
        Self { pid, start: start_time(pid) }
    }

    /// Whether its process group still has members.
    pub(super) fn has_group(self) -> bool {
        killpg(Pid::from_raw(self.pid), None) != Err(Errno::ESRCH)
    }
}

/// Which tags in an environment count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tag {
    /// This one.
    Exact(String),
    /// All that begin so.
    Prefix(String),
}

#[cfg(target_os = "linux")]
impl Tag {
    /// Whether a value of [`TAG_VARIABLE`] has such a tag.
    fn is_in(&self, value: &[u8]) -> bool {
        value.split(|&byte| byte == b':').any(|tag| match self {
            Self::Exact(text) => tag == text.as_bytes(),
            Self::Prefix(text) => tag.starts_with(text.as_bytes()),
        })
    }
}

/// The processes to end.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) leaders: Vec<Leader>,
    pub(super) tag: Tag,
    /// A process that none of them is older than.
    pub(super) since: Leader,
}

impl Target {
    /// Kills all processes of the target and waits until they are gone, at most for `patience`.
    /// Returns how many are left: those that may not be signalled, or that hang in the kernel.
    ///
    /// Blocks: it reads `/proc`, and sleeps unless `patience` is zero.
    pub(super) fn kill(&self, patience: Duration) -> usize {
        let deadline = Instant::now() + patience;
        let mut pause = POLL_INTERVALS.0;
        loop {
            let left = self.kill_once();
            if left == 0 || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_INTERVALS.1);
        }
    }

    /// Kills the process groups only.
    fn kill_groups(leaders: impl IntoIterator<Item = Leader>) -> usize {
        leaders
            .into_iter()
            // 0 would mean our own group.
            .filter(|leader| leader.pid > 0)
            .filter(|leader| killpg(Pid::from_raw(leader.pid), Signal::SIGKILL).is_ok())
            .count()
    }

    /// Sends the signals; returns how many processes had to get one.
    #[cfg(target_os = "linux")]
    fn kill_once(&self) -> usize {
        // A process that is killed takes along the link to its children, and one that runs may fork
        // behind our back. So all are stopped first, until no new one turns up. A signal to a group
        // reaches all its members at once, so that those cannot slip through by forking.
        let mut stopped = Found::default();
        for _ in 0..MAX_STOP_ROUNDS {
            let found = find(self);
            let mut is_new = false;
            for group in found.groups {
                if stopped.groups.insert(group) {
                    is_new = true;
                    // EPERM and ESRCH alike mean that nothing can be done here.
                    let _ = killpg(Pid::from_raw(group), Signal::SIGSTOP);
                }
            }
            for process in found.processes {
                if stopped.processes.insert(process) {
                    is_new = true;
                    let _ = kill(Pid::from_raw(process.pid), Signal::SIGSTOP);
                }
            }
            if !is_new {
                break;
            }
        }
        for &group in &stopped.groups {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        for process in &stopped.processes {
            if start_time(process.pid) == process.start {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
        // Without /proc there is no start time, and the group is all that is known.
        let unseen = self.leaders.iter().copied().filter(|leader| leader.start == 0);
        stopped.processes.len() + Self::kill_groups(unseen)
    }

    #[cfg(not(target_os = "linux"))]
    fn kill_once(&self) -> usize {
        Self::kill_groups(self.leaders.iter().copied())
    }
}

#[cfg(not(target_os = "linux"))]
fn start_time(_: i32) -> u64 {
    0
}

#[cfg(target_os = "linux")]
mod linux;
