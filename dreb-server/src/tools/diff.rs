//! The difference of two texts with line numbers, for people.

use std::fmt::Write;
use std::ops::Range;

use similar::{Algorithm, DiffOp, capture_diff_slices};

/// Unchanged lines shown before and after a change.
const CONTEXT: usize = 4;

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineDiff {
    /// One line per line: a sign (`+`, `-` or a space), the line number, a space, the text. Added lines
    /// have their new number, others their old one; `...` stands for lines left out.
    pub text: String,
    /// Number of the first changed line in the new text, from 1; `None` if nothing differs.
    pub first_changed_line: Option<usize>,
}

/// Compares two texts by lines.
#[must_use]
pub fn line_diff(old: &str, new: &str) -> LineDiff {
    let old_lines: Vec<&str> = old.split_inclusive('\n').collect();
    let new_lines: Vec<&str> = new.split_inclusive('\n').collect();
    let ops = capture_diff_slices(Algorithm::Myers, &old_lines, &new_lines);
    let largest = 1 + count_breaks(&old_lines).max(count_breaks(&new_lines));
    let mut lines = Lines { text: String::new(), width: largest.to_string().len() };
    let mut first_changed_line = None;

    for (index, op) in ops.iter().enumerate() {
        if let DiffOp::Equal { old_index, len, .. } = *op {
            // Between two changes everything is shown: it is part of what was replaced.
            let before_change = index + 1 < ops.len();
            let head = if index == 0 { 0 } else { CONTEXT };
            let shown = match (index > 0, before_change) {
                (true, true) => 0..len,
                (_, true) => len.saturating_sub(CONTEXT)..len,
                (_, false) => 0..head.min(len),
            };
            if shown.is_empty() && index == 0 {
                continue;
            }
            if shown.start > 0 {
                lines.skipped();
            }
            lines.push(' ', &old_lines, old_index + shown.start..old_index + shown.end);
            if shown.end < len {
                lines.skipped();
            }
        } else {
            first_changed_line.get_or_insert(op.new_range().start + 1);
            lines.push('-', &old_lines, op.old_range());
            lines.push('+', &new_lines, op.new_range());
        }
    }
    // Every line was written with a break behind it.
    lines.text.pop();
    LineDiff { text: lines.text, first_changed_line }
}

/// Line breaks of a text given by its lines.
fn count_breaks(lines: &[&str]) -> usize {
    lines.len() - usize::from(lines.last().is_some_and(|line| !line.ends_with('\n')))
}

struct Lines {
    text: String,
    width: usize,
}

impl Lines {
    fn push(&mut self, sign: char, lines: &[&str], range: Range<usize>) {
        for index in range {
            let line = lines[index].strip_suffix('\n').unwrap_or(lines[index]);
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "{sign}{:>width$} {line}", index + 1, width = self.width);
        }
    }

    fn skipped(&mut self) {
        let _ = writeln!(self.text, " {:width$} ...", "", width = self.width);
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn numbered(range: std::ops::RangeInclusive<usize>) -> String {
        range.map(|n| format!("l{n}\n")).collect()
    }

    #[test]
    fn a_changed_line_stands_between_its_neighbours() {
        let diff = line_diff("alpha\nbeta\ngamma\n", "alpha\nBETA\ngamma\n");
        assert_eq!(diff.text, " 1 alpha\n-2 beta\n+2 BETA\n 3 gamma");
        assert_eq!(diff.first_changed_line, Some(2));
    }

    #[test]
    fn far_lines_are_left_out_and_numbers_aligned() {
        let old = numbered(1..=120);
        let new = old.replace("l50\n", "new\nlines\n");
        assert_eq!(
            line_diff(&old, &new),
            LineDiff {
                text: "     ...\n  46 l46\n  47 l47\n  48 l48\n  49 l49\n- 50 l50\n+ 50 new\n+ 51 lines\n  51 l51\n  \
                       52 l52\n  53 l53\n  54 l54\n     ..."
                    .to_owned(),
                first_changed_line: Some(50),
            }
        );
    }

    #[test]
    fn changes_at_the_ends() {
        assert_eq!(line_diff("a\n", "a\nb\n").text, " 1 a\n+2 b");
        assert_eq!(line_diff("", "a").text, "+1 a");
        assert_eq!(line_diff("a\nb\n", "b\n").text, "-1 a\n 2 b");
        assert_eq!(line_diff("a\nb\n", "b\n").first_changed_line, Some(1));
        assert_eq!(line_diff("a", "a\nb").text, "-1 a\n+1 a\n+2 b");
        assert_eq!(line_diff("a", "a"), LineDiff { text: String::new(), first_changed_line: None });
    }

    #[test]
    fn the_width_counts_the_empty_piece_after_the_last_break() {
        assert_eq!(line_diff(&numbered(1..=9), &numbered(2..=9)).text.lines().next(), Some("- 1 l1"));
        assert_eq!(line_diff(&numbered(1..=8), &numbered(2..=8)).text.lines().next(), Some("-1 l1"));
    }

    #[test]
    fn lines_between_two_changes_are_shown() {
        let old = numbered(1..=14);
        let new = old.replace("l2\n", "L2\n").replace("l13\n", "L13\n");
        let diff = line_diff(&old, &new).text;
        assert_eq!(diff.lines().count(), 16);
        assert!(!diff.contains("..."));
    }
}
