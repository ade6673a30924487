//! Finding and killing all processes that descend from a child.
//!
//! Three marks lead to a descendant: its process group, its chain of parents, and a tag in its
//! environment. The last one also finds daemons, whose parent is gone and whose group is their own.
//! Out of reach are only daemons that cleared their environment as well. Off Linux only the group is
//! known.

use std::time::{Duration, Instant};

use nix::errno::Errno;
#[cfg(target_os = "linux")]
use nix::sys::signal::kill;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

#[cfg(target_os = "linux")]
use self::linux::{members, start_time};

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
        // behind our back. So all are stopped first, until no new one turns up.
        let mut stopped = std::collections::HashSet::new();
        for _ in 0..MAX_STOP_ROUNDS {
            let mut found_new = false;
            for process in members(self) {
                if stopped.insert(process) {
                    found_new = true;
                    // EPERM and ESRCH alike mean that nothing can be done here.
                    let _ = kill(Pid::from_raw(process.pid), Signal::SIGSTOP);
                }
            }
            if !found_new {
                break;
            }
        }
        for process in &stopped {
            if start_time(process.pid) == process.start {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
        // Without /proc there is no start time, and the group is all that is known.
        let unseen = self.leaders.iter().copied().filter(|leader| leader.start == 0);
        stopped.len() + Self::kill_groups(unseen)
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
mod linux {
    use std::collections::{HashMap, HashSet};
    use std::fs;

    use super::{Leader, TAG_VARIABLE, Tag, Target};

    /// One process as `/proc/<pid>/stat` shows it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Process {
        id: Leader,
        parent: i32,
        group: i32,
        is_dead: bool,
    }

    /// Start of a process in clock ticks since boot, 0 if there is none.
    pub(super) fn start_time(pid: i32) -> u64 {
        read_process(pid).map_or(0, |process| process.id.start)
    }

    /// The living processes of a target, found in one pass over `/proc`.
    pub(super) fn members(target: &Target) -> Vec<Leader> {
        let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
        let processes: Vec<Process> =
            all_pids().filter(|&pid| pid > 1 && pid != own_pid).filter_map(read_process).collect();
        let since = target.since.start;
        let groups = living_groups(target, &processes);

        let mut chosen: HashSet<i32> = processes
            .iter()
            .filter(|process| process.id.start >= since)
            .filter(|process| {
                target.leaders.contains(&process.id)
                    || groups.contains(&process.group)
                    || has_tag(process.id.pid, &target.tag)
            })
            .map(|process| process.id.pid)
            .collect();

        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        for process in &processes {
            children.entry(process.parent).or_default().push(*process);
        }
        let mut open: Vec<i32> = chosen.iter().copied().collect();
        while let Some(pid) = open.pop() {
            for child in children.get(&pid).into_iter().flatten() {
                if child.id.start >= since && chosen.insert(child.id.pid) {
                    open.push(child.id.pid);
                }
            }
        }
        processes
            .iter()
            .filter(|process| !process.is_dead && chosen.contains(&process.id.pid))
            .map(|process| process.id)
            .collect()
    }

    /// Process groups of the leaders, without those whose number now belongs to someone else: a
    /// number is given away again only when leader and group are gone.
    fn living_groups(target: &Target, processes: &[Process]) -> HashSet<i32> {
        let starts: HashMap<i32, u64> = processes.iter().map(|process| (process.id.pid, process.id.start)).collect();
        target
            .leaders
            .iter()
            .filter(|leader| starts.get(&leader.pid).is_none_or(|&start| start == leader.start))
            .map(|leader| leader.pid)
            .collect()
    }

    fn all_pids() -> impl Iterator<Item = i32> {
        fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    fn read_process(pid: i32) -> Option<Process> {
        parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads a `stat` line. The name, in parentheses, may hold spaces and parentheses itself.
    fn parse_stat(pid: i32, line: &str) -> Option<Process> {
        let (_, rest) = line.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        // Field 22 of the line, counted from 1; the three above are 3, 4 and 5.
        let start = fields.nth(16)?.parse().ok()?;
        let is_dead = matches!(state, "Z" | "X" | "x");
        Some(Process { id: Leader { pid, start }, parent, group, is_dead })
    }

    /// Whether the environment a process was started with has the tag. Not readable means no.
    fn has_tag(pid: i32, tag: &Tag) -> bool {
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        environment
            .split(|&byte| byte == 0)
            .filter_map(|variable| variable.strip_prefix(TAG_VARIABLE.as_bytes())?.strip_prefix(b"="))
            .any(|value| tag.is_in(value))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_stat_line_is_read_past_an_odd_name() {
            let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
            let process = parse_stat(42, line).unwrap();
            let expected = Process { id: Leader { pid: 42, start: 98765 }, parent: 7, group: 42, is_dead: false };
            assert_eq!(process, expected);
            assert_eq!(parse_stat(42, "42 (cut"), None);
        }

        #[test]
        fn a_reused_number_is_no_longer_a_group_of_ours() {
            let stranger = Process { id: Leader { pid: 9, start: 50 }, parent: 1, group: 9, is_dead: false };
            let target = |start| Target {
                leaders: vec![Leader { pid: 9, start }],
                tag: Tag::Exact("none".into()),
                since: Leader { pid: 9, start },
            };
            assert!(living_groups(&target(40), &[stranger]).is_empty());
            assert_eq!(living_groups(&target(50), &[stranger]), HashSet::from([9]));
            assert_eq!(living_groups(&target(40), &[]), HashSet::from([9]));
        }

        #[test]
        fn tags_are_compared_whole() {
            assert!(Tag::Exact("b.1".into()).is_in(b"a.1:b.1"));
            assert!(!Tag::Exact("b.1".into()).is_in(b"a.1:b.12"));
            assert!(Tag::Prefix("b.".into()).is_in(b"a.1:b.12"));
            assert!(!Tag::Prefix("b.".into()).is_in(b"ab.1"));
        }
    }
}
