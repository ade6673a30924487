//! A lock between processes: a folder named after the file, whose time of change is a heartbeat.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// A lock whose heartbeat is older than this belongs to nobody.
const STALE: Duration = Duration::from_secs(10);
/// How often the heartbeat is renewed.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// Tries before giving up: two seconds, for other programs give up after 0.2 and come back.
const TRIES: u32 = 100;

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("Lock file is already being held")]
    Held,
    /// The lock's folder cannot be made.
    #[error("cannot create {}: {source}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A held lock; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    pulse: Arc<Mutex<Pulse>>,
    stop: Option<mpsc::Sender<()>>,
    heartbeat: Option<JoinHandle<()>>,
}

/// When the heartbeat was last renewed, and whether it ever came too late: after the process was
/// suspended, others may have taken the lock.
#[derive(Debug)]
struct Pulse {
    last: SystemTime,
    lost: bool,
}

impl Pulse {
    fn check(&mut self) -> bool {
        self.lost |= self.last.elapsed().unwrap_or_default() > STALE;
        !self.lost
    }
}

impl Lock {
    /// Waits for the lock of `file`, the folder `<file>.lock`.
    pub(super) fn acquire(file: &Path) -> Result<Self, LockError> {
        Self::acquire_within(file, TRIES)
    }

    pub(super) fn acquire_within(file: &Path, tries: u32) -> Result<Self, LockError> {
        let path = lock_path(file);
        for attempt in 0..tries {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self::held(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(LockError::Io { path, source }),
            }
            if is_stale(&path) {
                remove_stale(&path);
            }
        }
        Err(LockError::Held)
    }

    fn held(path: PathBuf) -> Self {
        let pulse = Arc::new(Mutex::new(Pulse { last: SystemTime::now(), lost: false }));
        let (stop, stopped) = mpsc::channel::<()>();
        let folder = path.clone();
        let beating = Arc::clone(&pulse);
        // Without the thread the lock is good for ten seconds, far longer than a write takes.
        let heartbeat = std::thread::Builder::new()
            .name("settings-lock".into())
            .spawn(move || {
                while stopped.recv_timeout(HEARTBEAT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let mut pulse = beating.lock().unwrap_or_else(PoisonError::into_inner);
                    let now = SystemTime::now();
                    if pulse.check() && File::open(&folder).and_then(|folder| folder.set_modified(now)).is_ok() {
                        pulse.last = now;
                    }
                }
            })
            .ok();
        Self { path, pulse, stop: Some(stop), heartbeat }
    }

    /// Whether nobody can have taken the lock over since.
    pub(super) fn is_safe(&self) -> bool {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).check()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(heartbeat) = self.heartbeat.take() {
            let _ = heartbeat.join();
        }
        if self.is_safe() {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Whether somebody holds the lock of `file` right now.
pub(super) fn is_held(file: &Path) -> bool {
    let path = lock_path(file);
    path.is_dir() && !is_stale(&path)
}

fn lock_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Removes a lock without heartbeat. It is moved aside first, for between the look at it and the
/// removal somebody else may have replaced it by a live one, which is put back.
fn remove_stale(path: &Path) {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}", std::process::id()));
    let aside = PathBuf::from(aside);
    if fs::rename(path, &aside).is_ok() && (is_stale(&aside) || fs::rename(&aside, path).is_err()) {
        let _ = fs::remove_dir(&aside);
    }
}

/// A clock that is behind the heartbeat does not make it stale.
fn is_stale(path: &Path) -> bool {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > STALE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let lock = Lock::acquire(&file).unwrap();
        assert!(folder.path().join("settings.json.lock").is_dir());
        assert!(is_held(&file));
        let error = Lock::acquire_within(&file, 2).unwrap_err();
        assert_eq!(error.to_string(), "Lock file is already being held");
        drop(lock);
        assert!(!folder.path().join("settings.json.lock").exists());
        Lock::acquire_within(&file, 1).unwrap();
    }

    #[test]
    fn a_lock_without_heartbeat_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let path = folder.path().join("settings.json.lock");
        let set_age = |seconds| {
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::open(&path).unwrap().set_modified(time).unwrap();
        };
        fs::create_dir(&path).unwrap();
        set_age(5);
        assert!(matches!(Lock::acquire_within(&file, 2), Err(LockError::Held)));
        set_age(60);
        assert!(!is_held(&file));
        let _lock = Lock::acquire_within(&file, 2).unwrap();
        assert!(is_held(&file));
    }

    #[test]
    fn a_lock_that_may_have_been_taken_over_is_not_safe_and_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let lock = Lock::acquire(&file).unwrap();
        assert!(lock.is_safe());
        lock.pulse.lock().unwrap().last -= Duration::from_secs(11);
        assert!(!lock.is_safe());
        lock.pulse.lock().unwrap().last = SystemTime::now();
        assert!(!lock.is_safe());
        drop(lock);
        assert!(lock_path(&file).is_dir());
    }

    #[test]
    fn a_live_lock_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        fs::create_dir(&path).unwrap();
        remove_stale(&path);
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Lock::acquire(&folder.path().join("gone/settings.json")).unwrap_err();
        assert!(error.to_string().contains("gone/settings.json.lock: No such file"), "{error}");
    }
}
