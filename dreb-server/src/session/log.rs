//! The store of one session.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};

use protocol_schema::Extra;
use tokio::sync::oneshot;

use super::entry::{Entry, EntryBody, FORMAT_VERSION, SessionHeader, SessionTag};
use super::ids;
use super::names::{directory, file_name, iso_timestamp, now_ms};
use super::rebuild::{SessionContext, build_context};
use super::tree::SessionTree;
use super::writer::{RealDisk, Writer};

/// Why a session could not be stored.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The disk refused. The entry is kept and written together with a later one.
    #[error("Cannot write session file {}: {source}", path.display())]
    Write {
        /// The session file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The store was closed, or its thread is gone.
    #[error("The session is closed")]
    Closed,
    /// No thread could be started.
    #[error("Cannot start the session writer: {0}")]
    Thread(Arc<io::Error>),
}

/// How to begin a session.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Working directory of the session, absolute.
    pub cwd: PathBuf,
    /// A folder of the user's choice, used without a subfolder; relative to `cwd`.
    pub session_dir: Option<PathBuf>,
    /// The agent folder, where sessions are if `session_dir` says nothing.
    pub agent_dir: PathBuf,
    /// Whether it is stored at all.
    pub persist: bool,
    /// The session file it came from.
    pub parent_session: Option<String>,
    /// The agent type of a subagent's session.
    pub agent_type: Option<String>,
}

/// The append-only store of one session.
///
/// Entries go into the tree at once; a thread of its own brings them to the disk in the order they
/// were given. Until the first answer the lines stand in `<name>.jsonl.pending`, and a session in
/// which only the model and the thinking level were set leaves no file.
///
/// Dropping it lets the thread finish what is queued; [`close`](Self::close) waits for that.
pub struct SessionLog {
    header: SessionHeader,
    path: Option<PathBuf>,
    folder: Option<PathBuf>,
    tree: SessionTree,
    queue: Option<mpsc::Sender<Order>>,
}

impl fmt::Debug for SessionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionLog")
            .field("id", &self.header.id)
            .field("path", &self.path)
            .field("entries", &self.tree.entries().len())
            .finish_non_exhaustive()
    }
}

type Answer = oneshot::Sender<Result<(), SessionError>>;

/// What the thread is told.
enum Order {
    Append(Arc<Entry>, Answer),
    Flush(Answer),
    Close(Answer),
}

/// An entry that was added.
#[derive(Debug)]
pub struct Appended {
    /// The entry's id.
    pub id: String,
    /// Resolves when the entry is on disk. Nobody has to await it.
    pub durable: Durable,
}

/// Resolves when what it was made for is on disk, or with the reason why it is not.
#[derive(Debug)]
#[must_use = "a failure to store goes unnoticed"]
pub struct Durable(State);

#[derive(Debug)]
enum State {
    /// Nothing is stored.
    Memory,
    Waiting(oneshot::Receiver<Result<(), SessionError>>),
}

impl Future for Durable {
    type Output = Result<(), SessionError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Memory => Poll::Ready(Ok(())),
            State::Waiting(receiver) => {
                Pin::new(receiver).poll(context).map(|result| result.unwrap_or(Err(SessionError::Closed)))
            }
        }
    }
}

impl SessionLog {
    /// Begins a new session. Nothing is read or written yet.
    ///
    /// # Errors
    ///
    /// The writer's thread cannot be started.
    pub fn create(options: LogOptions) -> Result<Self, SessionError> {
        let timestamp = iso_timestamp(now_ms());
        let header = SessionHeader {
            kind: SessionTag::Session,
            version: FORMAT_VERSION,
            id: ids::session_id(),
            timestamp,
            cwd: options.cwd.to_string_lossy().into_owned(),
            parent_session: options.parent_session,
            agent_type: options.agent_type,
            extra: Extra::new(),
        };
        if !options.persist {
            return Ok(Self { header, path: None, folder: None, tree: SessionTree::new(), queue: None });
        }
        let folder = match options.session_dir {
            Some(folder) => options.cwd.join(folder),
            None => directory(&options.agent_dir, &options.cwd),
        };
        let path = folder.join(file_name(&header.timestamp, &header.id));
        let writer = Writer::new(RealDisk, path.clone(), header.clone());
        let queue = Self::start(writer, path.clone())?;
        Ok(Self { header, path: Some(path), folder: Some(folder), tree: SessionTree::new(), queue: Some(queue) })
    }

    fn start(writer: Writer<RealDisk>, path: PathBuf) -> Result<mpsc::Sender<Order>, SessionError> {
        // Without a bound, for adding an entry must not wait; each order is a pointer to an entry
        // that the tree keeps in memory anyway.
        let (queue, orders) = mpsc::channel();
        std::thread::Builder::new()
            .name("session-writer".into())
            .spawn(move || Thread { writer, path }.run(&orders))
            .map_err(|error| SessionError::Thread(Arc::new(error)))?;
        Ok(queue)
    }

