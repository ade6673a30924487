//! Finding the processes of a target in `/proc`.

use std::collections::{HashMap, HashSet};
use std::fs;

use nix::unistd::getpgrp;

use super::{Leader, TAG_VARIABLE, Tag, Target};

/// Listings of `/proc` in one look, while new processes keep coming.
const MAX_LISTINGS: usize = 8;

/// One process as `/proc/<pid>/stat` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    id: Leader,
    parent: i32,
    group: i32,
    is_dead: bool,
    has_tag: bool,
}

/// Start of a process in clock ticks since boot, 0 if there is none.
pub(super) fn start_time(pid: i32) -> u64 {
    read_process(pid).map_or(0, |process| process.id.start)
}

/// What belongs to a target.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The living processes.
    pub(super) processes: HashSet<Leader>,
    /// Process groups without a stranger in them.
    pub(super) groups: HashSet<i32>,
}

/// Looks for the processes of a target.
pub(super) fn find(target: &Target) -> Found {
    let processes = snapshot(target);
    let since = target.since.start;
    let groups = leader_groups(target, &processes);

    let mut chosen: HashSet<i32> = processes
        .iter()
        .filter(|process| process.id.start >= since)
        .filter(|process| process.has_tag || groups.contains(&process.group) || target.leaders.contains(&process.id))
        .map(|process| process.id.pid)
        .collect();

    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in &processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut open: Vec<i32> = chosen.iter().copied().collect();
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if child.id.start >= since && chosen.insert(child.id.pid) {
                open.push(child.id.pid);
            }
        }
    }
    let (ours, strangers): (Vec<&Process>, Vec<&Process>) =
        processes.iter().partition(|process| chosen.contains(&process.id.pid));
    let mut groups: HashSet<i32> = ours.iter().map(|process| process.group).collect();
    for stranger in strangers {
        groups.remove(&stranger.group);
    }
    // 0 and 1 are no groups to be signalled, and we ourselves are not among the processes.
    groups.retain(|&group| group > 1 && group != getpgrp().as_raw());
    let processes = ours.iter().filter(|process| !process.is_dead).map(|process| process.id).collect();
    Found { processes, groups }
}

/// All processes but this one and init.
fn snapshot(target: &Target) -> Vec<Process> {
    let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
    let mut seen = HashSet::from([0, 1, own_pid]);
    let mut processes = Vec::new();
    // A process may end before it is read, and its child may have come after the listing. The next
    // listing has it, and the few that are new are read at once.
    for _ in 0..MAX_LISTINGS {
        let new: Vec<i32> = all_pids().filter(|&pid| seen.insert(pid)).collect();
        if new.is_empty() {
            break;
        }
        processes.extend(new.into_iter().filter_map(read_process).map(|mut process| {
            process.has_tag = process.id.start >= target.since.start && has_tag(process.id.pid, &target.tag);
            process
        }));
    }
    processes
}

/// Process groups of the leaders, without those whose number now belongs to someone else: a number
/// is given away again only when leader and group are gone.
fn leader_groups(target: &Target, processes: &[Process]) -> HashSet<i32> {
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
    // The name is cut after 15 bytes, perhaps within a character.
    parse_stat(pid, &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
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
    Some(Process { id: Leader { pid, start }, parent, group, is_dead, has_tag: false })
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
        let expected =
            Process { id: Leader { pid: 42, start: 98765 }, parent: 7, group: 42, is_dead: false, has_tag: false };
        assert_eq!(process, expected);
        assert_eq!(parse_stat(42, "42 (cut"), None);
    }

    #[test]
    fn a_reused_number_is_no_longer_a_group_of_ours() {
        let stranger =
            Process { id: Leader { pid: 9, start: 50 }, parent: 1, group: 9, is_dead: false, has_tag: false };
        let target = |start| Target {
            leaders: vec![Leader { pid: 9, start }],
            tag: Tag::Exact("none".into()),
            since: Leader { pid: 9, start },
        };
        assert!(leader_groups(&target(40), &[stranger]).is_empty());
        assert_eq!(leader_groups(&target(50), &[stranger]), HashSet::from([9]));
        assert_eq!(leader_groups(&target(40), &[]), HashSet::from([9]));
    }

    #[test]
    fn tags_are_compared_whole() {
        assert!(Tag::Exact("b.1".into()).is_in(b"a.1:b.1"));
        assert!(!Tag::Exact("b.1".into()).is_in(b"a.1:b.12"));
        assert!(Tag::Prefix("b.".into()).is_in(b"a.1:b.12"));
        assert!(!Tag::Prefix("b.".into()).is_in(b"ab.1"));
    }
}
