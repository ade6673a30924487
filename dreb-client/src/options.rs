//! How a server is started and how much a client may hold.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol_schema::ThinkingLevel;

/// Environment variable that carries [`RpcClientOptions::api_key`] to the server.
pub const API_KEY_VARIABLE: &str = "DREB_API_KEY";

/// How much the server says while an answer streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventDetail {
    /// Updates carry only what is new. The client puts the whole message together,
    /// see [`ServerEvent::partial`](crate::ServerEvent::partial). A server that sends whole messages
    /// all the same is brought to the same form without decoding them.
    #[default]
    Delta,
    /// Updates arrive as the server sends them, usually with the whole message in each one, so that
    /// an answer costs the square of its length.
    Full,
}

/// A function that sees each line of the server's standard error.
pub(crate) type StderrCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// How to start a server and talk to it; see the methods for the defaults.
///
/// ```
/// use dreb_client::RpcClientOptions;
///
/// let options = RpcClientOptions::new().provider("anthropic").model("claude-sonnet-4-5").no_session(true);
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct RpcClientOptions {
    pub(crate) binary: Option<PathBuf>,
    pub(crate) command_prefix: Vec<OsString>,
    pub(crate) bundled: bool,
    pub(crate) cwd: Option<PathBuf>,
    /// In the order given, the last word on a name counts.
    pub(crate) environment: Vec<(OsString, Option<OsString>)>,
    pub(crate) env_clear: bool,
    pub(crate) provider: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) thinking: Option<ThinkingLevel>,
    pub(crate) session_dir: Option<PathBuf>,
    pub(crate) no_session: bool,
    pub(crate) api_key: Option<String>,
    pub(crate) tools: Option<Vec<String>>,
    pub(crate) system_prompt: Option<String>,
    pub(crate) append_system_prompt: Option<String>,
    pub(crate) extra_args: Vec<OsString>,
    pub(crate) event_detail: EventDetail,
    pub(crate) start_timeout: Duration,
    pub(crate) grace_period: Duration,
    pub(crate) event_budget: usize,
    pub(crate) write_budget: usize,
    pub(crate) update_capacity: usize,
    pub(crate) max_line: usize,
    pub(crate) on_stderr_line: Option<StderrCallback>,
}

impl Default for RpcClientOptions {
    fn default() -> Self {
        Self {
            binary: None,
            command_prefix: Vec::new(),
            bundled: false,
            cwd: None,
            environment: Vec::new(),
            env_clear: false,
            provider: None,
            model: None,
            thinking: None,
            session_dir: None,
            no_session: false,
            api_key: None,
            tools: None,
            system_prompt: None,
            append_system_prompt: None,
            extra_args: Vec::new(),
            event_detail: EventDetail::Delta,
            start_timeout: Duration::from_secs(30),
            grace_period: Duration::from_secs(2),
            event_budget: 64 << 20,
            write_budget: 64 << 20,
            update_capacity: 4096,
            max_line: 256 << 20,
            on_stderr_line: None,
        }
    }
}

