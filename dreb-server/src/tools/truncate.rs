//! Cutting long output to what a model may be given: whole lines, up to a number of lines and bytes.

use serde::{Deserialize, Serialize};

/// Most lines a tool returns.
pub const MAX_LINES: usize = 2000;
/// Most bytes of UTF-8 a tool returns.
pub const MAX_BYTES: usize = 50 * 1024;

/// How much text may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of lines. Text is split at LF, so a final LF makes an empty last line.
    pub lines: usize,
    /// Number of UTF-8 bytes.
    pub bytes: usize,
}

impl Limits {
    /// A limit in bytes only, for tools that count their results themselves.
    #[must_use]
    pub fn bytes_only() -> Self {
        // 2^53 - 1, the largest integer that every JSON reader takes exactly.
        Self { lines: usize::MAX >> 11, bytes: MAX_BYTES }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { lines: MAX_LINES, bytes: MAX_BYTES }
    }
}

/// Which limit cut the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TruncatedBy {
    /// The number of lines.
    Lines,
    /// The number of bytes.
    Bytes,
}

/// Text after the cut, and what was cut. Its JSON form is the `truncation` of tool details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Truncation {
    /// What is left.
    pub content: String,
    /// Whether anything was cut.
    pub truncated: bool,
    /// The limit that was met first; `None` (JSON null) when nothing was cut.
    pub truncated_by: Option<TruncatedBy>,
    /// Lines before the cut.
    pub total_lines: usize,
    /// UTF-8 bytes before the cut.
    pub total_bytes: usize,
    /// Lines left.
    pub output_lines: usize,
    /// UTF-8 bytes left.
    pub output_bytes: usize,
    /// Whether the one line left is only the end of a line longer than the limit (tail only).
    pub last_line_partial: bool,
    /// Whether the first line alone exceeds the byte limit; nothing is left then (head only).
    pub first_line_exceeds_limit: bool,
    /// The line limit that applied.
    pub max_lines: usize,
    /// The byte limit that applied.
    pub max_bytes: usize,
}

/// Keeps whole lines from the start.
#[must_use]
pub fn truncate_head(text: &str, limits: Limits) -> Truncation {
    let mut head = HeadTruncator::new(limits);
    head.push(text);
    head.finish()
}

/// Keeps whole lines from the end. Of a last line that alone exceeds the byte limit, the end is kept.
#[must_use]
pub fn truncate_tail(text: &str, limits: Limits) -> Truncation {
    let total_lines = count_lines(text);
    let total_bytes = text.len();
    let mut result = Truncation {
        content: String::new(),
        truncated: total_lines > limits.lines || total_bytes > limits.bytes,
        truncated_by: None,
        total_lines,
        total_bytes,
        output_lines: total_lines,
        output_bytes: total_bytes,
        last_line_partial: false,
        first_line_exceeds_limit: false,
        max_lines: limits.lines,
        max_bytes: limits.bytes,
    };
    if !result.truncated {
        result.content = text.to_owned();
        return result;
    }

    result.truncated_by = Some(TruncatedBy::Lines);
    let mut kept_lines = 0;
    let mut start = text.len();
    for line in text.rsplit('\n').take(limits.lines) {
        let line_start = start - usize::from(kept_lines > 0) - line.len();
        if text.len() - line_start > limits.bytes {
            result.truncated_by = Some(TruncatedBy::Bytes);
            if kept_lines == 0 {
                start = text.len().saturating_sub(limits.bytes);
                while !text.is_char_boundary(start) {
                    start += 1;
                }
                kept_lines = 1;
                result.last_line_partial = true;
            }
            break;
        }
        start = line_start;
        kept_lines += 1;
    }
    text[start..].clone_into(&mut result.content);
    result.output_lines = kept_lines;
    result.output_bytes = result.content.len();
    result
}

