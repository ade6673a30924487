//! The server inside the host's own executable.
//!
//! ```no_run
//! fn main() {
//!     dreb_client::bundled::init();
//!     // The program itself. A client that it starts with `RpcClientOptions::bundled` runs this same
//!     // executable again, and there `init` becomes the server.
//! }
//! ```

#![allow(clippy::needless_doctest_main, reason = "where the call goes is what the example is about")]

use std::ffi::OsString;

/// Environment variable that marks the child.
pub(crate) const VARIABLE: &str = "DREB_BUNDLED";
/// First argument of the child. Both must be there, for the server's own children inherit the
/// variable.
pub(crate) const ARGUMENT: &str = "--dreb-bundled-server";

/// Call this first thing in `main`, before threads are started or arguments are read.
///
/// In a process that [`RpcClientOptions::bundled`](crate::RpcClientOptions::bundled) started it runs
/// the server and ends the process with the server's exit status. In every other process it does
/// nothing.
pub fn init() {
    if std::env::var_os(VARIABLE).as_deref() != Some("1".as_ref()) {
        return;
    }
    let Some(args) = server_args(std::env::args_os()) else {
        return;
    };
    std::process::exit(dreb_server::run_from_args(args).into());
}

/// The server's arguments, its program name first, if these are the child's.
fn server_args(args: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut args = args.into_iter();
    let program = args.next()?;
    if args.next()? != ARGUMENT {
        return None;
    }
    Some([program].into_iter().chain(args).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_child_is_taken_for_the_server() {
        let args = |words: &[&str]| server_args(words.iter().map(OsString::from));
        assert_eq!(
            args(&["host", ARGUMENT, "--mode", "rpc"]),
            Some(vec!["host".into(), "--mode".into(), "rpc".into()])
        );
        assert_eq!(args(&["host", "--mode", ARGUMENT]), None);
        assert_eq!(args(&["host"]), None);
        assert_eq!(args(&[]), None);
    }
}
