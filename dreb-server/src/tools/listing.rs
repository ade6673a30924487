//! Results that are a list of lines: cut to the byte limit, with notices of what was left out.

use serde_json::{Map, Value, json};

use super::ToolOutput;
use super::truncate::{HeadTruncator, Limits, MAX_BYTES, format_size};

/// A list under construction. Holds no more than is shown.
#[derive(Debug)]
pub(super) struct Listing {
    head: HeadTruncator,
    is_empty: bool,
    details: Map<String, Value>,
    notices: Vec<String>,
}

impl Listing {
    pub(super) fn new() -> Self {
        Self {
            head: HeadTruncator::new(Limits::bytes_only()),
            is_empty: true,
            details: Map::new(),
            notices: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    pub(super) fn push(&mut self, line: &str) {
        if !self.is_empty {
            self.head.push("\n");
        }
        self.is_empty = false;
        self.head.push(line);
    }

    /// Notes that the list ended at a limit of its own.
    pub(super) fn limit_reached(&mut self, key: &str, limit: usize, notice: String) {
        self.details.insert(key.to_owned(), json!(limit));
        self.notices.push(notice);
    }

    /// The result; `last` is one more notice with the key of its detail, told after the byte limit.
    pub(super) fn finish(mut self, last: Option<(&str, &str)>) -> ToolOutput {
        let truncation = self.head.finish();
        let mut text = truncation.content.clone();
        if truncation.truncated {
            self.notices.push(format!("{} limit reached", format_size(MAX_BYTES)));
            self.details.insert("truncation".to_owned(), json!(truncation));
        }
        if let Some((key, notice)) = last {
            self.notices.push(notice.to_owned());
            self.details.insert(key.to_owned(), Value::Bool(true));
        }
        if !self.notices.is_empty() {
            text = format!("{text}\n\n[{}]", self.notices.join(". "));
        }
        let output = ToolOutput::text(text);
        if self.details.is_empty() { output } else { output.with_details(Value::Object(self.details)) }
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn notices_stand_in_one_bracket() {
        let mut listing = Listing::new();
        for _ in 0..60 {
            listing.push(&"x".repeat(1023));
        }
        listing.limit_reached("entryLimitReached", 60, "60 entries limit reached".to_owned());
        let output = listing.finish(Some(("linesTruncated", "Some lines cut")));
        let text = output.content[0].as_text().unwrap();
        assert_eq!(&text[51_199..], "\n\n[60 entries limit reached. 50.0KB limit reached. Some lines cut]");
        let details = output.details.unwrap();
        assert_eq!(
            details.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["entryLimitReached", "truncation", "linesTruncated"]
        );
        assert_eq!(details["truncation"]["maxLines"], 9_007_199_254_740_991_u64);
        assert_eq!(details["truncation"]["truncatedBy"], "bytes");
    }
}