    /// The session's id.
    #[must_use]
    pub fn session_id(&self) -> &str {
        &self.header.id
    }

    /// The first line of the file.
    #[must_use]
    pub fn header(&self) -> &SessionHeader {
        &self.header
    }

    /// The session file, which may not exist yet; `None` if the session is not stored.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// The folder of the session file; `None` if the session is not stored.
    #[must_use]
    pub fn folder(&self) -> Option<PathBuf> {
        self.folder.clone()
    }

    /// Adds an entry behind the leaf and makes it the leaf.
    pub fn append(&mut self, body: EntryBody) -> Appended {
        let id = ids::entry_id(|id| self.tree.get(id).is_some());
        let entry = Arc::new(Entry {
            id: id.clone(),
            parent_id: self.tree.leaf().map(|leaf| leaf.id.clone()),
            timestamp: iso_timestamp(now_ms()),
            body,
            extra: Extra::new(),
        });
        self.tree.push(Arc::clone(&entry));
        Appended { id, durable: self.order(|answer| Order::Append(entry, answer)) }
    }

    /// Resolves when everything added so far is on disk.
    pub fn flush(&self) -> Durable {
        self.order(Order::Flush)
    }

    /// Writes what is left, makes it durable against a power failure and ends the writer.
    ///
    /// Entries added afterwards are kept in memory only, and their futures say so.
    pub fn close(&self) -> Durable {
        self.order(Order::Close)
    }

    fn order(&self, order: impl FnOnce(Answer) -> Order) -> Durable {
        let Some(queue) = &self.queue else { return Durable(State::Memory) };
        let (answer, receiver) = oneshot::channel();
        // If the thread is gone the answer's drop is the message.
        let _ = queue.send(order(answer));
        Durable(State::Waiting(receiver))
    }

    /// The tree of entries.
    #[must_use]
    pub fn tree(&self) -> &SessionTree {
        &self.tree
    }

    /// Moves the leaf without storing anything; `None` is the place before the first entry. Returns
    /// whether there is such an entry.
    pub fn set_leaf(&mut self, id: Option<&str>) -> bool {
        self.tree.set_leaf(id)
    }

    /// All entries of all branches, in file order.
    #[must_use]
    pub fn entries(&self) -> &[Arc<Entry>] {
        self.tree.entries()
    }

    /// Id of the entry that the next one follows.
    #[must_use]
    pub fn leaf(&self) -> Option<&str> {
        self.tree.leaf().map(|entry| entry.id.as_str())
    }

    /// The entries from the leaf back to its root, the leaf first.
    pub fn branch(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.tree.branch()
    }

    /// The conversation up to the leaf.
    #[must_use]
    pub fn build_context(&self) -> SessionContext {
        build_context(&self.tree.path_to_leaf())
    }
}

/// The writer's thread.
struct Thread {
    writer: Writer<RealDisk>,
    path: PathBuf,
}

impl Thread {
    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        while let Ok(first) = orders.recv() {
            if self.handle(std::iter::once(first).chain(orders.try_iter())) {
                return;
            }
        }
        let failure = self.writer.attempt().failure.or_else(|| self.writer.sync().err());
        if let Some(error) = failure {
            tracing::warn!(path = %self.path.display(), %error, "session file is incomplete");
        }
    }

    /// Handles orders that came together with one attempt; whether one of them was to close.
    fn handle(&mut self, orders: impl Iterator<Item = Order>) -> bool {
        // Each answer with the number of entries that must be on disk for it.
        let mut answers: Vec<(usize, Answer)> = Vec::new();
        let mut closing = Vec::new();
        for order in orders {
            match order {
                Order::Append(entry, answer) => {
                    self.writer.push(entry);
                    answers.push((self.writer.entries(), answer));
                }
                Order::Flush(answer) => answers.push((self.writer.entries(), answer)),
                Order::Close(answer) => closing.push(answer),
            }
        }
        let progress = self.writer.attempt();
        let failure = progress.failure.map(|error| self.failure(error));
        for (needed, answer) in answers {
            let result = match &failure {
                Some(error) if needed > progress.stored => Err(error.clone()),
                _ => Ok(()),
            };
            let _ = answer.send(result);
        }
        if closing.is_empty() {
            return false;
        }
        let synced = self.writer.sync().map_err(|error| self.failure(error));
        let result = failure.map_or(synced, Err);
        for answer in closing {
            let _ = answer.send(result.clone());
        }
        true
    }

    fn failure(&self, error: io::Error) -> SessionError {
        SessionError::Write { path: self.path.clone(), source: Arc::new(error) }
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
