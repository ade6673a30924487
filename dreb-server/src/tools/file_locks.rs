//! One change at a time to a file, in the order of the calls; different files in parallel.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::blocking::aborted;
use super::path::resolve;
use super::{ToolContext, ToolError};

/// The locks of this process. Files are shared by everything that runs in it.
static LOCKS: LazyLock<FileLocks> = LazyLock::new(FileLocks::default);

/// Locks by real path. Cheap to clone; clones share the locks.
#[derive(Debug, Clone, Default)]
pub struct FileLocks {
    /// Held while a call finds out its file and joins that file's queue, so that calls join in their order.
    entrance: Arc<AsyncMutex<()>>,
    /// A lock is in the map while somebody holds or awaits it.
    locks: Arc<Mutex<HashMap<PathBuf, Arc<AsyncMutex<()>>>>>,
}

/// A place in the order of the calls, taken at once.
pub struct Turn {
    locks: FileLocks,
    entrance: BoxFuture<'static, OwnedMutexGuard<()>>,
    entered: Option<OwnedMutexGuard<()>>,
}

/// The right to change a file, until it is dropped.
#[derive(Debug)]
pub struct FileLock {
    // Fields drop in this order: the lock is free before its entry goes.
    _guard: OwnedMutexGuard<()>,
    _entry: Entry,
    /// The file that was asked for.
    pub path: PathBuf,
}

/// A share in a lock of the map. The last one takes it out.
#[derive(Debug)]
struct Entry {
    locks: FileLocks,
    key: PathBuf,
    lock: Option<Arc<AsyncMutex<()>>>,
}

impl FileLocks {
    /// The locks that all tools of this process share.
    #[must_use]
    pub fn of_process() -> Self {
        LOCKS.clone()
    }

    /// Takes the next place. Calls get their files in the order of this, not of [`Turn::lock`].
    #[must_use]
    pub fn turn(&self) -> Turn {
        // `unconstrained`: a spent task budget must not keep the poll from joining the queue.
        let mut entrance = tokio::task::unconstrained(Arc::clone(&self.entrance).lock_owned()).boxed();
        let entered = (&mut entrance).now_or_never();
        Turn { locks: self.clone(), entrance, entered }
    }

    fn entry(&self, key: PathBuf) -> (Entry, Arc<AsyncMutex<()>>) {
        let mut map = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = Arc::clone(map.entry(key.clone()).or_default());
        (Entry { locks: self.clone(), key, lock: Some(Arc::clone(&lock)) }, lock)
    }
}

impl Turn {
    /// Waits for the file that the `path` argument of a call names.
    ///
    /// # Errors
    ///
    /// The call is cancelled before the file is free.
    pub async fn lock_argument(self, argument: &str, context: &ToolContext) -> Result<FileLock, ToolError> {
        let (argument, cwd) = (argument.to_owned(), context.cwd.clone());
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => Err(aborted()),
            lock = self.lock(move || resolve(&argument, &cwd)) => lock,
        }
    }

    /// Waits for the file that `find` names; `find` may block.
    ///
    /// # Errors
    ///
    /// When `find` panics.
    pub async fn lock(self, find: impl FnOnce() -> PathBuf + Send + 'static) -> Result<FileLock, ToolError> {
        let entered = match self.entered {
            Some(guard) => guard,
            None => self.entrance.await,
        };
        let (path, key) = tokio::task::spawn_blocking(move || {
            let path = find();
            let key = real_path(&path);
            (path, key)
        })
        .await
        .map_err(|error| ToolError::new(format!("The tool failed unexpectedly: {error}")))?;

        let (entry, lock) = self.locks.entry(key);
        let mut waiting = tokio::task::unconstrained(lock.lock_owned()).boxed();
        let locked = (&mut waiting).now_or_never();
        drop(entered);
        let guard = match locked {
            Some(guard) => guard,
            None => waiting.await,
        };
        Ok(FileLock { _guard: guard, _entry: entry, path })
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").field("entered", &self.entered.is_some()).finish_non_exhaustive()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut map = self.locks.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Shares are only made under the map's lock, so the count cannot grow meanwhile, and everybody
        // lets go of their guard or place in the queue before their entry.
        self.lock = None;
        if map.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            map.remove(&self.key);
        }
    }
}

/// The path with all symbolic links followed, as far as it exists.
fn real_path(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let Ok(real) = ancestor.canonicalize() {
            return match path.strip_prefix(ancestor) {
                Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
                _ => real,
            };
        }
    }
    path.to_path_buf()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pretty_assertions::assert_eq;

    use super::*;

    fn open_entries(locks: &FileLocks) -> usize {
        locks.locks.lock().unwrap().len()
    }

    #[tokio::test]
    async fn one_file_under_two_names_is_changed_in_the_order_of_the_calls() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();

        let locks = FileLocks::default();
        let first = locks
            .turn()
            .lock({
                let file = file.clone();
                move || file
            })
            .await
            .unwrap();
        let turns: Vec<Turn> = (0..20).map(|_| locks.turn()).collect();
        let order = Arc::new(Mutex::new(Vec::new()));
        // Started in reverse: the order is that of the turns.
        let tasks: Vec<_> = turns
            .into_iter()
            .enumerate()
            .rev()
            .map(|(index, turn)| {
                let (order, path) = (Arc::clone(&order), if index % 2 == 0 { file.clone() } else { link.clone() });
                tokio::spawn(async move {
                    let _lock = turn.lock(move || path).await.unwrap();
                    order.lock().unwrap().push(index);
                })
            })
            .collect();
        assert_eq!(*order.lock().unwrap(), Vec::<usize>::new());
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
        assert_eq!(open_entries(&locks), 0);
    }

    #[tokio::test]
    async fn different_files_are_held_at_once() {
        let locks = FileLocks::default();
        let a = locks.turn().lock(|| "/none/a".into()).await.unwrap();
        let b = locks.turn().lock(|| "/none/b".into()).await.unwrap();
        assert_eq!(open_entries(&locks), 2);
        drop((a, b));
        assert_eq!(open_entries(&locks), 0);
    }

    #[tokio::test]
    async fn a_waiter_that_gives_up_leaves_nothing_and_lets_nobody_through() {
        let locks = FileLocks::default();
        let held = locks.turn().lock(|| "/none/a".into()).await.unwrap();
        let given_up = locks.turn();
        let mut waiting = Box::pin(locks.turn().lock(|| "/none/a".into()));
        drop(given_up);
        // Polled until it has joined the queue of the file, which shows in the count of the shares.
        while Arc::strong_count(&locks.locks.lock().unwrap()[Path::new("/none/a")]) < 4 {
            assert!(futures_util::poll!(&mut waiting).is_pending());
            tokio::task::yield_now().await;
        }
        drop(waiting);
        assert_eq!(open_entries(&locks), 1);
        drop(held);
        assert_eq!(open_entries(&locks), 0);
    }
}