/// [`truncate_head`] for text that comes in pieces. Holds no more than the limits allow, whatever
/// the length of the text or of a line.
#[derive(Debug)]
pub struct HeadTruncator {
    limits: Limits,
    /// Whole lines that fit, joined by LF.
    content: String,
    lines: usize,
    stopped_by: Option<TruncatedBy>,
    /// The line that has not ended yet, up to the byte limit, and its full length.
    line: String,
    line_bytes: usize,
    total_lines: usize,
    total_bytes: usize,
    first_line_bytes: Option<usize>,
}

impl HeadTruncator {
    /// Starts with no text.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            content: String::new(),
            lines: 0,
            stopped_by: None,
            line: String::new(),
            line_bytes: 0,
            total_lines: 1,
            total_bytes: 0,
            first_line_bytes: None,
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) {
        self.total_bytes += text.len();
        if self.stopped_by.is_some() && self.first_line_bytes.is_some() {
            self.total_lines += memchr::memchr_iter(b'\n', text.as_bytes()).count();
            return;
        }
        for (index, piece) in text.split('\n').enumerate() {
            if index > 0 {
                self.end_line();
                self.total_lines += 1;
            }
            // A line longer than the limit is never output, so its text is not needed.
            if self.stopped_by.is_none() && self.line_bytes + piece.len() <= self.limits.bytes {
                self.line.push_str(piece);
            }
            self.line_bytes += piece.len();
        }
    }

    /// Length of the first line in bytes, so far.
    #[must_use]
    pub fn first_line_bytes(&self) -> usize {
        self.first_line_bytes.unwrap_or(self.line_bytes)
    }

    /// The result for all text taken.
    #[must_use]
    pub fn finish(mut self) -> Truncation {
        self.end_line();
        let output_bytes = self.content.len();
        Truncation {
            truncated: self.stopped_by.is_some(),
            truncated_by: self.stopped_by,
            total_lines: self.total_lines,
            total_bytes: self.total_bytes,
            output_lines: self.lines,
            output_bytes,
            last_line_partial: false,
            first_line_exceeds_limit: self.first_line_bytes() > self.limits.bytes,
            max_lines: self.limits.lines,
            max_bytes: self.limits.bytes,
            content: self.content,
        }
    }

    fn end_line(&mut self) {
        let bytes = std::mem::take(&mut self.line_bytes);
        self.first_line_bytes.get_or_insert(bytes);
        if self.stopped_by.is_none() {
            let separator = usize::from(self.lines > 0);
            if self.lines >= self.limits.lines {
                self.stopped_by = Some(TruncatedBy::Lines);
            } else if self.content.len() + separator + bytes > self.limits.bytes {
                self.stopped_by = Some(TruncatedBy::Bytes);
            } else {
                if separator > 0 {
                    self.content.push('\n');
                }
                self.content.push_str(&self.line);
                self.lines += 1;
            }
        }
        self.line.clear();
    }
}

/// Number of lines, split at LF: 1 for empty text, one more for a final LF.
#[must_use]
pub fn count_lines(text: &str) -> usize {
    memchr::memchr_iter(b'\n', text.as_bytes()).count() + 1
}

