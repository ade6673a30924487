//! Start-up: from the command line to a session that is served.

mod flags;
mod logging;
mod secrets_file;
mod standard_error;
mod start;

use std::ffi::OsString;
use std::io::Write as _;

use self::flags::{Flags, Mode, Parsed};
use self::standard_error::tell;
use crate::environment::Environment;

/// Runs the server with these arguments, the program's name first, and returns its exit status.
///
/// This is the whole of the `dreb` binary; a host that bundles the server calls it in the child.
pub fn run_from_args(args: impl IntoIterator<Item = OsString>) -> u8 {
    match flags::parse(args) {
        Parsed::Run(flags) => run(&flags),
        Parsed::Print(text) => {
            // A reader that is gone does not matter for help and version.
            let _ = write!(std::io::stdout(), "{text}");
            0
        }
        Parsed::Refuse(text) => {
            tell(text.trim_end());
            1
        }
    }
}

fn run(flags: &Flags) -> u8 {
    let environment = secrets_file::with_secrets(Environment::of_process());
    let log = logging::start(&environment, flags.log_file.as_deref());
    for warning in &flags.warnings {
        tell(warning);
    }
    if flags.mode != Some(Mode::Rpc) {
        tell("Error: this program is driven by other programs; start it with --mode rpc (see --help)");
        return 1;
    }
    if flags.messages.iter().any(|message| message.starts_with('@')) {
        tell("Error: @file arguments are not supported in RPC mode");
        return 1;
    }
    // One thread is enough: the work is waiting for the network and for child processes, and files are
    // read and written on the blocking pool.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(16).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tell(format_args!("Error: cannot start the runtime: {error}"));
            return 1;
        }
    };
    let code = match runtime.block_on(start::serve(flags, environment)) {
        Ok(code) => code,
        Err(error) => {
            tell(error);
            1
        }
    };
    // Blocking work that hangs, on a dead network file system for example, must not keep the process.
    runtime.shutdown_background();
    if let Some(log) = log {
        log.flush();
    }
    code
}
