//! Diagnostics. They go to standard error or a file, never to standard output.

use std::fs::OpenOptions;
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use super::standard_error::{LogLines, tell};
use crate::environment::Environment;

/// What is logged when `DREB_LOG` says nothing.
const DEFAULT_FILTER: &str = "warn";

/// Starts the log. A filter or file that is no good is told on standard error; the server runs on.
/// Returns what has to be flushed at the end, if the log goes to standard error.
pub(super) fn start(environment: &Environment, file: Option<&Path>) -> Option<LogLines> {
    let wanted = environment.get("DREB_LOG").unwrap_or(DEFAULT_FILTER);
    let filter = EnvFilter::try_new(wanted).unwrap_or_else(|error| {
        tell(format_args!("Warning: DREB_LOG is not a filter ({error}); using \"{DEFAULT_FILTER}\""));
        EnvFilter::new(DEFAULT_FILTER)
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_span_events(FmtSpan::NONE);
    // Its complaint about a failed write would be a panic where standard error is closed.
    let builder = builder.log_internal_errors(false);
    let opened = file.map(|path| (path, OpenOptions::new().create(true).append(true).open(path)));
    // A second start in one process (an embedding host's own subscriber) is no error.
    match opened {
        Some((_, Ok(file))) => {
            let _ = builder.with_ansi(false).with_writer(Mutex::new(file)).try_init();
            None
        }
        other => {
            if let Some((path, Err(error))) = other {
                tell(format_args!("Warning: cannot write the log file {}: {error}", path.display()));
            }
            // Without a thread there is no log; the server has other worries then.
            let lines = LogLines::spawn(std::io::stderr()).ok()?;
            let writer = lines.clone();
            let _ = builder.with_ansi(std::io::stderr().is_terminal()).with_writer(move || writer.clone()).try_init();
            Some(lines)
        }
    }
}
