//! Reading files that people write: settings, models, credentials, instructions.
//!
//! Whatever stands under such a name, reading it comes to an end soon and takes little memory. A pipe
//! nobody writes to would keep the server for ever, a device would fill its memory.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Most such a file may hold, in bytes.
const LIMIT: u64 = 16 * 1024 * 1024;

/// Reads a regular file of up to 16 MiB. Blocks on the disk only.
///
/// # Errors
///
/// It cannot be opened or read, is a folder, pipe or device, or is too large.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, LIMIT)
}

fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Without this flag opening a pipe waits for its writer.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    // Counted while reading: files of /proc have no size, and a file may grow.
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn failure(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_read_whole_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path).unwrap(), b"12345");
        assert_eq!(read_up_to(&path, 5).unwrap(), b"12345");
        let error = read_up_to(&path, 4).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::FileTooLarge, "larger than 4 bytes".into()));
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(failure(&pipe), "not a regular file");
        assert_eq!(failure(Path::new("/dev/zero")), "not a regular file");
        assert_eq!(read(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(read(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        assert_eq!(failure(&link), "Too many levels of symbolic links (os error 40)");
    }
}
