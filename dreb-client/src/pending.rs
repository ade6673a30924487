//! Which requests wait for an answer. Pure bookkeeping: no I/O, no clock, no task.

use std::collections::HashMap;

/// Number of a request; on the wire it is the string `req-<n>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RequestId(u64);

const PREFIX: &str = "req-";

impl RequestId {
    /// Reads an id back from the wire; `None` for an id this client never gives.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        // One spelling per id: neither `+1` nor `01`, which `parse` would take.
        if !digits.starts_with(|c: char| matches!(c, '1'..='9')) {
            return None;
        }
        digits.parse().ok().map(Self)
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

/// Requests by id, each with the place its answer goes to.
#[derive(Debug)]
pub(crate) struct Pending<R, C> {
    last: u64,
    waiting: HashMap<RequestId, R>,
    closed: Option<C>,
    late: u64,
}

impl<R, C: Clone> Pending<R, C> {
    pub(crate) fn new() -> Self {
        Self { last: 0, waiting: HashMap::new(), closed: None, late: 0 }
    }

    /// Gives out a new id.
    ///
    /// # Errors
    ///
    /// The cause given to [`close`](Self::close).
    pub(crate) fn register(&mut self, reply: R) -> Result<RequestId, C> {
        if let Some(cause) = &self.closed {
            return Err(cause.clone());
        }
        self.last += 1;
        let id = RequestId(self.last);
        self.waiting.insert(id, reply);
        Ok(id)
    }

    /// Takes the place the answer goes to. `None` if nobody waits any more; that is counted when
    /// the id was once given out.
    pub(crate) fn complete(&mut self, id: RequestId) -> Option<R> {
        let reply = self.waiting.remove(&id);
        if reply.is_none() && self.was_given(id) {
            self.late += 1;
        }
        reply
    }

    /// Whether this id was ever given out.
    pub(crate) fn was_given(&self, id: RequestId) -> bool {
        (1..=self.last).contains(&id.0)
    }

    /// Forgets a request whose caller has gone.
    pub(crate) fn forget(&mut self, id: RequestId) {
        self.waiting.remove(&id);
    }

    /// Refuses requests from now on and hands out everyone who still waits. The first cause stays.
    pub(crate) fn close(&mut self, cause: C) -> Vec<R> {
        self.closed.get_or_insert(cause);
        self.waiting.drain().map(|(_, reply)| reply).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Answers that came after their caller had gone.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_and_foreign_ones_do_not() {
        let mut pending = Pending::<(), ()>::new();
        let id = pending.register(()).unwrap();
        assert_eq!(id.to_string(), "req-1");
        assert_eq!(RequestId::parse("req-1"), Some(id));
        for foreign in ["", "1", "req-", "req-x", "req-0", "req-01", "req-+1", "req--1", "req-99999999999999999999"] {
            assert_eq!(RequestId::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn answers_go_to_their_caller_once_in_any_order() {
        let mut pending = Pending::<&str, ()>::new();
        let first = pending.register("first").unwrap();
        let second = pending.register("second").unwrap();
        assert_eq!(pending.complete(second), Some("second"));
        assert_eq!(pending.complete(first), Some("first"));
        assert_eq!(pending.late(), 0);
        assert_eq!(pending.complete(first), None);
        assert_eq!(pending.late(), 1);
    }

    #[test]
    fn a_forgotten_id_makes_its_answer_late_and_leaves_the_others() {
        let mut pending = Pending::<&str, ()>::new();
        let gone = pending.register("gone").unwrap();
        let kept = pending.register("kept").unwrap();
        pending.forget(gone);
        assert_eq!(pending.complete(gone), None);
        assert_eq!(pending.complete(kept), Some("kept"));
        assert_eq!(pending.late(), 1);
        let never = RequestId::parse("req-77").unwrap();
        assert!(!pending.was_given(never));
        assert_eq!(pending.complete(never), None);
        assert_eq!(pending.late(), 1, "an id never given out is not late");
    }

    #[test]
    fn closing_hands_everyone_out_and_refuses_newcomers_with_the_first_cause() {
        let mut pending = Pending::<u8, &str>::new();
        pending.register(1).unwrap();
        pending.register(2).unwrap();
        let mut all = pending.close("first");
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        assert!(pending.is_empty());
        assert!(pending.close("second").is_empty());
        assert_eq!(pending.register(3), Err("first"));
    }
}
