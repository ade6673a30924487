//! The `dreb` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    dreb_server::run_from_args(std::env::args_os()).into()
}
