//! The sending end of a provider's stream.

use protocol_schema::Usage;
use tokio::sync::mpsc;

use super::{ProviderError, StreamEvent};

/// Sends events and leaves out usage that has not changed.
pub(super) struct Sink {
    events: mpsc::Sender<StreamEvent>,
    usage: Option<Usage>,
}

impl Sink {
    pub(super) fn new(events: mpsc::Sender<StreamEvent>) -> Self {
        Self { events, usage: None }
    }

    /// Sends the events in order, waiting for room.
    ///
    /// # Errors
    ///
    /// Nobody listens any more.
    pub(super) async fn send(&mut self, events: impl IntoIterator<Item = StreamEvent>) -> Result<(), ProviderError> {
        for event in events {
            if let StreamEvent::Usage(usage) = &event {
                if self.usage.as_ref() == Some(usage) {
                    continue;
                }
                self.usage = Some(usage.clone());
            }
            self.events.send(event).await.map_err(|_| ProviderError::other("Request was aborted"))?;
        }
        Ok(())
    }
}
