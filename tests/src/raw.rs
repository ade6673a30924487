//! The real server, spoken to in raw JSON lines.
//!
//! Every line it writes is checked against the schema of the protocol. Lines are read only when a
//! test asks for one, so a test that does not read is a client that does not read.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use jsonschema::Validator;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::home::Home;
use crate::process::{self, Process};
use crate::sync::DEADLINE;

/// How long a server may live in a test, whatever it does.
pub const LIFETIME: Duration = Duration::from_secs(300);

/// A server about to be started.
#[derive(Debug)]
pub struct Launch<'a> {
    home: &'a Home,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    user: Option<u32>,
    check: Check,
}

/// Which lines of the server are checked against the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    All,
    /// `message_update`s, which repeat the whole message, only now and then.
    FewUpdates,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(home: &'a Home) -> Self {
        Self {
            home,
            program: crate::binary::dreb().to_owned(),
            arguments: vec!["--mode".into(), "rpc".into()],
            environment: home.environment(),
            cwd: home.cwd(),
            user: None,
            check: Check::All,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Uses this model, for example `fake-openai/fake-gpt`, instead of `fake/fake-claude`.
    #[must_use]
    pub fn model(self, model: &str) -> Self {
        self.args(["--model", model])
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        let name = name.into();
        self.environment.retain(|(other, _)| *other != name);
        self.environment.push((name, value.into()));
        self
    }

    /// Starts it in another folder than the project.
    #[must_use]
    pub fn cwd(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cwd = folder.into();
        self
    }

    /// Runs this file instead of the binary under test.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// Runs it as this user and the group of the same number, which takes a caller that is root.
    #[must_use]
    pub fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Checks only every hundredth `message_update`, for answers of many megabytes of them.
    #[must_use]
    pub fn check_few_updates(mut self) -> Self {
        self.check = Check::FewUpdates;
        self
    }

    /// The command, for callers that wire its streams themselves.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().envs(self.environment.iter().cloned()).current_dir(&self.cwd);
        command.kill_on_drop(true);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// It cannot be started.
    #[must_use]
    pub fn start(self) -> Server {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.program.display()));
        // A start that fails may have ended already.
        let process = Process::find_any(child.id().unwrap_or_default().cast_signed());
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let collecting = tokio::spawn(collect(child.stderr.take().expect("piped"), Arc::clone(&stderr)));
        Server {
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(|stdout| BufReader::with_capacity(1 << 16, stdout)),
            process: process.expect("a process that was not waited for is in the table"),
            child,
            backlog: VecDeque::new(),
            stderr,
            collecting,
            requests: 0,
            updates: 0,
            check: self.check,
            home: self.home.path(),
            program: self.program,
            end: Instant::now() + LIFETIME,
        }
    }
}

async fn collect(mut stderr: ChildStderr, into: Arc<Mutex<Vec<u8>>>) {
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut piece).await {
        into.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..length]);
    }
}

/// A running server. Dropping it kills it and all that lives in its home.
#[derive(Debug)]
pub struct Server {
    child: Child,
    process: Process,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    /// Lines that were read while waiting for a response.
    backlog: VecDeque<Value>,
    stderr: Arc<Mutex<Vec<u8>>>,
    collecting: JoinHandle<()>,
    requests: u64,
    updates: u64,
    check: Check,
    home: PathBuf,
    program: PathBuf,
    end: Instant,
}

impl Server {
    /// Sends a command. It must be a valid one; see [`send_raw`](Self::send_raw).
    ///
    /// # Panics
    ///
    /// The command is not valid, or the server does not read.
    pub async fn send(&mut self, command: Value) {
        assert_valid(client_line(), &command);
        self.send_raw(format!("{command}\n")).await;
    }

