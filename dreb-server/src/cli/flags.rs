//! The command line.
//!
//! The grammar is the reference's: a value flag takes the next token whatever it looks like, and a
//! flag nobody knows is named on standard error and left out, so that a launcher written for another
//! version still starts the server.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use protocol_schema::ThinkingLevel;

use crate::rpc::EventDetail;
use crate::rpc::input::DEFAULT_LINE_CAP;

/// What the server was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flags {
    /// `--mode`, if it was a known word.
    pub(super) mode: Option<Mode>,
    /// `--provider`; it counts together with `--model` only.
    pub(super) provider: Option<String>,
    /// `--model`.
    pub(super) model: Option<String>,
    /// `--api-key`.
    pub(super) api_key: Option<String>,
    /// `--thinking`, if it was a known level.
    pub(super) thinking: Option<ThinkingLevel>,
    /// `--no-session`.
    pub(super) no_session: bool,
    /// `--session-dir`.
    pub(super) session_dir: Option<PathBuf>,
    /// `--tools`, known names only; `None` means the default set.
    pub(super) tools: Option<Vec<String>>,
    /// `--system-prompt`: text or the path of a file.
    pub(super) system_prompt: Option<String>,
    /// `--append-system-prompt`: text or the path of a file.
    pub(super) append_system_prompt: Option<String>,
    /// `--event-detail`.
    pub(super) event_detail: EventDetail,
    /// `--max-line-bytes`.
    pub(super) max_line_bytes: usize,
    /// `--log-file`.
    pub(super) log_file: Option<PathBuf>,
    /// Messages and `@file` arguments.
    pub(super) messages: Vec<String>,
    /// What was wrong and left out; for standard error.
    pub(super) warnings: Vec<String>,
}

/// Output mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// JSON lines over standard input and output.
    Rpc,
    /// One-shot, plain text.
    Text,
    /// One-shot, events as JSON lines.
    Json,
}

/// What the command line comes to.
#[derive(Debug)]
pub(super) enum Parsed {
    /// Run with these flags.
    Run(Box<Flags>),
    /// Print this to standard output and exit with 0: help or version.
    Print(String),
    /// Print this to standard error and exit with 1.
    Refuse(String),
}

/// Tools that `--tools` may name.
pub(super) const TOOL_NAMES: &[&str] = &["read", "bash", "edit", "write", "grep", "find", "ls"];

/// Reads a command line; the first element is the program's name.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed {
    let command = command();
    let mut warnings = Vec::new();
    let known = keep_known(&command, args, &mut warnings);
    match command.try_get_matches_from(known) {
        Ok(matches) => Parsed::Run(Box::new(flags(&matches, warnings))),
        Err(error) if error.kind() == ErrorKind::DisplayVersion => Parsed::Print(format!("{}\n", crate::VERSION)),
        Err(error) if error.use_stderr() => Parsed::Refuse(error.render().to_string()),
        Err(error) => Parsed::Print(error.render().to_string()),
    }
}

