//! Identifiers of sessions and entries.

use uuid::Uuid;

/// Length of an entry id, in hex digits.
const ENTRY_ID_LENGTH: usize = 8;
/// Short ids that are tried before a whole UUID is taken.
const ATTEMPTS: usize = 100;

/// A new session id: a random UUID.
#[must_use]
pub fn session_id() -> String {
    Uuid::new_v4().to_string()
}

/// A new entry id, 8 lower-case hex digits, for which `taken` says no.
///
/// If a hundred of them are taken, a whole UUID.
pub fn entry_id(taken: impl Fn(&str) -> bool) -> String {
    for _ in 0..ATTEMPTS {
        let mut id = Uuid::new_v4().simple().to_string();
        id.truncate(ENTRY_ID_LENGTH);
        if !taken(&id) {
            return id;
        }
    }
    session_id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_ids_are_eight_hex_digits() {
        let id = entry_id(|_| false);
        assert_eq!(id.len(), 8);
        assert!(id.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')), "{id}");
    }

    #[test]
    fn a_taken_id_is_never_given() {
        let refused = std::cell::RefCell::new(Vec::new());
        let id = entry_id(|id| {
            let mut refused = refused.borrow_mut();
            refused.push(id.to_owned());
            refused.len() < 3
        });
        assert_eq!(refused.borrow().len(), 3);
        assert_eq!(refused.borrow()[2], id);
        assert_eq!(entry_id(|_| true).len(), 36);
    }
}
