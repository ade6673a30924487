//! What a subscriber gets.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use protocol_schema::Event;

use crate::error::ExitNotice;
use crate::hub::{Hub, Interest};
use crate::partial::PartialMessage;

/// Something that happened on the connection. Cheap to clone.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClientEvent {
    /// An event of the server, unknown kinds included.
    Event(ServerEvent),
    /// This subscriber was too slow: exactly so many updates (`message_update`,
    /// `tool_execution_update`) are missing at this place. Nothing else is ever left out.
    Lagged(u64),
    /// The server wrote a line that is no message of the protocol.
    Malformed(Arc<MalformedLine>),
    /// The server has ended. Nothing follows.
    Exited(ExitNotice),
}

impl ClientEvent {
    /// The server's event, if it is one.
    #[must_use]
    pub fn event(&self) -> Option<&Event> {
        match self {
            Self::Event(event) => Some(event),
            _ => None,
        }
    }
}

/// An event of the server; it dereferences to [`Event`]. Cheap to clone.
#[derive(Clone)]
pub struct ServerEvent(Arc<Inner>);

struct Inner {
    event: Event,
    partial: Option<PartialMessage>,
}

impl ServerEvent {
    pub(crate) fn new(event: Event, partial: Option<PartialMessage>) -> Self {
        Self(Arc::new(Inner { event, partial }))
    }

    /// With a `message_update`: the answer as it stands after this very update, also if the server
    /// sent only what is new. `None` for other events, and for an answer whose beginning the client
    /// has not seen.
    #[must_use]
    pub fn partial(&self) -> Option<&PartialMessage> {
        self.0.partial.as_ref()
    }

    /// The event itself; copied if others hold it too.
    #[must_use]
    pub fn into_event(self) -> Event {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.event.clone(), |inner| inner.event)
    }
}

impl Deref for ServerEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.0.event
    }
}

impl fmt::Debug for ServerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.event.fmt(f)
    }
}

/// A line that is no message of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MalformedLine {
    /// The line, without its line feed, at most its first 64 KiB. Invalid UTF-8 is replaced. Empty
    /// if the line was too long to be kept at all.
    pub line: String,
    /// The length of the whole line in bytes.
    pub length: usize,
    /// What is wrong with it.
    pub error: String,
}

/// How much of a malformed line is kept, in bytes.
const KEPT: usize = 64 << 10;

impl MalformedLine {
    pub(crate) fn new(line: &[u8], length: usize, error: String) -> Self {
        let kept = &line[..line.len().min(KEPT)];
        Self { line: String::from_utf8_lossy(kept).into_owned(), length, error }
    }
}

/// A subscription: what happens from its beginning on, in order.
///
/// What must not be missed is never lost, however late it is read. Updates (`message_update`,
/// `tool_execution_update`) are lost, the oldest first, when more than
/// [`update_capacity`](crate::RpcClientOptions::update_capacity) of them wait;
/// [`ClientEvent::Lagged`] stands where they are missing. A subscription from
/// [`events_lossless`](crate::RpcClient::events_lossless) loses nothing.
///
/// The last item is [`ClientEvent::Exited`]. A subscription does not keep the client alive.
/// Dropping it ends it.
pub struct Events {
    hub: Arc<Hub>,
    id: u64,
}

impl Events {
    pub(crate) fn new(hub: &Arc<Hub>, interest: Interest) -> Self {
        Self { id: hub.subscribe(interest), hub: Arc::clone(hub) }
    }

    /// The next item, `None` after [`ClientEvent::Exited`].
    ///
    /// Cancel-safe: an item is taken only when it is returned.
    pub async fn next(&mut self) -> Option<ClientEvent> {
        self.next_positioned().await.map(|(_, event)| event)
    }

    /// Whether something from before this position is still to be taken.
    pub(crate) fn is_behind(&self, position: u64) -> bool {
        self.hub.is_behind(self.id, position)
    }

    /// The next item with its position in the stream.
    pub(crate) async fn next_positioned(&mut self) -> Option<(u64, ClientEvent)> {
        // Takes part in cooperative scheduling: a loop over a full queue must not starve the reader.
        tokio::task::coop::cooperative(std::future::poll_fn(|cx| self.hub.poll_next(self.id, cx))).await
    }
}

impl Stream for Events {
    type Item = ClientEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ClientEvent>> {
        self.hub.poll_next(self.id, cx).map(|item| item.map(|(_, event)| event))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.hub.unsubscribe(self.id);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("id", &self.id).finish_non_exhaustive()
    }
}