    /// Sends bytes as they are.
    ///
    /// # Panics
    ///
    /// The server does not read, or standard input was closed.
    pub async fn send_raw(&mut self, bytes: impl AsRef<[u8]>) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        let sent = async {
            stdin.write_all(bytes.as_ref()).await?;
            stdin.flush().await
        };
        tokio::time::timeout(DEADLINE, sent).await.expect("the server reads").expect("the server lives");
    }

    /// The next line.
    ///
    /// # Panics
    ///
    /// The output has ended, nothing came in time, or the line breaks the protocol.
    pub async fn next(&mut self) -> Value {
        match self.next_or_end().await {
            Some(line) => line,
            None => panic!("the server ended; standard error:\n{}", self.stderr()),
        }
    }

    /// The next line, `None` at the end of the output.
    ///
    /// # Panics
    ///
    /// Nothing came in time, or the line breaks the protocol.
    pub async fn next_or_end(&mut self) -> Option<Value> {
        if let Some(line) = self.backlog.pop_front() {
            return Some(line);
        }
        self.read().await
    }

    async fn read(&mut self) -> Option<Value> {
        let stdout = self.stdout.as_mut()?;
        let end = self.end.min(Instant::now() + DEADLINE);
        let mut line = Vec::new();
        match tokio::time::timeout_at(end, stdout.read_until(b'\n', &mut line)).await {
            Ok(Ok(0)) => return None,
            Ok(Ok(_)) => {}
            Ok(Err(error)) => panic!("standard output: {error}"),
            Err(_) => panic!("no line came; standard error:\n{}", self.stderr()),
        }
        assert_eq!(line.pop(), Some(b'\n'), "the last line has no line feed: {}", String::from_utf8_lossy(&line));
        let line: Value = serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error} in the line {}", String::from_utf8_lossy(&line)));
        if self.checks(&line) {
            assert_valid(server_line(), &line);
        }
        Some(line)
    }

    fn checks(&mut self, line: &Value) -> bool {
        if self.check == Check::All || line["type"] != "message_update" {
            return true;
        }
        self.updates += 1;
        self.updates % 100 == 1
    }

    /// Sends a command and waits for its response. Other lines that come before it are kept and
    /// come from [`next`](Self::next) later. An `id` is added if there is none.
    ///
    /// # Panics
    ///
    /// As [`send`](Self::send) and [`next`](Self::next).
    pub async fn request(&mut self, mut command: Value) -> Value {
        if command.get("id").is_none() {
            self.requests += 1;
            command["id"] = json!(format!("request-{}", self.requests));
        }
        let id = command["id"].clone();
        self.send(command).await;
        self.response(&id).await
    }

    /// Waits for the response with this id; other lines are kept.
    ///
    /// # Panics
    ///
    /// As [`next`](Self::next).
    pub async fn response(&mut self, id: &Value) -> Value {
        let is_it = |line: &Value| line["type"] == "response" && line.get("id") == Some(id);
        if let Some(at) = self.backlog.iter().position(is_it) {
            return self.backlog.remove(at).expect("it is there");
        }
        loop {
            match self.read().await {
                Some(line) if is_it(&line) => return line,
                Some(line) => self.backlog.push_back(line),
                None => panic!("the server ended before it answered {id}; standard error:\n{}", self.stderr()),
            }
        }
    }

    /// Sends a command that must succeed and returns its data, null if it has none.
    ///
    /// # Panics
    ///
    /// It failed; also as [`request`](Self::request).
    pub async fn ok(&mut self, command: Value) -> Value {
        let mut response = self.request(command).await;
        assert_eq!(response["success"], true, "{response}");
        response["data"].take()
    }

    /// Sends a command that must fail and returns its error.
    ///
    /// # Panics
    ///
    /// It succeeded; also as [`request`](Self::request).
    pub async fn fails(&mut self, command: Value) -> String {
        let response = self.request(command).await;
        assert_eq!(response["success"], false, "{response}");
        response["error"].as_str().expect("a failure says why").to_owned()
    }

    /// Sends a prompt that must be accepted.
    ///
    /// # Panics
    ///
    /// As [`ok`](Self::ok).
    pub async fn prompt(&mut self, message: &str) {
        self.ok(json!({ "type": "prompt", "message": message })).await;
    }

    /// Sends a prompt and returns all events up to `agent_settled`, without the response.
    ///
    /// # Panics
    ///
    /// As [`ok`](Self::ok).
    pub async fn run(&mut self, message: &str) -> Vec<Value> {
        self.prompt(message).await;
        self.until("agent_settled").await
    }

    /// All lines up to the first of this type, it included.
    ///
    /// # Panics
    ///
    /// As [`next`](Self::next).
    pub async fn until(&mut self, kind: &str) -> Vec<Value> {
        self.until_line(|line| line["type"] == kind).await
    }

    /// All lines up to the first in this [`notation`](crate::notation), it included.
    ///
    /// # Panics
    ///
    /// As [`next`](Self::next).
    pub async fn until_short(&mut self, short: &str) -> Vec<Value> {
        self.until_line(|line| crate::notation::short(line) == short).await
    }

    /// All lines up to the first that `is_last` accepts, it included.
    ///
    /// # Panics
    ///
    /// As [`next`](Self::next).
    pub async fn until_line(&mut self, mut is_last: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let mut lines = Vec::new();
        loop {
            let Some(line) = self.next_or_end().await else {
                panic!(
                    "the server ended after {:?}; standard error:\n{}",
                    crate::notation::shorts(&lines),
                    self.stderr()
                )
            };
            let last = is_last(&line);
            lines.push(line);
            if last {
                return lines;
            }
        }
    }

    /// Closes standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Takes standard input, to write to it while reading.
    ///
    /// # Panics
    ///
    /// It was taken or closed before.
    pub fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().expect("standard input is open")
    }

    /// Gives standard input back.
    pub fn set_stdin(&mut self, stdin: ChildStdin) {
        self.stdin = Some(stdin);
    }

    /// Closes standard output, as a client that has died. It reads as ended from then on.
    pub fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Waits for the end of the output and of the process; returns the lines that still came.
    ///
    /// # Panics
    ///
    /// It did not end in time, or as [`next`](Self::next).
    pub async fn wait(&mut self) -> (Vec<Value>, ExitStatus) {
        let mut lines = Vec::new();
        while let Some(line) = self.next_or_end().await {
            lines.push(line);
        }
        (lines, self.exit().await)
    }

    /// Closes standard input and waits, see [`wait`](Self::wait).
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub async fn close_stdin_and_wait(&mut self) -> (Vec<Value>, ExitStatus) {
        self.close_stdin();
        self.wait().await
    }

    /// Ends the test in good order: standard input closed, nothing more said but what `agent_settled`
    /// does not wait for, exit status 0, nobody left behind.
    ///
    /// # Panics
    ///
    /// It was not so.
    pub async fn finish(mut self) {
        let (lines, status) = self.close_stdin_and_wait().await;
        assert_eq!(lines, Vec::<Value>::new(), "lines after the end");
        assert_eq!(status.code(), Some(0), "standard error:\n{}", self.stderr());
        let left = process::living_in(&self.home);
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// Waits for the end of the process without reading its output.
    ///
    /// # Panics
    ///
    /// It did not end in time.
    pub async fn exit(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let status: io::Result<ExitStatus> =
            ended.unwrap_or_else(|_| panic!("no end; standard error:\n{}", self.stderr()));
        // Children that hold the pipe would keep the collector; a moment is enough for the rest.
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut self.collecting).await;
        status.expect("a child can be waited for")
    }

    /// What it wrote to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Sends a signal to the process that was started.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// The process that was started.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The processes of `dreb` itself: the one that was started and those it has put under itself.
    #[must_use]
    pub fn own_processes(&self) -> Vec<Process> {
        let program = self.program.canonicalize().expect("the program exists");
        let mut all = process::living_in(&self.home);
        all.retain(|process| process.executable().as_deref() == Some(&program));
        all
    }

    /// The processes of tools and commands: everything in this home but [`own_processes`](Self::own_processes).
    #[must_use]
    pub fn tool_processes(&self) -> Vec<Process> {
        let own = self.own_processes();
        let mut all = process::living_in(&self.home);
        all.retain(|process| !own.iter().any(|other| other.pid == process.pid));
        all
    }

    /// Resident memory of `dreb` itself, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.own_processes().iter().map(Process::memory).sum()
    }

    /// Processor time `dreb` itself has used.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.own_processes().iter().map(Process::cpu_time).sum()
    }

    /// Waits until the server has used no processor time for a second, as when it waits for a client
    /// that does not read, and returns the most memory it had until then, in bytes.
    ///
    /// # Panics
    ///
    /// It did not come to rest within its [`LIFETIME`].
    pub async fn until_at_rest(&self) -> u64 {
        const STEP: Duration = Duration::from_millis(100);
        let mut largest = 0;
        let mut used = self.cpu_time();
        let mut quiet = 0;
        while quiet < 10 {
            assert!(Instant::now() < self.end, "the server does not come to rest");
            tokio::time::sleep(STEP).await;
            largest = largest.max(self.memory());
            let now = self.cpu_time();
            quiet = if now == used { quiet + 1 } else { 0 };
            used = now;
        }
        largest
    }

    /// Its home folder.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.collecting.abort();
        if std::thread::panicking() {
            eprintln!("standard error of the server:\n{}", self.stderr());
        }
        for process in process::living_in(&self.home) {
            process.signal(Signal::SIGKILL);
        }
    }
}

