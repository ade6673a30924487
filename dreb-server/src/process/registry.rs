//! The children of the server, so that none outlives it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::process::{Child, Command};

use super::tree::{Leader, TAG_VARIABLE, Tag, Target};
use crate::environment::API_KEY_VARIABLE;

/// How long a kill waits for processes to vanish.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// Registry of the children of one server.
///
/// A child stays listed until its tree is gone, also when it has exited itself and left processes
/// in the background.
#[derive(Debug)]
pub struct Children {
    /// Begins the tag of each child of this registry.
    tag_prefix: String,
    /// Tags this process runs under itself, to be handed down.
    outer_tags: Option<String>,
    /// This process; no child is older.
    server: Leader,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    is_closed: bool,
    entries: HashMap<u64, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    leader: Leader,
    /// Whether the child itself has exited and been waited for.
    is_released: bool,
}

impl Default for Children {
    fn default() -> Self {
        Self::new()
    }
}

impl Children {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        // Asked of the process itself, since that is where children inherit from.
        Self::below(std::env::var(TAG_VARIABLE).ok())
    }

    /// An empty registry of a process that runs under these tags.
    pub(super) fn below(outer_tags: Option<String>) -> Self {
        Self {
            tag_prefix: format!("{}.", uuid::Uuid::new_v4().simple()),
            outer_tags: outer_tags.filter(|tags| !tags.is_empty()),
            server: Leader::new(i32::try_from(std::process::id()).unwrap_or(0)),
            state: Mutex::default(),
        }
    }

    /// Spawns a command in a process group of its own and registers it.
    ///
    /// # Errors
    /// The command cannot be started, or [`kill_all`](Self::kill_all) was called.
    pub fn spawn(self: &Arc<Self>, command: &mut Command) -> io::Result<(Child, ProcessTree)> {
        let id = {
            let mut state = self.state();
            if state.is_closed {
                return Err(closed());
            }
            state.next_id += 1;
            state.next_id
        };
        let tag = format!("{}{id}", self.tag_prefix);
        let tags = self.outer_tags.as_ref().map_or_else(|| tag.clone(), |outer| format!("{outer}:{tag}"));
        let child = command.process_group(0).env(TAG_VARIABLE, tags).env_remove(API_KEY_VARIABLE).spawn()?;
        // A child that was not waited for has a pid; 0 names no process and is never reached.
        let leader = Leader::new(child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0));
        let tree = ProcessTree { children: Arc::clone(self), id, leader, tag, is_released: false, is_gone: false };

        let mut state = self.state();
        // Groups that died out since are forgotten before their numbers are given away again.
        state.entries.retain(|_, entry| !entry.is_released || entry.leader.has_group());
        if state.is_closed {
            drop(state);
            return Err(closed());
        }
        state.entries.insert(id, Entry { leader, is_released: false });
        drop(state);
        Ok((child, tree))
    }

    /// Number of children whose trees are not known to be gone.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().entries.len()
    }

    /// Whether no child is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Kills every tree, those in the background too, and refuses new children from now on. Returns
    /// the number of processes that could not be killed within a second.
    ///
    /// Blocks; within a runtime use [`shut_down`](Self::shut_down).
    pub fn kill_all(&self) -> usize {
        let leaders = {
            let mut state = self.state();
            state.is_closed = true;
            state.entries.drain().map(|(_, entry)| entry.leader).collect()
        };
        Target { leaders, tag: Tag::Prefix(self.tag_prefix.clone()), since: self.server }.kill(KILL_PATIENCE)
    }

    /// [`kill_all`](Self::kill_all) off the runtime thread.
    pub async fn shut_down(self: Arc<Self>) -> usize {
        tokio::task::spawn_blocking(move || self.kill_all()).await.unwrap_or(0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; the state is whole in any case.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> io::Error {
    io::Error::other("the server is shutting down")
}

/// A child and all its descendants. Dropping it kills them, unless it was released.
#[derive(Debug)]
pub struct ProcessTree {
    children: Arc<Children>,
    id: u64,
    leader: Leader,
    tag: String,
    is_released: bool,
    /// Whether a kill has seen the last process gone.
    is_gone: bool,
}

impl ProcessTree {
    /// Kills the tree and waits up to a second for it to be gone. Returns the number of processes
    /// that are left. The child itself still has to be waited for.
    pub async fn kill(&mut self) -> usize {
        let target = self.target();
        // An error here is a panic in the task, or the runtime ending; then the drop tries again.
        let left = tokio::task::spawn_blocking(move || target.kill(KILL_PATIENCE)).await;
        self.is_gone = matches!(left, Ok(0));
        left.unwrap_or(1)
    }

    /// Takes note that the child itself has exited. Its descendants, unless killed, live on in the
    /// background until the server ends.
    pub fn release(mut self) {
        self.is_released = true;
        let mut state = self.children.state();
        if !self.is_gone && self.leader.has_group() {
            if let Some(entry) = state.entries.get_mut(&self.id) {
                entry.is_released = true;
            }
        } else {
            state.entries.remove(&self.id);
        }
    }

    fn target(&self) -> Target {
        Target { leaders: vec![self.leader], tag: Tag::Exact(self.tag.clone()), since: self.leader }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        if !self.is_released {
            // Without waiting, so that a runtime thread is held up for a scan of /proc only.
            self.target().kill(Duration::ZERO);
            self.children.state().entries.remove(&self.id);
        }
    }
}
