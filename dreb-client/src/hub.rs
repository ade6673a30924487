//! Hands events to subscribers, each with its own queue of two lanes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use crate::error::ExitNotice;
use crate::events::ClientEvent;

/// Which events a subscriber wants, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// All; updates may be lost.
    Joined,
    /// All; none is lost.
    Lossless,
    /// No updates.
    MustNotMiss,
}

#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// Told when a queue has become shorter.
    pub(crate) room: Notify,
    update_capacity: usize,
    update_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Position of the next event in the stream.
    next: u64,
    last_id: u64,
    queues: HashMap<u64, Queue>,
    end: Option<ExitNotice>,
}

#[derive(Debug)]
struct Queue {
    interest: Interest,
    must: Lane,
    updates: Lane,
    /// Runs of lost updates with nothing that is still queued between them: position of the first
    /// and the last, and how many.
    gaps: VecDeque<(u64, u64, u64)>,
    waker: Option<Waker>,
    finished: bool,
}

/// Events in the order of their positions.
#[derive(Debug, Default)]
struct Lane {
    entries: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    position: u64,
    event: ClientEvent,
    bytes: usize,
}

impl Lane {
    fn push(&mut self, entry: Entry) {
        self.bytes += entry.bytes;
        self.entries.push_back(entry);
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn front(&self) -> u64 {
        self.entries.front().map_or(u64::MAX, |entry| entry.position)
    }

    /// Whether an entry lies behind `start` and before `end`.
    fn has_between(&self, start: u64, end: u64) -> bool {
        let index = self.entries.partition_point(|entry| entry.position <= start);
        self.entries.get(index).is_some_and(|entry| entry.position < end)
    }
}

impl Queue {
    fn push_update(&mut self, entry: Entry, capacity: usize, bytes: usize) {
        self.updates.push(entry);
        // The newest always stays, however large it is.
        while self.updates.entries.len() > capacity || (self.updates.bytes > bytes && self.updates.entries.len() > 1) {
            let Some(lost) = self.updates.pop() else { break };
            match self.gaps.back_mut() {
                Some((_, last, count)) if !self.must.has_between(*last, lost.position) => {
                    *last = lost.position;
                    *count += 1;
                }
                _ => self.gaps.push_back((lost.position, lost.position, 1)),
            }
        }
    }

    fn first_gap(&self) -> u64 {
        self.gaps.front().map_or(u64::MAX, |(first, _, _)| *first)
    }

    /// Position of what comes next.
    fn front(&self) -> u64 {
        self.first_gap().min(self.must.front()).min(self.updates.front())
    }

    fn pop(&mut self) -> Option<(u64, ClientEvent)> {
        let (gap, must, update) = (self.first_gap(), self.must.front(), self.updates.front());
        if gap < must && gap < update {
            return self.gaps.pop_front().map(|(first, _, count)| (first, ClientEvent::Lagged(count)));
        }
        let entry = if must < update { self.must.pop() } else { self.updates.pop() }?;
        self.finished = matches!(entry.event, ClientEvent::Exited(_));
        Some((entry.position, entry.event))
    }
}

impl Hub {
    pub(crate) fn new(update_capacity: usize, update_bytes: usize) -> Self {
        Self { state: Mutex::default(), room: Notify::new(), update_capacity, update_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Queues are whole after every step, so a panic elsewhere does not spoil them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom events from now on are queued for. After the end there is still the notice to be had.
    pub(crate) fn subscribe(&self, interest: Interest) -> u64 {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        let mut queue = Queue {
            interest,
            must: Lane::default(),
            updates: Lane::default(),
            gaps: VecDeque::new(),
            waker: None,
            finished: false,
        };
        if let Some(notice) = &state.end {
            queue.must.push(Entry { position: state.next, event: ClientEvent::Exited(notice.clone()), bytes: 0 });
        }
        state.queues.insert(id, queue);
        id
    }

    pub(crate) fn unsubscribe(&self, id: u64) {
        let queue = self.lock().queues.remove(&id);
        // What it held is dropped outside the lock.
        drop(queue);
        self.room.notify_one();
    }

    /// Queues an event for everyone who wants it. `update` says that it may be lost.
    pub(crate) fn publish(&self, event: ClientEvent, bytes: usize, update: bool) {
        let mut wakers = Vec::new();
        {
            let mut state = self.lock();
            let position = state.next;
            state.next += 1;
            for queue in state.queues.values_mut() {
                let entry = Entry { position, event: event.clone(), bytes };
                match (update, queue.interest) {
                    (true, Interest::MustNotMiss) => continue,
                    (true, Interest::Joined) => queue.push_update(entry, self.update_capacity, self.update_bytes),
                    (false, _) | (true, Interest::Lossless) => queue.must.push(entry),
                }
                wakers.extend(queue.waker.take());
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells everyone that nothing will follow.
    pub(crate) fn end(&self, notice: &ExitNotice) {
        {
            let mut state = self.lock();
            if state.end.is_some() {
                return;
            }
            state.end = Some(notice.clone());
        }
        self.publish(ClientEvent::Exited(notice.clone()), 0, false);
    }

    /// Position of the next event.
    pub(crate) fn position(&self) -> u64 {
        self.lock().next
    }

    /// Whether something from before this position is still to be taken.
    pub(crate) fn is_behind(&self, id: u64, position: u64) -> bool {
        self.lock().queues.get(&id).is_some_and(|queue| queue.front() < position)
    }

    /// Bytes that wait in the fullest queue and must not be lost. Queues share their events, so this
    /// is what all of them hold together.
    pub(crate) fn backlog(&self) -> usize {
        self.lock().queues.values().map(|queue| queue.must.bytes).max().unwrap_or(0)
    }

    /// The next event with its position; `None` after the end.
    pub(crate) fn poll_next(&self, id: u64, cx: &mut Context<'_>) -> Poll<Option<(u64, ClientEvent)>> {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(&id) else {
            return Poll::Ready(None);
        };
        if queue.finished {
            return Poll::Ready(None);
        }
        match queue.pop() {
            Some(item) => {
                drop(state);
                self.room.notify_one();
                Poll::Ready(Some(item))
            }
            None => {
                if !queue.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    queue.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}
