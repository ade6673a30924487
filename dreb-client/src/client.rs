//! The handle.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use protocol_schema::envelope::encode_request;
use protocol_schema::session::{GetVersion, Version};
use protocol_schema::{CAPABILITY_EVENT_DETAIL_DELTA, Command};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::child::ServerProcess;
use crate::decode::{Answer, from_json};
use crate::driver::{Connection, OutLine, Reply, Shared, drive, offload};
use crate::error::{CallError, Cause, ExitNotice, StartError};
use crate::events::Events;
use crate::hub::Interest;
use crate::options::RpcClientOptions;
use crate::partial::PartialMessage;
use crate::pending::RequestId;

/// A running server. Cheap to clone; all clones speak to the same one.
///
/// When the last clone is dropped the server is ended in the background, as
/// [`shutdown`](Self::shutdown) does it, by the runtime it was started in. If that runtime is dropped
/// first, the server and all that descends from it are killed at once.
#[derive(Clone)]
pub struct RpcClient {
    handle: Arc<Handle>,
}

/// Ends the server when the last client goes; the tasks hold only [`Shared`].
struct Handle {
    shared: Arc<Shared>,
    version: OnceLock<Version>,
    span: tracing::Span,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.request_stop();
    }
}

/// Forgets a request when its future is dropped or done.
struct Registered<'a> {
    shared: &'a Shared,
    id: RequestId,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}

/// An answer that went well.
pub(crate) struct Success {
    id: RequestId,
    data: Option<bytes::Bytes>,
    /// See [`Reply::position`].
    pub(crate) position: u64,
}

impl RpcClient {
    /// Starts a server and waits until it has answered a first command.
    ///
    /// # Errors
    ///
    /// The binary is not found or cannot be executed, the server ends or stays silent, or its first
    /// answer is malformed. No process is left behind.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends a server that was already started.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, and within one that lacks I/O or time (`enable_all`).
    pub async fn start(options: RpcClientOptions) -> Result<Self, StartError> {
        Self::start_with_events(options).await.map(|(client, _)| client)
    }

    /// Like [`start`](Self::start), with a subscription that also has what happens while the server
    /// starts up.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// As [`start`](Self::start).
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_with_events(options: RpcClientOptions) -> Result<(Self, Events), StartError> {
        let (process, pipes) = ServerProcess::spawn(&options).await?;
        let connection = Connection {
            reader: Box::new(pipes.stdout),
            writer: Box::new(pipes.stdin),
            process: Some(process),
            stderr: Some(pipes.stderr),
        };
        Self::connect(connection, &options).await
    }

