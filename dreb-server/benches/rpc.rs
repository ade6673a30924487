//! What the server costs, beside the cost of the bare minimum: `cargo bench -p dreb-server`.
//!
//! Linux only: CPU time and memory come from `/proc`. Numbers are printed, never asserted.
//!
//! * spawn to first answer, beside spawn to exit of `true`;
//! * memory when idle;
//! * CPU, bytes and memory of an answer of 10,000 deltas of 5 bytes, in full and delta detail, beside
//!   a process that writes the same bytes from memory to the same kind of pipe;
//! * memory while nobody reads such an answer.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "a program for people, not part of the server")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const DREB: &str = env!("CARGO_BIN_EXE_dreb");
/// First argument with which this program is the copy it compares with.
const COPY: &str = "--copy-bytes";
const DELTAS: usize = 10_000;
const STARTS: usize = 30;
/// Linux reports CPU time in these units on every common machine.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == COPY) {
        return copy(args[2].parse().expect("a number of bytes"));
    }
    let home = tempfile::tempdir().expect("a temporary folder");
    write_script(home.path());
    start(home.path());
    for detail in ["full", "delta"] {
        stream(home.path(), detail);
    }
    nobody_reads(home.path());
}

fn write_script(home: &Path) {
    let text = "word ".repeat(DELTAS);
    let script = format!(r#"{{"chunk":5,"turns":["{text}"]}}"#);
    std::fs::write(home.join("script.json"), script).expect("the script can be written");
}

struct Server {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    fn spawn(home: &Path, detail: &str) -> Self {
        let mut child = Command::new(DREB)
            .args(["--mode", "rpc", "--no-session", "--event-detail", detail])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home)
            .env("DREB_SCRIPT", home.join("script.json"))
            .current_dir(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::with_capacity(1 << 20, child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("open"), "{line}").expect("the server reads");
    }

    /// Reads lines up to one that holds `mark`; returns the bytes read.
    fn read_until(&mut self, mark: &str) -> usize {
        let mut line = Vec::new();
        let mut bytes = 0;
        loop {
            line.clear();
            let read = self.stdout.read_until(b'\n', &mut line).expect("the server writes");
            assert!(read > 0, "the server ended");
            bytes += read;
            // The mark stands in short lines; looking for it in long ones would cost more than reading.
            if line.len() < 4096 && String::from_utf8_lossy(&line).contains(mark) {
                return bytes;
            }
        }
    }

    fn end(mut self) {
        drop(self.stdin.take());
        let mut rest = Vec::new();
        let _ = self.stdout.read_to_end(&mut rest);
        let _ = self.child.wait();
    }
}

/// User and system CPU time of a process.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let behind_name = stat.rsplit_once(')').expect("a name").1;
    let fields: Vec<&str> = behind_name.split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    Duration::from_secs_f64((ticks(11) + ticks(12)) / TICKS_PER_SECOND)
}

/// A memory figure of a process in MiB.
fn memory(pid: u32, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with(name)).expect("the figure");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("a number") / 1024.0
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn start(home: &Path) {
    let exec = (0..STARTS).map(|_| {
        let began = Instant::now();
        Command::new("true").status().expect("true runs");
        began.elapsed()
    });
    let exec = median(exec.collect());
    let answer = (0..STARTS).map(|_| {
        let began = Instant::now();
        let mut server = Server::spawn(home, "full");
        server.send(r#"{"type":"get_state"}"#);
        server.read_until("get_state");
        let elapsed = began.elapsed();
        server.end();
        elapsed
    });
    let answer = median(answer.collect());
    println!(
        "start   first answer {answer:.2?}, exec of `true` {exec:.2?}: {:.1}x",
        answer.as_secs_f64() / exec.as_secs_f64()
    );
    let mut server = Server::spawn(home, "full");
    server.send(r#"{"type":"get_state"}"#);
    server.read_until("get_state");
    std::thread::sleep(Duration::from_secs(1));
    println!("idle    RSS {:.1} MiB", memory(server.child.id(), "VmRSS"));
    server.end();
}

fn stream(home: &Path, detail: &str) {
    let mut server = Server::spawn(home, detail);
    server.send(r#"{"type":"get_state"}"#);
    server.read_until("get_state");
    let pid = server.child.id();
    let before = cpu(pid);
    let began = Instant::now();
    server.send(r#"{"type":"prompt","message":"go"}"#);
    let bytes = server.read_until(r#""agent_settled""#);
    let (wall, spent, peak) = (began.elapsed(), cpu(pid) - before, memory(pid, "VmHWM"));
    server.end();
    let copied = copy_cost(bytes);
    println!(
        "stream  {detail:5} {DELTAS} deltas: CPU {spent:.0?}, wall {wall:.0?}, {:.1} MB, peak RSS {peak:.1} MiB; \
         writing the same bytes: CPU {copied:.0?}: {:.1}x",
        bytes as f64 / 1e6,
        spent.as_secs_f64() / copied.as_secs_f64().max(0.01),
    );
}

/// CPU time of a process that writes so many bytes to a pipe.
fn copy_cost(bytes: usize) -> Duration {
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args([COPY, &bytes.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the copy starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut buffer = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        left -= stdout.read(&mut buffer).expect("the copy writes");
    }
    // It waits for the end of its input, so that its figures can still be read.
    let spent = cpu(child.id());
    drop(child.stdin.take());
    let _ = child.wait();
    spent
}

fn copy(bytes: usize) {
    let mut stdout = std::io::stdout().lock();
    let buffer = vec![b'x'; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(buffer.len());
        stdout.write_all(&buffer[..piece]).expect("a reader");
        left -= piece;
    }
    stdout.flush().expect("a reader");
    let _ = std::io::stdin().read(&mut [0]);
}

fn nobody_reads(home: &Path) {
    let mut server = Server::spawn(home, "full");
    server.send(r#"{"type":"get_state"}"#);
    server.read_until("get_state");
    let pid = server.child.id();
    let idle = memory(pid, "VmRSS");
    server.send(r#"{"type":"prompt","message":"go"}"#);
    std::thread::sleep(Duration::from_secs(3));
    let (unread, spent) = (memory(pid, "VmRSS"), cpu(pid));
    let bytes = server.read_until(r#""agent_settled""#);
    println!(
        "unread  RSS {unread:.1} MiB after 3 s without a reader (idle {idle:.1}), CPU {spent:.0?}; then {:.1} MB read",
        bytes as f64 / 1e6
    );
    server.end();
}