fn validator(definition: &str) -> Validator {
    let mut schema = protocol_schema::schema::bundle();
    schema["$ref"] = json!(format!("#/$defs/{definition}"));
    jsonschema::validator_for(&schema).expect("the emitted schema is valid")
}

fn client_line() -> &'static Validator {
    static VALIDATOR: OnceLock<Validator> = OnceLock::new();
    VALIDATOR.get_or_init(|| validator("ClientLine"))
}

fn server_line() -> &'static Validator {
    static VALIDATOR: OnceLock<Validator> = OnceLock::new();
    VALIDATOR.get_or_init(|| validator("ServerLine"))
}

fn assert_valid(validator: &Validator, line: &Value) {
    if let Err(error) = validator.validate(line) {
        panic!("breaks the protocol at `{}`: {error}\n{line}", error.instance_path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_lines_pass_and_broken_ones_do_not() {
        assert_valid(client_line(), &json!({ "type": "prompt", "message": "m" }));
        assert!(!client_line().is_valid(&json!({ "type": "prompt" })));
        assert_valid(server_line(), &json!({ "type": "response", "command": "prompt", "success": true }));
        assert!(!server_line().is_valid(&json!({ "type": "response", "command": "get_state", "success": true })));
        assert!(!server_line().is_valid(&json!({ "type": "turn_end" })));
        assert_valid(server_line(), &json!({ "type": "brand_new_event", "x": 1 }));
    }
}
