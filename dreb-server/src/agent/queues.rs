//! Messages that wait for the running agent.

use std::collections::VecDeque;

use protocol_schema::queue::{PendingMessages, QueueMode, QueuedMessage};

/// One queue with its delivery mode.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) mode: QueueMode,
    waiting: VecDeque<QueuedMessage>,
}

impl Queue {
    pub(super) fn new(mode: QueueMode) -> Self {
        Self { mode, waiting: VecDeque::new() }
    }

    pub(super) fn push(&mut self, message: QueuedMessage) {
        self.waiting.push_back(message);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes what one delivery brings: everything in mode `all`, else one message.
    pub(super) fn drain(&mut self) -> Vec<QueuedMessage> {
        match self.mode {
            QueueMode::All => self.waiting.drain(..).collect(),
            _ => self.waiting.pop_front().into_iter().collect(),
        }
    }

    fn listed(&self) -> Vec<QueuedMessage> {
        self.waiting.iter().cloned().collect()
    }
}

/// The steering queue and the follow-up queue.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) steering: Queue,
    pub(super) follow_up: Queue,
}

impl Queues {
    pub(super) fn len(&self) -> usize {
        self.steering.len() + self.follow_up.len()
    }

    /// What is delivered when the agent would stop: steering first, then follow-ups.
    pub(super) fn drain_at_stop(&mut self) -> Vec<QueuedMessage> {
        let mut messages = self.steering.drain();
        messages.extend(self.follow_up.drain());
        messages
    }

    /// Both queues as the wire shows them.
    pub(super) fn listed(&self) -> PendingMessages {
        let steering_messages = self.steering.listed();
        let follow_up_messages = self.follow_up.listed();
        let texts = |messages: &[QueuedMessage]| messages.iter().map(|message| message.text.clone()).collect();
        PendingMessages {
            steering: texts(&steering_messages),
            follow_up: texts(&follow_up_messages),
            steering_messages,
            follow_up_messages,
        }
    }

    /// Empties both queues.
    pub(super) fn clear(&mut self) -> PendingMessages {
        let listed = self.listed();
        self.steering.waiting.clear();
        self.follow_up.waiting.clear();
        listed
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn queued(text: &str) -> QueuedMessage {
        QueuedMessage { text: text.to_owned(), images: None }
    }

    fn texts(messages: &[QueuedMessage]) -> Vec<&str> {
        messages.iter().map(|message| message.text.as_str()).collect()
    }

    #[test]
    fn a_delivery_takes_one_or_all() {
        let mut queues = Queues { steering: Queue::new(QueueMode::OneAtATime), follow_up: Queue::new(QueueMode::All) };
        for text in ["a", "b"] {
            queues.steering.push(queued(text));
            queues.follow_up.push(queued(&text.to_uppercase()));
        }
        assert_eq!(queues.len(), 4);
        assert_eq!(texts(&queues.drain_at_stop()), ["a", "A", "B"]);
        let cleared = queues.clear();
        assert_eq!((cleared.steering, cleared.follow_up), (vec!["b".to_owned()], vec![]));
        assert_eq!(queues.len(), 0);
    }
}
