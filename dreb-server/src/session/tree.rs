//! The entries of a session in memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::entry::Entry;

/// Entries in file order, each pointing to the one it follows, and the leaf.
///
/// The leaf is what the next entry follows. It is not stored: in a file that is read it is the last
/// entry.
#[derive(Debug, Clone, Default)]
pub struct SessionTree {
    entries: Vec<Arc<Entry>>,
    index: HashMap<String, usize>,
    leaf: Option<usize>,
}

impl SessionTree {
    /// A tree without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry and makes it the leaf.
    ///
    /// An id that is there already stays one entry: the new content takes the old one's place.
    pub fn push(&mut self, entry: Arc<Entry>) {
        let place = match self.index.get(&entry.id) {
            Some(&place) => {
                self.entries[place] = entry;
                place
            }
            None => {
                self.index.insert(entry.id.clone(), self.entries.len());
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.leaf = Some(place);
    }

    /// All entries of all branches, in file order.
    #[must_use]
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The entry with this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Arc<Entry>> {
        self.index.get(id).map(|&place| &self.entries[place])
    }

    /// The entry that the next one follows; `None` before the first.
    #[must_use]
    pub fn leaf(&self) -> Option<&Arc<Entry>> {
        self.leaf.map(|place| &self.entries[place])
    }

    /// Moves the leaf; `None` is the place before the first entry. Returns whether there is such an
    /// entry; if not, nothing changes.
    pub fn set_leaf(&mut self, id: Option<&str>) -> bool {
        match id {
            None => {
                self.leaf = None;
                true
            }
            Some(id) => match self.index.get(id) {
                Some(&place) => {
                    self.leaf = Some(place);
                    true
                }
                None => false,
            },
        }
    }

    /// The entries from the leaf back to its root, the leaf first.
    pub fn branch(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.walk(self.leaf).into_iter().map(|place| &self.entries[place])
    }

    /// The entries from the root of `id` to `id`, the root first; empty if there is no such entry.
    #[must_use]
    pub fn path_to(&self, id: &str) -> Vec<&Arc<Entry>> {
        self.walk(self.index.get(id).copied()).into_iter().rev().map(|place| &self.entries[place]).collect()
    }

    /// The entries from the root to the leaf, the root first.
    #[must_use]
    pub fn path_to_leaf(&self) -> Vec<&Arc<Entry>> {
        self.branch().rev().collect()
    }

    /// The session's name: the newest `session_info` of the file, whatever its branch.
    #[must_use]
    pub fn session_name(&self) -> Option<&str> {
        self.entries
            .iter()
            .rev()
            .find_map(|entry| match &entry.body {
                super::EntryBody::SessionInfo { name } => Some(name.as_deref().unwrap_or_default().trim()),
                _ => None,
            })
            .filter(|name| !name.is_empty())
    }

    /// Places from `start` along the parents. A parent that is not there ends the walk like a root.
    /// A cycle is cut at its newest entry, which then counts as the root.
    fn walk(&self, start: Option<usize>) -> Vec<usize> {
        let mut path = Vec::new();
        let mut seen = HashSet::new();
        let mut next = start;
        while let Some(place) = next {
            if !seen.insert(place) {
                cut_cycle(&mut path, place);
                break;
            }
            path.push(place);
            next = self.entries[place].parent_id.as_deref().and_then(|id| self.index.get(id).copied());
        }
        path
    }
}

/// Shortens a path whose last entry names `again`, an earlier one, as its parent.
fn cut_cycle(path: &mut Vec<usize>, again: usize) {
    let Some(begin) = path.iter().position(|&place| place == again) else { return };
    let newest = path[begin..].iter().enumerate().max_by_key(|&(_, place)| place).map_or(0, |(offset, _)| offset);
    path.truncate(begin + newest + 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::EntryBody;

    fn entry(id: &str, parent: Option<&str>, name: &str) -> Arc<Entry> {
        Arc::new(Entry {
            id: id.into(),
            parent_id: parent.map(Into::into),
            timestamp: "2026-02-03T10:15:30.123Z".into(),
            body: EntryBody::SessionInfo { name: Some(name.into()) },
            extra: Default::default(),
        })
    }

    fn tree(entries: &[(&str, Option<&str>)]) -> SessionTree {
        let mut tree = SessionTree::new();
        for (id, parent) in entries {
            tree.push(entry(id, *parent, id));
        }
        tree
    }

    fn ids<'a>(entries: impl IntoIterator<Item = &'a Arc<Entry>>) -> String {
        entries.into_iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_branch_runs_from_the_leaf_to_the_root() {
        let mut tree = tree(&[("a", None), ("b", Some("a")), ("c", Some("a")), ("d", Some("c"))]);
        assert_eq!(ids(tree.branch()), "d c a");
        assert_eq!(ids(tree.path_to_leaf()), "a c d");
        assert_eq!(ids(tree.path_to("b")), "a b");
        assert_eq!(ids(tree.path_to("zz")), "");
        assert!(tree.set_leaf(Some("b")));
        assert_eq!(tree.leaf().unwrap().id, "b");
        assert!(!tree.set_leaf(Some("zz")));
        assert_eq!(tree.leaf().unwrap().id, "b");
        assert!(tree.set_leaf(None));
        assert_eq!(ids(tree.branch()), "");
    }

    #[test]
    fn a_missing_parent_counts_as_none() {
        assert_eq!(ids(tree(&[("a", None), ("b", Some("gone"))]).branch()), "b");
    }

    #[test]
    fn a_cycle_is_cut_at_its_newest_entry() {
        // x y z are a ring: x → z → y → x; the newest of them is z.
        let ring = [("x", Some("z")), ("y", Some("x")), ("z", Some("y")), ("leaf", Some("x"))];
        assert_eq!(ids(tree(&ring).branch()), "leaf x z");
        assert_eq!(ids(tree(&[("a", Some("a"))]).branch()), "a");
        let mut inside = tree(&ring);
        inside.set_leaf(Some("z"));
        assert_eq!(ids(inside.branch()), "z");
        inside.set_leaf(Some("y"));
        assert_eq!(ids(inside.branch()), "y x z");
    }

    #[test]
    fn an_id_that_stands_twice_is_one_entry_with_the_last_content() {
        let mut tree = tree(&[("a", None), ("b", Some("a"))]);
        tree.push(entry("a", None, "again"));
        assert_eq!(ids(tree.entries()), "a b");
        assert_eq!(tree.get("a").unwrap().body, EntryBody::SessionInfo { name: Some("again".into()) });
    }

    #[test]
    fn the_newest_name_counts_and_an_empty_one_clears_it() {
        let mut tree = tree(&[("a", None), ("b", Some("a"))]);
        assert_eq!(tree.session_name(), Some("b"));
        tree.push(entry("c", Some("a"), "  "));
        assert_eq!(tree.session_name(), None);
    }
}