fn command() -> Command {
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .help(help)
            .allow_hyphen_values(true)
            // Of a flag that stands twice the last one counts.
            .overrides_with(name)
    };
    Command::new("dreb")
        .about("A coding agent for other programs: commands and events as JSON lines over standard input and output")
        .version(crate::VERSION)
        .disable_version_flag(true)
        .arg(value("mode", "rpc", "How to talk; `rpc` is JSON lines over standard input and output"))
        .arg(value("provider", "NAME", "Provider of the model; counts together with --model"))
        .arg(value("model", "PATTERN", "Model: an id, provider/id or part of a name, optionally with :THINKING behind it"))
        .arg(value("api-key", "KEY", "Key for the chosen model's provider; it is not stored"))
        .arg(value("thinking", "LEVEL", "off, minimal, low, medium, high or xhigh"))
        .arg(Arg::new("no-session").long("no-session").action(ArgAction::SetTrue).help("Keep the session in memory only"))
        .arg(value("session-dir", "DIR", "Folder for session files"))
        .arg(value("tools", "A,B", "Tools the model may use: read, bash, edit, write, grep, find, ls"))
        .arg(Arg::new("no-tools").long("no-tools").action(ArgAction::SetTrue).help("No tools, except those named with --tools"))
        .arg(value("system-prompt", "TEXT", "System prompt instead of the built-in one: text or the path of a file"))
        .arg(value("append-system-prompt", "TEXT", "Text or file put behind the system prompt"))
        .arg(value(
            "event-detail",
            "full|delta",
            "`delta`: streaming events carry only what is new, not everything so far [default: full]",
        ))
        .arg(value("max-line-bytes", "N", "Longest line of input that is accepted [default: 268435456]"))
        .arg(value("log-file", "FILE", "Write diagnostics there instead of standard error; DREB_LOG sets the filter"))
        .arg(Arg::new("version").long("version").short('v').action(ArgAction::Version).help("Print the version"))
        .arg(Arg::new("message").value_name("MESSAGE").num_args(0..).help("Not used in RPC mode"))
        .after_help(
            "Environment:\n  DREB_CODING_AGENT_DIR  folder for settings, models, credentials and sessions [default: ~/.dreb/agent]\n  \
             DREB_LOG               diagnostics filter, for example `debug` or `dreb_server::llm=trace`\n  \
             DREB_API_KEY           like --api-key, but not visible in process lists\n  \
             DREB_SCRIPT            script of the scripted provider, for tests without a model",
        )
}

/// Takes out what clap would refuse: unknown flags, and value flags without a value.
fn keep_known(
    command: &Command,
    args: impl IntoIterator<Item = OsString>,
    warnings: &mut Vec<String>,
) -> Vec<OsString> {
    let mut args = args.into_iter();
    let mut kept: Vec<OsString> = args.next().into_iter().collect();
    let mut messages = Vec::new();
    while let Some(token) = args.next() {
        let Some(text) = token.to_str().filter(|text| text.starts_with('-') && text.len() > 1) else {
            messages.push(token);
            continue;
        };
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        let takes_value = match name {
            "-h" | "--help" | "-v" => Some(false),
            _ => command
                .get_arguments()
                .find(|arg| arg.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long)))
                .map(|arg| arg.get_action().takes_values()),
        };
        match takes_value {
            None => warnings.push(format!("Warning: Unknown option {name} ignored")),
            Some(true) if !text.contains('=') => match args.next() {
                Some(value) => kept.extend([token, value]),
                None => warnings.push(format!("Warning: Option {name} needs a value and was ignored")),
            },
            Some(_) => kept.push(token),
        }
    }
    kept.push("--".into());
    kept.extend(messages);
    kept
}

fn flags(matches: &ArgMatches, mut warnings: Vec<String>) -> Flags {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let mode = text("mode").and_then(|word| match word.as_str() {
        "rpc" => Some(Mode::Rpc),
        "text" => Some(Mode::Text),
        "json" => Some(Mode::Json),
        _ => {
            warnings.push(format!("Warning: Invalid mode \"{word}\". Valid values: rpc"));
            None
        }
    });
    let thinking = text("thinking").and_then(|word| {
        let level = ThinkingLevel::from(word.as_str());
        if !level.is_known() {
            warnings.push(format!(
                "Warning: Invalid thinking level \"{word}\". Valid values: {}",
                ThinkingLevel::WORDS.join(", ")
            ));
            return None;
        }
        Some(level)
    });
    let event_detail = match text("event-detail").as_deref() {
        None | Some("full") => EventDetail::Full,
        Some("delta") => EventDetail::Delta,
        Some(word) => {
            warnings.push(format!("Warning: Invalid event detail \"{word}\". Valid values: full, delta"));
            EventDetail::Full
        }
    };
    let max_line_bytes = text("max-line-bytes").map_or(DEFAULT_LINE_CAP, |word| match word.parse() {
        Ok(bytes) if bytes > 0 => bytes,
        _ => {
            warnings.push(format!("Warning: Invalid --max-line-bytes \"{word}\": expected a positive number"));
            DEFAULT_LINE_CAP
        }
    });
    let named = text("tools").map(|list| tool_names(&list, &mut warnings));
    let tools = named.or_else(|| matches.get_flag("no-tools").then(Vec::new));
    Flags {
        mode,
        provider: text("provider"),
        model: text("model"),
        api_key: text("api-key"),
        thinking,
        no_session: matches.get_flag("no-session"),
        session_dir: text("session-dir").map(PathBuf::from),
        tools,
        system_prompt: text("system-prompt"),
        append_system_prompt: text("append-system-prompt"),
        event_detail,
        max_line_bytes,
        log_file: text("log-file").map(PathBuf::from),
        messages: matches.get_many::<String>("message").unwrap_or_default().cloned().collect(),
        warnings,
    }
}

