//! The tasks behind a client: one reads, one writes, one collects standard error, and one watches
//! over them and the process. All end when the watching task ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use protocol_schema::Event;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::process::ChildStderr;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::child::{self, ServerProcess};
use crate::decode::{self, Answer, EVENT_ROOM, Incoming, LARGE};
use crate::error::{Cause, ExitNotice, ExitReason};
use crate::events::{ClientEvent, MalformedLine, ServerEvent};
use crate::hub::Hub;
use crate::lines::{Line, LineSplitter};
use crate::options::{EventDetail, RpcClientOptions, StderrCallback};
use crate::partial::{Accumulator, PartialMessage};
use crate::pending::{Pending, RequestId};
use crate::stderr::StderrTail;

/// How long what a dead process left in its pipes may take to read, should a stranger hold the
/// other end open.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Commands that may wait for the writer; the byte budget usually comes first.
const WRITE_QUEUE: usize = 1024;

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// Every event before this position was written before the answer, every other one after it.
    pub(crate) position: u64,
}

pub(crate) type ReplySender = oneshot::Sender<Result<Reply, Cause>>;

/// A command on its way to the server.
#[derive(Debug)]
pub(crate) struct OutLine {
    pub(crate) bytes: Vec<u8>,
    /// Its share of the write budget, given back when it is written.
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// What the handles and the tasks have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pending: Mutex<Pending<ReplySender, Cause>>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) outgoing: mpsc::Sender<OutLine>,
    pub(crate) write_budget: Arc<Semaphore>,
    pub(crate) write_budget_bytes: usize,
    pub(crate) stderr: StderrTail,
    pub(crate) exit: watch::Sender<Option<ExitNotice>>,
    pub(crate) pid: Option<u32>,
    partial: Mutex<Option<PartialMessage>>,
    stop: watch::Sender<bool>,
    /// Set once the end has begun: nobody need ask for an answer any more.
    ending: AtomicBool,
    /// Set once the other side is gone: what it left is all that can still come.
    draining: AtomicBool,
    soft_limit: usize,
    hard_limit: usize,
    detail: EventDetail,
    max_line: usize,
    grace: Duration,
}

/// The other side.
pub(crate) struct Connection {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    pub(crate) process: Option<ServerProcess>,
    pub(crate) stderr: Option<ChildStderr>,
}

impl Shared {
    pub(crate) fn new(options: &RpcClientOptions, pid: Option<u32>) -> (Arc<Self>, mpsc::Receiver<OutLine>) {
        let (outgoing, lines) = mpsc::channel(WRITE_QUEUE);
        let write_budget_bytes = options.write_budget.clamp(1, u32::MAX as usize);
        let shared = Self {
            pending: Mutex::new(Pending::new()),
            hub: Arc::new(Hub::new(options.update_capacity, options.event_budget / 4)),
            outgoing,
            write_budget: Arc::new(Semaphore::new(write_budget_bytes)),
            write_budget_bytes,
            stderr: StderrTail::default(),
            exit: watch::Sender::new(None),
            pid,
            partial: Mutex::new(None),
            stop: watch::Sender::new(false),
            ending: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            soft_limit: options.event_budget,
            hard_limit: options.event_budget.saturating_mul(4),
            detail: options.event_detail,
            max_line: options.max_line,
            grace: options.grace_period,
        };
        (Arc::new(shared), lines)
    }