/// A number of bytes as messages give it: `512B`, `50.0KB`, `1.5MB` (base 1024).
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
pub fn format_size(bytes: usize) -> String {
    const KIB: f64 = 1024.0;
    let size = bytes as f64;
    if bytes < 1024 {
        format!("{bytes}B")
    } else if bytes < 1024 * 1024 {
        format!("{:.1}KB", size / KIB)
    } else {
        format!("{:.1}MB", size / (KIB * KIB))
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn limits(lines: usize, bytes: usize) -> Limits {
        Limits { lines, bytes }
    }

    #[test]
    fn short_text_is_left_alone() {
        for cut in [truncate_head, truncate_tail] {
            assert_eq!(
                serde_json::to_value(cut("a\né\n", Limits::default())).unwrap(),
                json!({
                    "content": "a\né\n", "truncated": false, "truncatedBy": null, "totalLines": 3, "totalBytes": 5,
                    "outputLines": 3, "outputBytes": 5, "lastLinePartial": false, "firstLineExceedsLimit": false,
                    "maxLines": 2000, "maxBytes": 51200
                })
            );
            assert!(!cut("", Limits::default()).truncated);
        }
    }

    #[test]
    fn the_head_keeps_whole_lines() {
        let cut = truncate_head("1\n2\n3\n", limits(2, 100));
        assert_eq!((cut.content.as_str(), cut.truncated_by), ("1\n2", Some(TruncatedBy::Lines)));
        assert_eq!((cut.total_lines, cut.total_bytes, cut.output_lines, cut.output_bytes), (4, 6, 2, 3));

        let cut = truncate_head("ab\ncd\nef", limits(9, 6));
        assert_eq!((cut.content.as_str(), cut.truncated_by), ("ab\ncd", Some(TruncatedBy::Bytes)));

        let cut = truncate_head("abcdef\ng", limits(9, 5));
        assert_eq!((cut.content.as_str(), cut.truncated_by), ("", Some(TruncatedBy::Bytes)));
        assert!(cut.first_line_exceeds_limit);
        assert_eq!((cut.output_lines, cut.output_bytes), (0, 0));
    }

    #[test]
    fn the_tail_keeps_whole_lines() {
        let cut = truncate_tail("1\n2\n3", limits(2, 100));
        assert_eq!((cut.content.as_str(), cut.truncated_by), ("2\n3", Some(TruncatedBy::Lines)));
        assert_eq!((cut.total_lines, cut.output_lines, cut.output_bytes), (3, 2, 3));

        let cut = truncate_tail("ab\ncd\nef", limits(9, 6));
        assert_eq!((cut.content.as_str(), cut.truncated_by), ("cd\nef", Some(TruncatedBy::Bytes)));
    }

    #[test]
    fn the_end_of_a_very_long_last_line_is_kept_at_a_character_boundary() {
        let cut = truncate_tail("x\nééé", limits(9, 3));
        assert_eq!((cut.content.as_str(), cut.output_lines, cut.output_bytes), ("é", 1, 2));
        assert!(cut.last_line_partial && cut.truncated);
        assert_eq!(cut.truncated_by, Some(TruncatedBy::Bytes));
    }

    #[test]
    fn a_truncator_holds_no_more_than_the_limit() {
        let mut head = HeadTruncator::new(limits(9, 10));
        for _ in 0..1000 {
            head.push("0123456");
        }
        assert!(head.line.capacity() <= 32);
        head.push("\nx");
        assert_eq!(head.first_line_bytes(), 7000);
        let cut = head.finish();
        assert!(cut.first_line_exceeds_limit);
        assert_eq!((cut.total_lines, cut.total_bytes), (2, 7002));
    }

    #[test]
    fn sizes_have_one_decimal() {
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (51200, "50.0KB"), (1_572_864, "1.5MB")] {
            assert_eq!(format_size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_change_the_head(
            text in "[a-cé\n]{0,60}", cuts in prop::collection::vec(0usize..60, 0..6),
            lines in 1usize..8, bytes in 1usize..40,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| text.floor_char_boundary(at)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut head = HeadTruncator::new(limits(lines, bytes));
            for pair in cuts.windows(2) {
                head.push(&text[pair[0]..pair[1]]);
            }
            let cut = head.finish();
            prop_assert_eq!(&cut, &truncate_head(&text, limits(lines, bytes)));
            prop_assert!(text.starts_with(&cut.content) && cut.content.len() <= bytes);
            prop_assert_eq!(cut.truncated, text.len() > bytes || count_lines(&text) > lines);
            prop_assert_eq!(cut.truncated, cut.content != text);
        }

        #[test]
        fn the_tail_is_an_end_of_the_text(text in "[a-cé\n]{0,60}", lines in 1usize..8, bytes in 1usize..40) {
            let cut = truncate_tail(&text, limits(lines, bytes));
            prop_assert!(text.ends_with(&cut.content) && cut.content.len() <= bytes);
            prop_assert_eq!(cut.truncated, text.len() > bytes || count_lines(&text) > lines);
            prop_assert_eq!(cut.output_bytes, cut.content.len());
            if !cut.last_line_partial && cut.output_lines > 0 {
                prop_assert_eq!(cut.output_lines, count_lines(&cut.content));
            }
        }
    }
}
