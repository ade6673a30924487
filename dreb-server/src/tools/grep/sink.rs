//! Matches as lines of text, each with the lines around it.

use std::collections::VecDeque;
use std::io;

use grep_searcher::{Searcher, Sink, SinkContext, SinkFinish, SinkMatch};

use super::super::listing::Listing;

/// Longer lines are cut.
pub(super) const MAX_LINE_CHARS: usize = 500;

/// What a search has found so far.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) listing: Listing,
    pub(super) lines_truncated: bool,
    /// Matches that may still come.
    left: usize,
}

impl Found {
    pub(super) fn new(limit: usize) -> Self {
        Self { listing: Listing::new(), lines_truncated: false, left: limit }
    }

    /// Whether there are as many matches as were asked for.
    pub(super) fn is_full(&self) -> bool {
        self.left == 0
    }
}

/// Takes the matches of one file. Every match is told with all the lines around it, so lines between
/// near matches come twice.
#[derive(Debug)]
pub(super) struct LineSink<'a> {
    path: &'a str,
    context: u64,
    found: &'a mut Found,
    /// Lines without a gap that open matches, or matches to come, need.
    window: VecDeque<(u64, String)>,
    /// Lines of matches whose following lines have not all come.
    open: VecDeque<u64>,
}

impl<'a> LineSink<'a> {
    pub(super) fn new(path: &'a str, context: usize, found: &'a mut Found) -> Self {
        Self { path, context: context as u64, found, window: VecDeque::new(), open: VecDeque::new() }
    }

    fn line(&mut self, number: u64, bytes: &[u8]) {
        let (text, truncated) = line_text(bytes);
        self.found.lines_truncated |= truncated;
        self.window.push_back((number, text));
        while self.open.front().is_some_and(|matched| matched + self.context <= number) {
            self.tell();
        }
        let needed = self.open.front().map_or(number + 1, |matched| *matched).saturating_sub(self.context);
        while self.window.front().is_some_and(|(number, _)| *number < needed) {
            self.window.pop_front();
        }
    }

    fn tell(&mut self) {
        let Some(matched) = self.open.pop_front() else {
            return;
        };
        let around = matched.saturating_sub(self.context)..=matched.saturating_add(self.context);
        for (number, text) in self.window.iter().filter(|(number, _)| around.contains(number)) {
            let sign = if *number == matched { ':' } else { '-' };
            self.found.listing.push(&format!("{}{sign}{number}{sign} {text}", self.path));
        }
    }

    fn end_stretch(&mut self) {
        while !self.open.is_empty() {
            self.tell();
        }
        self.window.clear();
    }
}

impl Sink for LineSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, matched: &SinkMatch<'_>) -> io::Result<bool> {
        let number = matched.line_number().unwrap_or_default();
        if !self.found.is_full() {
            self.found.left -= 1;
            self.open.push_back(number);
        }
        self.line(number, matched.bytes());
        Ok(!self.found.is_full() || !self.open.is_empty())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        self.line(context.line_number().unwrap_or_default(), context.bytes());
        Ok(!self.found.is_full() || !self.open.is_empty())
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.end_stretch();
        Ok(!self.found.is_full())
    }

    fn finish(&mut self, _: &Searcher, _: &SinkFinish) -> io::Result<()> {
        self.end_stretch();
        Ok(())
    }
}

/// The text of a line without its end, and whether it was cut.
fn line_text(bytes: &[u8]) -> (String, bool) {
    // No character is longer than four bytes; the rest of a very long line need not be decoded.
    let needed = bytes.len().min((MAX_LINE_CHARS + 2) * 4);
    let mut text = String::from_utf8_lossy(&bytes[..needed]).into_owned();
    text.retain(|c| c != '\r' && c != '\n');
    match text.char_indices().nth(MAX_LINE_CHARS) {
        Some((end, _)) => {
            text.truncate(end);
            text.push_str("... [truncated]");
            (text, true)
        }
        None => (text, false),
    }
}