    fn pending(&self) -> MutexGuard<'_, Pending<ReplySender, Cause>> {
        // Whole after every step, see the type.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, reply: ReplySender) -> Result<RequestId, Cause> {
        let id = self.pending().register(reply)?;
        // A reader that stopped for want of room goes on to find the answer.
        self.hub.room.notify_one();
        Ok(id)
    }

    pub(crate) fn forget(&self, id: RequestId) {
        self.pending().forget(id);
    }

    pub(crate) fn late_answers(&self) -> u64 {
        self.pending().late()
    }

    /// The answer that is streaming.
    pub(crate) fn partial(&self) -> Option<PartialMessage> {
        self.partial.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_partial(&self, partial: Option<&PartialMessage>) {
        *self.partial.lock().unwrap_or_else(PoisonError::into_inner) = partial.cloned();
    }

    /// Refuses calls from now on and begins the end.
    pub(crate) fn request_stop(&self) {
        self.fail_calls(&Cause::Closed);
        self.stop.send_replace(true);
    }

    fn fail_calls(&self, cause: &Cause) {
        let waiting = self.pending().close(cause.clone());
        for reply in waiting {
            // A caller that has just gone needs no answer.
            let _ = reply.send(Err(cause.clone()));
        }
    }

    /// From here on more is read than usual, so that a server that writes its last words can end.
    fn begin_end(&self) {
        self.ending.store(true, Ordering::Release);
        self.hub.room.notify_one();
    }

    /// From here on everything is read, whoever is slow: no more than a pipe holds can follow.
    fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.hub.room.notify_one();
    }

    /// The last step. Only the first notice counts.
    fn finish(&self, notice: &ExitNotice) {
        self.fail_calls(&Cause::Exited(notice.clone()));
        self.set_partial(None);
        self.hub.end(notice);
        self.exit.send_if_modified(|exit| exit.is_none() && exit.replace(notice.clone()).is_none());
    }

    /// Waits until no subscriber leaves too much unread.
    async fn wait_for_room(&self) {
        loop {
            let limit = if self.draining.load(Ordering::Acquire) {
                usize::MAX
            } else if self.ending.load(Ordering::Acquire) || !self.pending().is_empty() {
                self.hard_limit
            } else {
                self.soft_limit
            };
            if self.hub.backlog() <= limit {
                return;
            }
            // A change after the look above is kept as a permit, so it cannot be missed.
            self.hub.room.notified().await;
        }
    }

    /// Takes one line in.
    async fn dispatch(&self, accumulator: &mut Accumulator, line: Line) {
        let line = match line {
            Line::Text(line) if line.is_empty() => return,
            Line::Text(line) => line,
            Line::TooLong(length) => {
                return self.report(&[], length, format!("longer than the limit of {} bytes", self.max_line));
            }
        };
        let detail = self.detail;
        let incoming = offload(line.len(), {
            let line = line.clone();
            move || decode::decode(&line, detail)
        });
        match incoming.await {
            Incoming::Response { id, answer } => self.answer(id, answer, &line),
            Incoming::Malformed { error } => self.report(&line, line.len(), error),
            Incoming::Event { event, bytes } => self.take_event(accumulator, *event, bytes, &line),
        }
    }

    fn answer(&self, id: RequestId, answer: Answer, line: &Bytes) {
        let (reply, given) = {
            let mut pending = self.pending();
            (pending.complete(id), pending.was_given(id))
        };
        match reply {
            // The caller may go this very moment; then nobody needs the answer.
            Some(reply) => drop(reply.send(Ok(Reply { answer, position: self.hub.position() }))),
            None if given => tracing::debug!(%id, "an answer came too late"),
            None => self.report(line, line.len(), "a response to a request that was never sent".to_owned()),
        }
    }

    fn take_event(&self, accumulator: &mut Accumulator, event: Event, bytes: usize, line: &Bytes) {
        if !accumulator.apply(&event) {
            // The beginning of this answer was not seen; a server that repeats it makes that good.
            accumulator.start_from(decode::whole_message(line));
        }
        let is_update = matches!(event, Event::MessageUpdate(_) | Event::ToolExecutionUpdate(_));
        let partial = accumulator.current();
        self.set_partial(partial);
        let partial = if matches!(event, Event::MessageUpdate(_)) { partial.cloned() } else { None };
        self.hub.publish(ClientEvent::Event(ServerEvent::new(event, partial)), bytes, is_update);
    }

    fn report(&self, line: &[u8], length: usize, error: String) {
        tracing::warn!(length, "the server wrote a malformed line");
        let line = MalformedLine::new(line, length, error);
        let bytes = EVENT_ROOM + line.line.len();
        self.hub.publish(ClientEvent::Malformed(Arc::new(line)), bytes, false);
    }
}

/// Runs `work` here, or on a thread for blocking work if it is about many bytes.
pub(crate) async fn offload<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes < LARGE {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: the runtime is going down and takes this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

async fn read_lines(shared: &Shared, mut reader: impl AsyncRead + Unpin) -> io::Result<()> {
    let mut lines = LineSplitter::new(shared.max_line);
    let mut accumulator = Accumulator::default();
    loop {
        while let Some(line) = lines.next_line() {
            shared.dispatch(&mut accumulator, line).await;
        }
        // Only here, with nothing read left behind: an answer never waits for a slow subscriber.
        shared.wait_for_room().await;
        if lines.fill(&mut reader).await? == 0 {
            if let Some(line) = lines.rest() {
                shared.dispatch(&mut accumulator, line).await;
            }
            return Ok(());
        }
        // On a single thread the subscribers shall get their turn between two chunks.
        tokio::task::yield_now().await;
    }
}

/// Writes until it is told to stop, then what is queued, then closes the pipe.
async fn write_lines(
    mut writer: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<OutLine>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut stopping = false;
    loop {
        let line = tokio::select! {
            biased;
            line = lines.recv() => line,
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                lines.close();
                continue;
            }
        };
        let Some(line) = line else { break };
        writer.write_all(&line.bytes).await?;
        if lines.is_empty() {
            writer.flush().await?;
        }
    }
    writer.flush().await?;
    writer.shutdown().await
}

