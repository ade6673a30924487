//! Tests with real processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::*;
use crate::environment::Environment;

fn options(cwd: &Path) -> ShellOptions {
    ShellOptions { cwd: cwd.to_owned(), shell_path: None, command_prefix: None, environment: Environment::of_process() }
}

async fn start(children: &Arc<Children>, command: &str) -> ShellProcess {
    ShellProcess::spawn(children, command, &options(&std::env::temp_dir())).await.unwrap()
}

async fn read_all(shell: &mut ShellProcess) -> String {
    let mut output = Vec::new();
    while let Some(chunk) = shell.next_chunk().await {
        output.extend_from_slice(&chunk);
    }
    String::from_utf8(output).unwrap()
}

/// Reads until the line `ready` and returns the numbers printed before it.
async fn read_pids(shell: &mut ShellProcess) -> Vec<i32> {
    let mut output = String::new();
    while !output.contains("ready\n") {
        output.push_str(std::str::from_utf8(&shell.next_chunk().await.unwrap()).unwrap());
    }
    output.lines().filter_map(|line| line.parse().ok()).collect()
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|line| Some(!line.rsplit_once(") ")?.1.starts_with(['Z', 'X'])))
        .unwrap_or(false)
}

/// Waits for processes that got SIGKILL; the kernel takes its time.
fn assert_gone(pids: &[i32]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while pids.iter().any(|&pid| is_alive(pid)) {
        assert!(Instant::now() < deadline, "still alive: {:?}", pids.iter().filter(|&&pid| is_alive(pid)));
        std::thread::yield_now();
    }
}

/// Background jobs of all kinds, each printing its pid. The last two are orphans: their parents are
/// gone, and they left the group.
const MENAGERIE: &str = "
    sleep 1000 & echo $!
    nohup sleep 1000 >/dev/null 2>&1 & echo $!
    setsid sleep 1000 & echo $!
    (trap '' HUP INT TERM; sleep 1000 & echo $!)
    (setsid bash -c 'sleep 1000 & echo $!; sleep 1000 & echo $!')
    echo $$
    echo ready
";

#[tokio::test]
async fn a_kill_ends_every_descendant() {
    let children = Arc::new(Children::new());
    // Without tag and group, the first is found by its parent.
    let command = format!("env -i /usr/bin/setsid /bin/sleep 1000 & echo $!\n{MENAGERIE}\nwait");
    let mut shell = start(&children, &command).await;
    let pids = read_pids(&mut shell).await;
    assert_eq!(pids.len(), 8);
    assert!(pids.iter().all(|&pid| is_alive(pid)));

    shell.kill().await;
    assert!(pids.iter().all(|&pid| !is_alive(pid)), "a kill returns when all are gone");
    assert_eq!(shell.next_chunk().await, None);
    assert_eq!(shell.finish(), Exit { code: None });
    assert!(children.is_empty());
}

#[tokio::test]
async fn dropping_the_handle_ends_every_descendant() {
    let children = Arc::new(Children::new());
    let mut shell = start(&children, &format!("{MENAGERIE}\nwait")).await;
    let pids = read_pids(&mut shell).await;
    drop(shell);
    assert_gone(&pids);
    assert!(children.is_empty());
}

#[tokio::test]
async fn a_tree_that_keeps_forking_is_ended() {
    let children = Arc::new(Children::new());
    // Each generation leaves the group and outlives its parent by a moment only.
    let mut shell = start(
        &children,
        "relay() { echo $BASHPID; sleep 0.01; relay & }; export -f relay
         setsid bash -c relay & (relay &) ; echo ready; wait",
    )
    .await;
    read_pids(&mut shell).await;
    shell.kill().await;
    // A relay that is left would hold the pipe.
    while shell.next_chunk().await.is_some() {}
    assert!(shell.is_at_eof());
}

