//! One settings file.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::lock::{self, Lock};
use super::merge;
use crate::small_file;

/// Readings of a broken file while another program may be writing it in place.
const READ_TRIES: u32 = 25;
/// Rounds of an update whose lock was lost, which takes a suspended process.
const UPDATE_TRIES: u32 = 3;
/// Pause between two readings.
const READ_PAUSE: Duration = Duration::from_millis(20);

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no JSON object.
    #[error("{0}")]
    Syntax(String),
}

/// Why a file could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// Somebody else holds the lock.
    #[error("{0}")]
    Lock(#[from] lock::LockError),
    /// The present content cannot be read.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// The new content cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The work was cut off.
    #[error("{0}")]
    Interrupted(String),
}

/// Reads a file and rewrites old forms; a missing file is empty.
///
/// # Errors
///
/// It cannot be read, or is no JSON object.
pub fn load(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let mut tries = 0;
    loop {
        let result = load_once(path);
        tries += 1;
        // Other programs write in place, so a broken file may be whole in a moment.
        if !matches!(result, Err(LoadError::Syntax(_))) || tries >= READ_TRIES || !lock::is_held(path) {
            return result;
        }
        std::thread::sleep(READ_PAUSE);
    }
}

fn load_once(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let bytes = match small_file::read(path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Map::new());
        }
        Err(error) => return Err(error.into()),
    };
    let text = String::from_utf8(bytes).map_err(|error| LoadError::Syntax(error.to_string()))?;
    match serde_json::from_str(&protocol_schema::mend_surrogates(&text)) {
        Ok(Value::Object(mut settings)) => {
            merge::migrate(&mut settings);
            Ok(settings)
        }
        Ok(_) => Err(LoadError::Syntax("expected a JSON object".into())),
        Err(error) => Err(LoadError::Syntax(error.to_string())),
    }
}

/// Reads a file, changes it and puts the result in its place, all under its lock. Returns the result.
///
/// # Errors
///
/// The lock is held by somebody else, or the file cannot be read or replaced; it is then as it was.
pub fn update(path: &Path, change: impl Fn(&mut Map<String, Value>)) -> Result<Map<String, Value>, UpdateError> {
    let failed = |source| UpdateError::Write { path: path.to_path_buf(), source };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    for _ in 0..UPDATE_TRIES {
        let lock = Lock::acquire(path)?;
        let mut settings = load_once(path)?;
        change(&mut settings);
        let text = serde_json::to_vec_pretty(&settings).map_err(|error| failed(error.into()))?;
        if let Some(folder) = replace(path, &text, || lock.is_safe()).map_err(failed)? {
            // Others wait for the lock no longer than they must.
            drop(lock);
            // Some file systems cannot; the rename itself has happened.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
            return Ok(settings);
        }
    }
    Err(lock::LockError::Held.into())
}

/// Replaces a file in one step; whoever reads it sees the old or the new content, whole. Does nothing
/// and returns `None` if `go_on` says no at the last moment, else the folder the file is in.
fn replace(path: &Path, content: &[u8], go_on: impl FnOnce() -> bool) -> io::Result<Option<PathBuf>> {
    // A link stays a link: what it points to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = target.parent().unwrap_or(Path::new("."));
    let mode = fs::metadata(&target).map_or(0o666, |metadata| metadata.permissions().mode() & 0o777);
    let exists = target.exists();
    let mut file = tempfile::Builder::new()
        .prefix(".settings-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    file.write_all(content)?;
    if exists {
        // The umask may have taken bits from the mode.
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
    }
    file.as_file().sync_all()?;
    if !go_on() {
        return Ok(None);
    }
    file.persist(&target).map_err(|error| error.error)?;
    Ok(Some(folder.to_path_buf()))
}
