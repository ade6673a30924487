//! Writing a file so that a failure leaves the old content.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::ToolError;
use super::blocking::Abort;
use super::os_error;

/// Bytes between two looks at the abort.
const STEP: usize = 1024 * 1024;

/// Creates the folders above a path, as far as they are missing.
///
/// # Errors
///
/// The system's error as text, for example where a file stands in the way.
pub fn create_parents(path: &Path) -> Result<(), ToolError> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(parent).map_err(|error| ToolError::new(os_error::on_path(&error, "mkdir", parent)))
}

/// Makes `content` the content of the file; symbolic links are followed.
///
/// An existing file gets its new content by the rename of a file written beside it, with its mode and
/// owner: a full disk, an abort or a crash on the way leaves the old content. Where a rename would
/// lose something (other names of the file, access lists, an owner that cannot be set) or is not
/// possible (no right to the folder, a mount point), the file is overwritten in place, after the space
/// for the longer content has been reserved. Nothing is forced to the disk; that is left to the system
/// as with any editor.
///
/// # Errors
///
/// The system's error as text, or `Operation aborted`.
pub fn write_file(path: &Path, content: &[u8], abort: &Abort) -> Result<(), ToolError> {
    let error_text = |error: io::Error| ToolError::new(os_error::on_path(&error, "open", path));
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return create(path, content, abort),
        Err(error) => return Err(error_text(error)),
    };
    if metadata.is_dir() {
        return Err(error_text(io::Error::from_raw_os_error(nix::errno::Errno::EISDIR as i32)));
    }
    if !metadata.is_file() {
        return Err(not_regular(path, &metadata));
    }
    // A rename needs no right to the file itself, so the right is tested here.
    let old = OpenOptions::new().write(true).open(path).map_err(error_text)?;
    match replace(path, &old, &metadata, content, abort)? {
        Replaced::Yes => Ok(()),
        Replaced::NotPossible => overwrite(path, old, &metadata, content, abort),
    }
}

/// The failure for something that is no file with content: waiting for a pipe would never end.
pub(super) fn not_regular(path: &Path, metadata: &Metadata) -> ToolError {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    let name = if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    ToolError::new(format!("Not a regular file: {} is {name}", path.display()))
}

enum Replaced {
    Yes,
    NotPossible,
}

fn replace(path: &Path, old: &File, metadata: &Metadata, content: &[u8], abort: &Abort) -> Result<Replaced, ToolError> {
    if metadata.nlink() > 1 || has_attributes(old) {
        return Ok(Replaced::NotPossible);
    }
    let Some((target, folder)) = real_target(path) else {
        return Ok(Replaced::NotPossible);
    };
    let Ok(mut temporary) = tempfile::Builder::new().prefix(".dreb-").suffix(".tmp").tempfile_in(folder) else {
        return Ok(Replaced::NotPossible);
    };
    if copy_owner(temporary.as_file(), metadata).is_err() {
        return Ok(Replaced::NotPossible);
    }
    write_all(temporary.as_file_mut(), content, abort, path)?;
    match temporary.persist(target) {
        Ok(_) => Ok(Replaced::Yes),
        Err(_) => Ok(Replaced::NotPossible),
    }
}

/// Whether the file carries attributes, access lists among them, that a new file would not have. A label
/// of SELinux comes with the folder and does not count.
fn has_attributes(file: &File) -> bool {
    let mut names = Vec::with_capacity(1024);
    match rustix::fs::flistxattr(file, rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => names.split(|byte| *byte == 0).any(|name| !name.is_empty() && name != b"security.selinux"),
        // A file system without attributes; anything else means that there are some.
        Err(error) => error != rustix::io::Errno::OPNOTSUPP,
    }
}

fn real_target(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let target = path.canonicalize().ok()?;
    let folder = target.parent()?.to_path_buf();
    Some((target, folder))
}