#[tokio::test]
async fn background_processes_live_on_until_the_server_ends() {
    let children = Arc::new(Children::new());
    let mut shell = start(&children, MENAGERIE).await;
    let pids = read_pids(&mut shell).await;
    let (shell_pid, jobs) = pids.split_last().unwrap();
    assert_eq!(read_all(&mut shell).await, "");
    assert_eq!(shell.finish(), Exit { code: Some(0) });
    assert!(!is_alive(*shell_pid));
    assert!(jobs.iter().all(|&pid| is_alive(pid)));
    assert_eq!(children.len(), 1);

    assert_eq!(Arc::clone(&children).shut_down().await, 0);
    assert!(jobs.iter().all(|&pid| !is_alive(pid)));
    assert!(children.is_empty());
    let refused = ShellProcess::spawn(&children, "true", &options(Path::new("/"))).await;
    assert!(refused.unwrap_err().to_string().ends_with(": the server is shutting down"));
}

#[tokio::test]
async fn a_kill_spares_other_commands() {
    let children = Arc::new(Children::new());
    let mut first = start(&children, "echo $$; echo ready; setsid sleep 1000").await;
    let mut second = start(&children, "echo $$; echo ready; exec sleep 1000").await;
    let first_pids = read_pids(&mut first).await;
    let second_pids = read_pids(&mut second).await;
    first.kill().await;
    assert_gone(&first_pids);
    assert!(is_alive(second_pids[0]));
    assert_eq!(children.len(), 2);
    drop(first);
    drop(second);
    assert_gone(&second_pids);
    assert!(children.is_empty());
}

#[tokio::test]
async fn groups_that_died_out_are_forgotten() {
    let children = Arc::new(Children::new());
    let mut shell = start(&children, "sleep 1000 & echo $!; echo ready").await;
    let pids = read_pids(&mut shell).await;
    while shell.next_chunk().await.is_some() {}
    let _ = shell.finish();
    assert_eq!(children.len(), 1);

    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pids[0]), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_gone(&pids);
    // A dead process keeps its group until its new parent has waited for it.
    let deadline = Instant::now() + Duration::from_secs(10);
    while Path::new(&format!("/proc/{}", pids[0])).exists() && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    let has_zombie = Path::new(&format!("/proc/{}", pids[0])).exists();
    let mut next = start(&children, "true").await;
    assert_eq!(read_all(&mut next).await, "");
    assert_eq!(children.len(), 1 + usize::from(has_zombie));
}

#[tokio::test]
async fn output_comes_in_order_and_exit_codes_too() {
    let children = Arc::new(Children::new());
    let mut shell = start(&children, "for i in 1 2 3; do echo out$i; echo err$i >&2; done; read x; exit 7").await;
    assert_eq!(read_all(&mut shell).await, "out1\nerr1\nout2\nerr2\nout3\nerr3\n");
    assert_eq!(shell.finish(), Exit { code: Some(7) });

    let mut shell = start(&children, "kill -9 $$").await;
    assert_eq!(read_all(&mut shell).await, "");
    assert_eq!(shell.finish(), Exit { code: None });
    assert!(children.is_empty());
}

#[tokio::test]
async fn a_background_writer_does_not_hold_up_the_end() {
    let children = Arc::new(Children::new());
    let mut shell = start(&children, "echo begin; (while :; do echo y; done) & exit 3").await;
    let began = Instant::now();
    let mut output = Vec::new();
    while let Some(chunk) = shell.next_chunk().await {
        output.extend_from_slice(&chunk);
    }
    assert!(output.starts_with(b"begin\n") || output.starts_with(b"y\n"));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(shell.finish(), Exit { code: Some(3) });
    children.kill_all();
}

