//! Failures of the operating system in the words Node.js has for them, which clients and models know.

use std::io;
use std::path::Path;

use nix::errno::Errno;

/// Name of an error, for example `ENOENT`; `UNKNOWN` for one that is not the system's.
#[must_use]
pub fn code(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| "UNKNOWN".to_owned(), |raw| format!("{:?}", Errno::from_raw(raw)))
}

/// An error of an operation on a path: `ENOENT: no such file or directory, access '/a'`.
#[must_use]
pub fn on_path(error: &io::Error, operation: &str, path: &Path) -> String {
    format!("{}, {operation} '{}'", text(error), path.display())
}

/// An error of an operation on something already open: `EISDIR: illegal operation on a directory, read`.
#[must_use]
pub fn on_open_file(error: &io::Error, operation: &str) -> String {
    format!("{}, {operation}", text(error))
}

fn text(error: &io::Error) -> String {
    let Some(raw) = error.raw_os_error() else {
        return error.to_string();
    };
    let errno = Errno::from_raw(raw);
    let words = match errno {
        Errno::EACCES => "permission denied",
        Errno::EBUSY => "resource busy or locked",
        Errno::EDQUOT => "disk quota exceeded",
        Errno::EEXIST => "file already exists",
        Errno::EFBIG => "file too large",
        Errno::EINVAL => "invalid argument",
        Errno::EIO => "i/o error",
        Errno::EISDIR => "illegal operation on a directory",
        Errno::ELOOP => "too many symbolic links encountered",
        Errno::EMFILE => "too many open files",
        Errno::ENAMETOOLONG => "name too long",
        Errno::ENFILE => "file table overflow",
        Errno::ENODEV => "no such device",
        Errno::ENOENT => "no such file or directory",
        Errno::ENOMEM => "not enough memory",
        Errno::ENOSPC => "no space left on device",
        Errno::ENOTDIR => "not a directory",
        Errno::ENXIO => "no such device or address",
        Errno::EPERM => "operation not permitted",
        Errno::EROFS => "read-only file system",
        Errno::ETXTBSY => "text file is busy",
        Errno::EXDEV => "cross-device link not permitted",
        other => return format!("{other:?}: {}", other.desc().to_lowercase()),
    };
    format!("{errno:?}: {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_in_node() {
        let error = io::Error::from_raw_os_error(Errno::ENOENT as i32);
        assert_eq!(code(&error), "ENOENT");
        assert_eq!(on_path(&error, "access", Path::new("/a")), "ENOENT: no such file or directory, access '/a'");
        let error = io::Error::from_raw_os_error(Errno::EISDIR as i32);
        assert_eq!(on_open_file(&error, "read"), "EISDIR: illegal operation on a directory, read");
        assert_eq!(on_open_file(&io::Error::other("odd"), "read"), "odd, read");
    }
}
