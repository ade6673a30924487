//! Taking standard output over, so that nothing but protocol lines can ever reach it.

use std::fs::File;
use std::io;

use nix::fcntl::{FcntlArg, fcntl};

/// Size a pipe at standard output is given, in bytes: fewer, larger writes cost less.
const PIPE_SIZE: i32 = 1024 * 1024;

/// Moves standard output to a private descriptor and points descriptor 1 at standard error.
///
/// # Errors
///
/// The descriptors cannot be duplicated, for example because standard output is closed.
pub fn take_stdout() -> io::Result<File> {
    let stdout = io::stdout();
    // Close-on-exec, so that no child inherits the protocol's stream.
    let real = nix::unistd::dup(&stdout).map_err(io::Error::from)?;
    fcntl(&real, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).map_err(io::Error::from)?;
    nix::unistd::dup2_stdout(io::stderr()).map_err(io::Error::from)?;
    // A file or a terminal has no pipe size, and an unprivileged user may be over the limit.
    #[cfg(target_os = "linux")]
    let _ = fcntl(&real, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
    Ok(File::from(real))
}