impl RpcClientOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The `dreb` binary. Default: the path in `DREB_BIN`, else `dreb` beside the current
    /// executable, else `dreb` on `PATH`.
    ///
    /// A name without a slash is looked up on `PATH`. With a command prefix it is passed on as it is.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// A command that runs the server elsewhere, put before the binary: `["ssh", "-T", "host"]`,
    /// `["docker", "exec", "-i", "box"]`. It must pass standard input and output through unchanged.
    ///
    /// The binary is then not looked up here: it is [`binary`](Self::binary) or plain `dreb`. The
    /// working directory and the environment given here are those of the prefix command. `ssh` hands
    /// its arguments to a remote shell, so text with blanks must be quoted for that shell. What the
    /// command leaves running outside of its process group, such as a shared connection, is left alone.
    #[must_use]
    pub fn command_prefix<I>(mut self, words: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        self.command_prefix = words.into_iter().map(Into::into).collect();
        self
    }

    /// Runs the server inside this program's own executable instead of a `dreb` binary. The program
    /// must call [`bundled::init`](crate::bundled::init) at the top of `main`.
    #[cfg(feature = "bundled")]
    #[must_use]
    pub fn bundled(mut self) -> Self {
        self.bundled = true;
        self
    }

    /// The server's working directory. Default: that of this process.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }

    /// Sets an environment variable for the server.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), Some(value.into())));
        self
    }

    /// Keeps an environment variable of this process from the server.
    #[must_use]
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), None));
        self
    }

    /// Starts from an empty environment: the server gets what [`env`](Self::env) sets and nothing
    /// of this process, wherever in the chain this is called. Default: the server inherits.
    #[must_use]
    pub fn env_clear(mut self) -> Self {
        self.env_clear = true;
        self
    }

    /// The provider (`--provider`).
    #[must_use]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// The model (`--model`).
    #[must_use]
    pub fn model(mut self, pattern: impl Into<String>) -> Self {
        self.model = Some(pattern.into());
        self
    }

    /// How much the model thinks (`--thinking`).
    #[must_use]
    pub fn thinking(mut self, level: ThinkingLevel) -> Self {
        self.thinking = Some(level);
        self
    }

    /// Where session files go (`--session-dir`).
    #[must_use]
    pub fn session_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.session_dir = Some(path.into());
        self
    }

    /// Whether to keep the session in memory only (`--no-session`). Default: false.
    #[must_use]
    pub fn no_session(mut self, value: bool) -> Self {
        self.no_session = value;
        self
    }

    /// The key for the chosen model's provider.
    ///
    /// It is passed in the environment as [`API_KEY_VARIABLE`], for every user of the machine can
    /// read the arguments of a process. A command prefix must forward that variable itself. A
    /// server that does not know the variable needs `extra_args(["--api-key", key])`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// The active built-in tools (`--tools`); none at all if the list is empty (`--no-tools`).
    #[must_use]
    pub fn tools<I>(mut self, names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Replaces the base system prompt (`--system-prompt`). If a file of this name exists, the
    /// server takes its content.
    #[must_use]
    pub fn system_prompt(mut self, text: impl Into<String>) -> Self {
        self.system_prompt = Some(text.into());
        self
    }

    /// Adds to the system prompt (`--append-system-prompt`). If a file of this name exists, the
    /// server takes its content.
    #[must_use]
    pub fn append_system_prompt(mut self, text: impl Into<String>) -> Self {
        self.append_system_prompt = Some(text.into());
        self
    }

    /// More arguments for the server, after all others.
    #[must_use]
    pub fn extra_args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        self.extra_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How much updates carry. Default: [`EventDetail::Delta`].
    #[must_use]
    pub fn event_detail(mut self, detail: EventDetail) -> Self {
        self.event_detail = detail;
        self
    }

    /// How long the server may take to answer its first command. Default: 30 s.
    #[must_use]
    pub fn start_timeout(mut self, limit: Duration) -> Self {
        self.start_timeout = limit;
        self
    }

    /// How long a shutdown waits after closing standard input before it sends SIGTERM, and again
    /// before it sends SIGKILL. Default: 2 s.
    #[must_use]
    pub fn grace_period(mut self, time: Duration) -> Self {
        self.grace_period = time;
        self
    }

    /// How many bytes of must-not-miss events one slow subscriber may leave waiting before the
    /// client stops reading from the server. Default: 64 MiB.
    ///
    /// While a call waits for its answer the client reads on up to four times as much, so that the
    /// answer is found behind the events.
    #[must_use]
    pub fn event_budget(mut self, bytes: usize) -> Self {
        self.event_budget = bytes;
        self
    }

    /// How many bytes of commands may wait for the server to read them before calls wait too.
    /// Default: 64 MiB.
    #[must_use]
    pub fn write_budget(mut self, bytes: usize) -> Self {
        self.write_budget = bytes;
        self
    }

    /// How many updates (deltas and progress) one subscriber may leave waiting before it loses the
    /// oldest, at least 1. They also count as too many beyond a quarter of the event budget.
    /// Default: 4096.
    #[must_use]
    pub fn update_capacity(mut self, updates: usize) -> Self {
        self.update_capacity = updates.max(1);
        self
    }

    /// The longest line taken from the server, in bytes. Longer ones are skipped and reported as
    /// malformed. Default: 256 MiB.
    #[must_use]
    pub fn max_line(mut self, bytes: usize) -> Self {
        self.max_line = bytes;
        self
    }

    /// Calls a function with each line of the server's standard error, without its line feed. It
    /// runs on the task that reads standard error and must not block.
    #[must_use]
    pub fn on_stderr_line(mut self, callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_stderr_line = Some(Arc::new(callback));
        self
    }

    /// The server's arguments, from `--mode` on.
    pub(crate) fn server_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["--mode".into(), "rpc".into()];
        let mut flag = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                args.push(name.into());
                args.push(value);
            }
        };
        flag("--provider", self.provider.as_ref().map(Into::into));
        flag("--model", self.model.as_ref().map(Into::into));
        flag("--thinking", self.thinking.as_ref().map(|level| level.as_str().into()));
        flag("--session-dir", self.session_dir.as_ref().map(Into::into));
        flag("--system-prompt", self.system_prompt.as_ref().map(Into::into));
        flag("--append-system-prompt", self.append_system_prompt.as_ref().map(Into::into));
        // Servers that do not know the flag only warn about it.
        flag("--event-detail", (self.event_detail == EventDetail::Delta).then(|| "delta".into()));
        if self.no_session {
            args.push("--no-session".into());
        }
        match self.tools.as_deref() {
            None => {}
            Some([]) => args.push("--no-tools".into()),
            Some(names) => args.extend(["--tools".into(), names.join(",").into()]),
        }
        args.extend(self.extra_args.iter().cloned());
        args
    }
}

impl fmt::Debug for RpcClientOptions {
    /// Leaves out values that may be secret: the key, the environment, the prompts, the arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcClientOptions")
            .field("binary", &self.binary)
            .field("command_prefix", &self.command_prefix.first())
            .field("bundled", &self.bundled)
            .field("cwd", &self.cwd)
            .field("provider", &self.provider)
            .field("model", &self.model)
            .field("event_detail", &self.event_detail)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn arguments_follow_the_options_and_never_show_the_key() {
        let options = RpcClientOptions::new()
            .provider("p")
            .model("m:high")
            .thinking(ThinkingLevel::Low)
            .session_dir("/s")
            .no_session(true)
            .api_key("sk-secret")
            .tools(["read", "bash"])
            .system_prompt("be brief")
            .append_system_prompt("more")
            .extra_args(["--x", "y"]);
        let shown: Vec<_> = options.server_args().into_iter().map(|arg| arg.into_string().unwrap()).collect();
        assert_eq!(
            shown.join("|"),
            "--mode|rpc|--provider|p|--model|m:high|--thinking|low|--session-dir|/s|--system-prompt|be brief|\
             --append-system-prompt|more|--event-detail|delta|--no-session|--tools|read,bash|--x|y"
        );
        assert!(!format!("{options:?}").contains("sk-secret"));
        let plain = RpcClientOptions::new().event_detail(EventDetail::Full).tools::<[&str; 0]>([]);
        assert_eq!(plain.server_args(), ["--mode", "rpc", "--no-tools"]);
    }
}