    /// Speaks to a server that somebody else runs, over any pair of streams: a socket, a channel of
    /// an SSH library, a test. Waits until the server has answered a first command.
    ///
    /// Of the options only those about the connection count: `event_detail`, `start_timeout`,
    /// `grace_period` and the limits. A server that was not started with `--event-detail delta`
    /// works as well.
    ///
    /// # Errors
    ///
    /// The peer closes the connection or stays silent, or its first answer is malformed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the streams.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, and within one that lacks time.
    pub async fn from_streams<R, W>(reader: R, writer: W, options: RpcClientOptions) -> Result<Self, StartError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let connection = Connection { reader: Box::new(reader), writer: Box::new(writer), process: None, stderr: None };
        Self::connect(connection, &options).await.map(|(client, _)| client)
    }

    async fn connect(connection: Connection, options: &RpcClientOptions) -> Result<(Self, Events), StartError> {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
        let pid = connection.process.as_ref().and_then(ServerProcess::id);
        let span = tracing::info_span!("dreb_client", client, pid);
        let (shared, lines) = Shared::new(options, pid);
        let events = Events::new(&shared.hub, Interest::Joined);
        // Not held: it ends when the handle is dropped, in its own time.
        tokio::spawn(
            drive(Arc::clone(&shared), connection, lines, options.on_stderr_line.clone()).instrument(span.clone()),
        );
        let client = Self { handle: Arc::new(Handle { shared, version: OnceLock::new(), span }) };
        match client.call_with_timeout(GetVersion {}, Some(options.start_timeout)).await {
            Ok(version) => drop(client.handle.version.set(version)),
            // A server that does not know the command is alive all the same.
            Err(CallError::Failed { .. }) => {}
            Err(CallError::Timeout { after, .. }) => {
                let stderr_tail = client.stderr_tail();
                return Err(StartError::HandshakeTimeout { after, stderr_tail });
            }
            Err(CallError::Exited(notice)) => return Err(StartError::EarlyExit(notice)),
            Err(error) => return Err(StartError::Protocol(error)),
        }
        Ok((client, events))
    }

    /// Sends a command and waits for its answer, for as long as the command's own limit says.
    ///
    /// Commands sent one after the other by one task reach the server in that order.
    ///
    /// # Errors
    ///
    /// See [`CallError`]. After [`CallError::Timeout`] the server may still carry the command out.
    ///
    /// # Cancel safety
    ///
    /// Nothing is sent before the future is first polled. Once it was, the command may have been
    /// sent; dropping the future then forgets its answer and nothing else.
    pub async fn call<C: Command>(&self, command: C) -> Result<C::Response, CallError> {
        self.call_with_timeout(command, C::TIMEOUT).await
    }

    /// Like [`call`](Self::call), with another limit; `None` waits for ever.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn call_with_timeout<C: Command>(
        &self,
        command: C,
        limit: Option<Duration>,
    ) -> Result<C::Response, CallError> {
        let success = self.request(&command, limit).await?;
        decode_data(C::NAME, success).await
    }

    /// Sends a command this version has no type for; `fields` are its members beside `id` and
    /// `type`. The answer is the raw `data`, null if there is none.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub async fn call_raw(
        &self,
        name: &str,
        fields: Map<String, Value>,
        limit: Option<Duration>,
    ) -> Result<Value, CallError> {
        let encode = |id: &str| {
            let mut frame = Map::new();
            frame.insert("id".into(), id.into());
            frame.insert("type".into(), name.into());
            frame.extend(fields.into_iter().filter(|(key, _)| key != "id" && key != "type"));
            serde_json::to_vec(&frame)
        };
        let success = self.exchange(name, encode, limit).await?;
        decode_data(name, success).await
    }

    /// Sends a line that is answered by nothing, for example an `extension_ui_response`. Returns
    /// once it is queued.
    ///
    /// # Errors
    ///
    /// [`CallError::Encode`], or the server is gone.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has either queued the line or not touched the connection.
    pub async fn send_raw(&self, line: &Map<String, Value>) -> Result<(), CallError> {
        let bytes = serde_json::to_vec(line)
            .map_err(|source| CallError::Encode { command: "a raw line".to_owned(), source })?;
        if self.queue(bytes).await {
            return Ok(());
        }
        // The connection is about to end, or it has; then there is a cause to tell.
        Err(self.exited().await.into())
    }

    pub(crate) async fn request<C: Command>(&self, command: &C, limit: Option<Duration>) -> Result<Success, CallError> {
        self.exchange(C::NAME, |id| encode_request(id, command), limit).await
    }

    async fn exchange(
        &self,
        name: &str,
        encode: impl FnOnce(&str) -> Result<Vec<u8>, serde_json::Error>,
        limit: Option<Duration>,
    ) -> Result<Success, CallError> {
        let shared = &*self.handle.shared;
        let (reply, answer) = oneshot::channel();
        let id = shared.register(reply)?;
        let _registered = Registered { shared, id };
        let line = encode(&id.to_string()).map_err(|source| CallError::Encode { command: name.to_owned(), source })?;
        let span = tracing::debug_span!(parent: &self.handle.span, "call", command = name, %id);
        let exchange = async {
            tokio::pin!(answer);
            // If it cannot be queued any more the connection is ending, and the answer says how. If
            // the end comes while the queue is full, nobody need wait for the queue.
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                _ = self.queue(line) => {}
            }
            answer.await
        }
        .instrument(span);
        let answer = match limit {
            None => exchange.await,
            Some(limit) => tokio::time::timeout(limit, exchange).await.map_err(|_| CallError::Timeout {
                command: name.to_owned(),
                id: id.to_string(),
                after: limit,
            })?,
        };
        // A sender is never dropped unused; if it were, the connection would be gone.
        let Reply { answer, position } = answer.unwrap_or(Err(Cause::Closed))?;
        let (command, wire_id) = (name.to_owned(), id.to_string());
        match answer {
            Answer::Data(data) => Ok(Success { id, data, position }),
            Answer::Failed(message) => Err(CallError::Failed { command, id: wire_id, message }),
            Answer::Malformed(reason) => Err(CallError::Protocol { command, id: wire_id, reason }),
        }
    }

    /// Hands a line to the writer, when the budget allows. `false` if the writer has ended.
    async fn queue(&self, mut bytes: Vec<u8>) -> bool {
        bytes.push(b'\n');
        let shared = &*self.handle.shared;
        // A line larger than the whole budget takes all of it. The clamp makes the cast exact.
        let share = bytes.len().min(shared.write_budget_bytes) as u32;
        match Arc::clone(&shared.write_budget).acquire_many_owned(share).await {
            Ok(permit) => shared.outgoing.send(OutLine { bytes, _permit: permit }).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Subscribes to everything. Updates may be lost to a slow subscriber, see [`Events`].
    ///
    /// A subscriber gets what comes after it subscribed; without any subscriber events are dropped.
    #[must_use]
    pub fn events(&self) -> Events {
        self.subscribe(Interest::Joined)
    }

    /// Subscribes to everything and loses nothing. A subscriber that stays behind by more than
    /// [`event_budget`](RpcClientOptions::event_budget) slows the server down.
    #[must_use]
    pub fn events_lossless(&self) -> Events {
        self.subscribe(Interest::Lossless)
    }

    /// Subscribes to everything but updates (`message_update`, `tool_execution_update`).
    #[must_use]
    pub fn events_without_updates(&self) -> Events {
        self.subscribe(Interest::MustNotMiss)
    }

    pub(crate) fn subscribe(&self, interest: Interest) -> Events {
        Events::new(&self.handle.shared.hub, interest)
    }

    /// The answer that is streaming now, `None` between answers. It may be ahead of what a
    /// subscriber has read; [`ServerEvent::partial`](crate::ServerEvent::partial) is exact.
    #[must_use]
    pub fn partial(&self) -> Option<PartialMessage> {
        self.handle.shared.partial()
    }

    /// What the server said of its version at the start. `None` if it does not know the command.
    #[must_use]
    pub fn server_version(&self) -> Option<&Version> {
        self.handle.version.get()
    }

    /// Whether the server said that it takes `--event-detail delta`.
    #[must_use]
    pub fn has_delta_events(&self) -> bool {
        self.server_version()
            .and_then(|version| version.capabilities.as_ref())
            .is_some_and(|all| all.iter().any(|one| one == CAPABILITY_EVENT_DETAIL_DELTA))
    }

    /// The server's process id; `None` over streams. With a command prefix it is that command's.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.handle.shared.pid
    }

    /// The end of what the server wrote to standard error, at most 64 KiB.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.handle.shared.stderr.text()
    }

    /// How many answers came after their caller had gone.
    #[must_use]
    pub fn late_answers(&self) -> u64 {
        self.handle.shared.late_answers()
    }

    /// Waits for the server to end, however that comes about.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn exited(&self) -> ExitNotice {
        let mut exit = self.handle.shared.exit.subscribe();
        match exit.wait_for(Option::is_some).await {
            Ok(notice) => match &*notice {
                Some(notice) => notice.clone(),
                // Just seen to be there.
                None => std::future::pending().await,
            },
            // The sender lives as long as `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends the server: its standard input is closed, after the grace period its process group gets
    /// SIGTERM, after another one SIGKILL. Returns once it is gone and reaped, with how it ended; on
    /// Linux nothing that descends from it is left then, unless a command prefix ran it.
    ///
    /// Calls of all clones fail with [`CallError::Closed`] from now on. Shutting down twice, or a
    /// server that has already ended, is no error.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the shutdown goes on without the future.
    pub async fn shutdown(&self) -> ExitNotice {
        self.handle.shared.request_stop();
        self.exited().await
    }
}

impl From<ExitNotice> for CallError {
    fn from(notice: ExitNotice) -> Self {
        if notice.was_requested() { Self::Closed } else { Self::Exited(notice) }
    }
}

/// Reads the `data` of an answer.
pub(crate) async fn decode_data<T: serde::de::DeserializeOwned + Send + 'static>(
    command: &str,
    success: Success,
) -> Result<T, CallError> {
    // An absent `data` is read like null, which some answers may be.
    let data = success.data.unwrap_or_else(|| bytes::Bytes::from_static(b"null"));
    let decoded = offload(data.len(), move || match std::str::from_utf8(&data) {
        Ok(text) => from_json(text).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    });
    decoded.await.map_err(|reason| CallError::Protocol {
        command: command.to_owned(),
        id: success.id.to_string(),
        reason,
    })
}

impl fmt::Debug for RpcClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcClient").field("pid", &self.pid()).finish_non_exhaustive()
    }
}