fn copy_owner(file: &File, metadata: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (metadata.uid(), metadata.gid()) {
        std::os::unix::fs::fchown(file, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    // Without set-uid and set-gid, which a write takes away too.
    file.set_permissions(fs::Permissions::from_mode(metadata.mode() & 0o1777))
}

fn overwrite(path: &Path, mut file: File, metadata: &Metadata, content: &[u8], abort: &Abort) -> Result<(), ToolError> {
    reserve(&file, metadata.len(), content.len() as u64)
        .map_err(|error| ToolError::new(os_error::on_path(&error, "write", path)))?;
    // From here on the file is written to its end: half of it would be worse than a late abort.
    abort.check()?;
    file.write_all(content)
        .and_then(|()| file.set_len(content.len() as u64))
        .map_err(|error| ToolError::new(os_error::on_path(&error, "write", path)))
}

/// Reserves the space of a longer content, so that a full disk shows before anything is overwritten.
#[cfg(target_os = "linux")]
fn reserve(file: &File, old: u64, new: u64) -> io::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{FallocateFlags, fallocate};
    if new <= old {
        return Ok(());
    }
    let Ok(length) = i64::try_from(new) else {
        return Err(io::Error::from_raw_os_error(Errno::EFBIG as i32));
    };
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
        Err(error @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)) => Err(error.into()),
        // Not every file system can reserve.
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

fn create(path: &Path, content: &[u8], abort: &Abort) -> Result<(), ToolError> {
    let open_error = |error: io::Error| ToolError::new(os_error::on_path(&error, "open", path));
    let mut options = OpenOptions::new();
    options.write(true).mode(0o666);
    let mut file = match options.clone().create_new(true).open(path) {
        Ok(file) => file,
        // A symbolic link to a file that is still to be made, or somebody was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.create(true).truncate(true).open(path).map_err(open_error)?
        }
        Err(error) => return Err(open_error(error)),
    };
    let written = write_all(&mut file, content, abort, path);
    if written.is_err() {
        // The part of a file that was not there before is of no use. The first failure is the one to tell.
        let _ = fs::remove_file(path.canonicalize().as_deref().unwrap_or(path));
    }
    written
}

fn write_all(file: &mut File, content: &[u8], abort: &Abort, path: &Path) -> Result<(), ToolError> {
    for piece in content.chunks(STEP) {
        abort.check()?;
        file.write_all(piece).map_err(|error| ToolError::new(os_error::on_path(&error, "write", path)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use pretty_assertions::assert_eq;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn no_abort() -> Abort {
        Abort::new(CancellationToken::new())
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn mode_and_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("run.sh"), dir.path().join("link"));
        fs::write(&file, "old and longer").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o751)).unwrap();
        symlink("run.sh", &link).unwrap();
        write_file(&link, b"new", &no_abort()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o751);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["link", "run.sh"]);
    }

    #[test]
    fn other_names_of_the_file_see_the_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&file, "old and longer").unwrap();
        fs::hard_link(&file, &other).unwrap();
        write_file(&file, b"new", &no_abort()).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "new");
        write_file(&file, b"much longer than before", &no_abort()).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "much longer than before");
    }

    #[test]
    fn a_link_to_a_file_that_is_missing_makes_it() {
        let dir = tempfile::tempdir().unwrap();
        symlink("target", dir.path().join("link")).unwrap();
        write_file(&dir.path().join("link"), b"x", &no_abort()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("target")).unwrap(), "x");
    }

    #[test]
    fn an_abort_leaves_the_old_content_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "old").unwrap();
        let token = CancellationToken::new();
        token.cancel();
        let abort = Abort::new(token);
        assert_eq!(write_file(&file, b"new", &abort), Err(ToolError::new("Operation aborted")));
        assert_eq!(write_file(&dir.path().join("b"), b"new", &abort), Err(ToolError::new("Operation aborted")));
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn a_full_disk_is_told_and_leaves_no_half_of_a_file() {
        // Every write to this device fails with ENOSPC; it stands for the disk here.
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(
            write_all(&mut full, b"x", &no_abort(), Path::new("/a")),
            Err(ToolError::new("ENOSPC: no space left on device, write '/a'"))
        );
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(
            write_file(&pipe, b"x", &no_abort()),
            Err(ToolError::new(format!("Not a regular file: {} is a named pipe", pipe.display())))
        );
        assert_eq!(
            write_file(dir.path(), b"x", &no_abort()),
            Err(ToolError::new(format!("EISDIR: illegal operation on a directory, open '{}'", dir.path().display())))
        );
        fs::write(dir.path().join("file"), "").unwrap();
        let below = dir.path().join("file/x/y");
        assert_eq!(
            create_parents(&below),
            Err(ToolError::new(format!("ENOTDIR: not a directory, mkdir '{}'", dir.path().join("file/x").display())))
        );
    }
}