#[tokio::test]
async fn output_before_the_exit_is_not_lost_to_a_slow_reader() {
    let children = Arc::new(Children::new());
    // 60,000 bytes fit into the pipe, so the shell is gone long before they are read.
    let mut shell = start(&children, "sleep 1000 & head -c 60000 /dev/zero | tr '\\0' x; kill -9 $$").await;
    let mut length = 0;
    while let Some(chunk) = shell.next_chunk().await {
        length += chunk.len();
        // Reading takes longer than the grace after the exit.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    assert_eq!(length, 60_000);
    let _ = shell.finish();
    children.kill_all();
}

#[tokio::test]
async fn the_shell_gets_prefix_folder_and_path() {
    let children = Arc::new(Children::new());
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().canonicalize().unwrap();
    let options = ShellOptions {
        command_prefix: Some("x=1".into()),
        environment: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into_iter().collect(),
        ..options(&cwd)
    };
    let mut shell = ShellProcess::spawn(&children, "echo $x; pwd; echo $PATH; echo $HOME", &options).await.unwrap();
    let own_folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let expected = format!(
        "1\n{}\n{}:/usr/bin:/bin\n{}\n",
        cwd.display(),
        own_folder.display(),
        std::env::var("HOME").unwrap_or_default()
    );
    assert_eq!(read_all(&mut shell).await, expected);
}

#[tokio::test]
async fn what_cannot_start_is_told() {
    let children = Arc::new(Children::new());
    let missing = options(Path::new("/no/such/folder"));
    assert_eq!(
        ShellProcess::spawn(&children, "true", &missing).await.unwrap_err().to_string(),
        "Working directory does not exist: /no/such/folder\nCannot execute bash commands."
    );
    let no_shell = ShellOptions { shell_path: Some("/no/shell".into()), ..options(Path::new("/")) };
    assert_eq!(
        ShellProcess::spawn(&children, "true", &no_shell).await.unwrap_err().to_string(),
        "Shell not found: /no/shell (setting shellPath)"
    );
    let not_executable = ShellOptions { shell_path: Some("/etc/passwd".into()), ..options(Path::new("/")) };
    let error = ShellProcess::spawn(&children, "true", &not_executable).await.unwrap_err();
    assert!(error.to_string().starts_with("Could not start /etc/passwd: Permission denied"), "{error}");
    assert!(ShellProcess::spawn(&children, "a\0b", &options(Path::new("/"))).await.is_err());
    assert!(children.is_empty());
}

#[test]
fn the_default_shell_is_bash_wherever_it_is() {
    let environment: Environment = [("PATH".to_owned(), "/usr/bin".to_owned())].into_iter().collect();
    let expected = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/usr/bin/bash" };
    assert_eq!(find_shell(None, &environment).unwrap(), PathBuf::from(expected));
}

#[tokio::test]
async fn other_programs_are_children_too() {
    let children = Arc::new(Children::new());
    let (mut child, mut tree) = children.spawn(Command::new("sleep").arg("1000")).unwrap();
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    assert_eq!(tree.kill().await, 0);
    assert!(!is_alive(pid));
    assert_eq!(child.wait().await.unwrap().code(), None);
    tree.release();
    assert!(children.is_empty());
}

#[tokio::test]
async fn tags_of_outer_servers_are_handed_down() {
    let outer = Arc::new(Children::new());
    let mut shell = start(&outer, &format!("echo ${TAG_VARIABLE}")).await;
    let outer_tag = read_all(&mut shell).await.trim().to_owned();
    let _ = shell.finish();

    // A server below the outer one leaves an orphan behind, under tags of its own.
    let inner = Arc::new(Children::below(Some(outer_tag.clone())));
    let mut shell = start(&inner, &format!("(setsid sleep 1000 & echo $!); echo ${TAG_VARIABLE}; echo ready")).await;
    let mut output = String::new();
    while !output.contains("ready\n") {
        output.push_str(std::str::from_utf8(&shell.next_chunk().await.unwrap()).unwrap());
    }
    let (pid, tags) = output.split_once('\n').unwrap();
    let pid: i32 = pid.parse().unwrap();
    assert!(tags.starts_with(&format!("{outer_tag}:")), "{tags}");
    assert!(is_alive(pid));

    assert_eq!(outer.kill_all(), 0);
    assert!(!is_alive(pid));
    drop(shell);
}