/// How a task ended.
enum Ended {
    Reader(io::Result<()>),
    Writer(io::Result<()>),
    Stderr,
}

/// The reader, the writer and the collector of standard error.
struct Tasks {
    set: JoinSet<Ended>,
    /// `Some` once the reader has ended.
    reader: Option<io::Result<()>>,
    /// What made the writer fail.
    write_error: Option<io::Error>,
}

impl Tasks {
    /// Waits for one task to end. `true` if the connection is of no use any more.
    async fn next(&mut self) -> bool {
        match self.set.join_next().await {
            Some(Ok(Ended::Reader(result))) => {
                self.reader = Some(result);
                true
            }
            Some(Ok(Ended::Writer(Err(error)))) => {
                self.write_error = Some(error);
                true
            }
            Some(Ok(Ended::Writer(Ok(())) | Ended::Stderr)) => false,
            Some(Err(error)) => {
                self.write_error = Some(io::Error::other(error));
                true
            }
            None => true,
        }
    }

    async fn all_ended(&mut self) {
        while !self.set.is_empty() {
            self.next().await;
        }
    }

    async fn reader_ended(&mut self) {
        while self.reader.is_none() && !self.set.is_empty() {
            self.next().await;
        }
    }
}

/// Makes sure that everyone hears of the end, also if the runtime drops the watching task.
struct Farewell(Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let notice = ExitNotice::new(ExitReason::RuntimeStopped, *self.0.stop.borrow(), self.0.stderr.text());
        self.0.finish(&notice);
    }
}

/// Runs the connection to its end.
pub(crate) async fn drive(
    shared: Arc<Shared>,
    connection: Connection,
    lines: mpsc::Receiver<OutLine>,
    on_stderr_line: Option<StderrCallback>,
) {
    // Before the process, so that it is dropped after it.
    let farewell = Farewell(Arc::clone(&shared));
    let Connection { reader, writer, mut process, stderr } = connection;
    let mut stop = shared.stop.subscribe();
    let mut tasks = Tasks { set: JoinSet::new(), reader: None, write_error: None };
    let task_shared = Arc::clone(&shared);
    tasks.set.spawn(async move { Ended::Reader(read_lines(&task_shared, reader).await) });
    let writer_stop = shared.stop.subscribe();
    tasks.set.spawn(async move { Ended::Writer(write_lines(writer, lines, writer_stop).await) });
    if let Some(stderr) = stderr {
        let task_shared = Arc::clone(&shared);
        tasks.set.spawn(async move {
            task_shared.stderr.collect(stderr, on_stderr_line).await;
            Ended::Stderr
        });
    }

    let mut status = None;
    loop {
        tokio::select! {
            biased;
            ended = wait_for(&mut process) => {
                status = Some(ended);
                break;
            }
            _ = stop.wait_for(|stop| *stop) => break,
            lost = tasks.next() => if lost { break },
        }
    }
    let requested = *shared.stop.borrow();
    shared.begin_end();
    // Closes the server's standard input, whatever brought us here.
    shared.stop.send_replace(true);
    let reason = match &mut process {
        Some(process) => {
            let status = match status {
                Some(status) => status,
                None => process.terminate(shared.grace).await,
            };
            shared.drain();
            // Whether it was all read in time makes no difference to what is told.
            let _ = tokio::time::timeout(DRAIN_TIME, tasks.all_ended()).await;
            child::reason(status)
        }
        None => {
            let _ = tokio::time::timeout(shared.grace, tasks.reader_ended()).await;
            match (tasks.reader.take(), tasks.write_error.take()) {
                (Some(Err(error)), _) | (None, Some(error)) => ExitReason::Io(error.into()),
                (Some(Ok(())) | None, _) => ExitReason::Disconnected,
            }
        }
    };
    tasks.set.shutdown().await;
    let notice = ExitNotice::new(reason, requested, shared.stderr.text());
    tracing::debug!(%requested, "the connection has ended");
    shared.finish(&notice);
    drop(farewell);
}

/// The end of the process; never if there is none.
async fn wait_for(process: &mut Option<ServerProcess>) -> io::Result<std::process::ExitStatus> {
    match process {
        Some(process) => process.wait().await,
        None => std::future::pending().await,
    }
}