fn tool_names(list: &str, warnings: &mut Vec<String>) -> Vec<String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .filter(|name| {
            let known = TOOL_NAMES.contains(name);
            if !known {
                let valid = TOOL_NAMES.join(", ");
                warnings.push(format!("Warning: Unknown tool \"{name}\". Valid tools: {valid}"));
            }
            known
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn run(args: &[&str]) -> Flags {
        match parse(std::iter::once("dreb").chain(args.iter().copied()).map(OsString::from)) {
            Parsed::Run(flags) => *flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_of_a_repeated_flag_counts_and_a_value_may_look_like_a_flag() {
        let flags = run(&["--mode", "rpc", "--model", "a", "--model", "b", "--system-prompt", "--not-a-flag"]);
        assert_eq!(flags.mode, Some(Mode::Rpc));
        assert_eq!(flags.model.as_deref(), Some("b"));
        assert_eq!(flags.system_prompt.as_deref(), Some("--not-a-flag"));
        assert_eq!(flags.warnings, Vec::<String>::new());
    }

    #[test]
    fn unknown_flags_and_missing_values_are_named_and_left_out() {
        let flags = run(&["--bogus", "--no-session", "-x", "hello", "--also=1", "--model"]);
        assert!(flags.no_session);
        assert_eq!(flags.messages, ["hello"]);
        assert_eq!(
            flags.warnings,
            [
                "Warning: Unknown option --bogus ignored",
                "Warning: Unknown option -x ignored",
                "Warning: Unknown option --also ignored",
                "Warning: Option --model needs a value and was ignored",
            ]
        );
    }

    #[test]
    fn bad_words_are_warned_about() {
        let flags = run(&["--thinking", "extreme", "--tools", "read,,nope, ls", "--mode", "x", "--event-detail", "y"]);
        assert_eq!(flags.thinking, None);
        assert_eq!(flags.tools, Some(vec!["read".to_owned(), "ls".to_owned()]));
        assert_eq!(
            flags.warnings,
            [
                "Warning: Invalid mode \"x\". Valid values: rpc",
                "Warning: Invalid thinking level \"extreme\". Valid values: off, minimal, low, medium, high, xhigh",
                "Warning: Invalid event detail \"y\". Valid values: full, delta",
                "Warning: Unknown tool \"nope\". Valid tools: read, bash, edit, write, grep, find, ls",
            ]
        );
        assert_eq!(run(&["--no-tools"]).tools, Some(vec![]));
        assert_eq!(run(&["--no-tools", "--tools", "read"]).tools, Some(vec!["read".to_owned()]));
        assert_eq!(run(&["--event-detail=delta"]).event_detail, EventDetail::Delta);
    }

    #[test]
    fn help_and_version_are_printed() {
        let printed = |flag: &str| match parse(["dreb", flag].map(OsString::from)) {
            Parsed::Print(text) => text,
            other => panic!("{flag} {other:?}"),
        };
        for flag in ["--help", "-h"] {
            assert!(printed(flag).contains("Usage: dreb [OPTIONS]"), "{flag}");
        }
        // The number alone, for scripts that compare it.
        for flag in ["--version", "-v"] {
            assert_eq!(printed(flag), format!("{}\n", crate::VERSION), "{flag}");
        }
    }
}
