//! Making output plain text.

use super::escape::{EscapeHandler, EscapeSplitter};

/// Removes escape sequences and control characters from a stream of text. LF and tab stay.
#[derive(Debug, Default)]
pub struct Sanitizer {
    splitter: EscapeSplitter,
    keeps_carriage_returns: bool,
}

impl Sanitizer {
    /// Lets CR stay, too.
    #[must_use]
    pub fn keeping_carriage_returns() -> Self {
        Self { keeps_carriage_returns: true, ..Self::default() }
    }

    /// The plain text of the next piece.
    pub fn push(&mut self, text: &str) -> String {
        let mut plain = Plain { text: String::with_capacity(text.len()), keeps_cr: self.keeps_carriage_returns };
        self.splitter.push(text, &mut plain);
        plain.text
    }
}

struct Plain {
    text: String,
    keeps_cr: bool,
}

impl EscapeHandler for Plain {
    fn text(&mut self, text: &str) {
        let keeps_cr = self.keeps_cr;
        self.text.extend(text.chars().filter(|&character| match character {
            '\t' | '\n' => true,
            '\r' => keeps_cr,
            // Interlinear annotation marks are invisible and upset renderers.
            '\u{fff9}'..='\u{fffb}' => false,
            _ => !character.is_control(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_left() {
        let input =
            "\u{1b}[31mred\u{1b}[0m\ttab\r\nnul\0bell\u{7}del\u{7f}c1\u{85}\u{fff9}a\u{fffb}é\u{1f600}\u{fffd}\n";
        assert_eq!(Sanitizer::default().push(input), "red\ttab\nnulbelldelc1aé\u{1f600}\u{fffd}\n");
        assert_eq!(Sanitizer::keeping_carriage_returns().push("1%\r2%\u{8}\r\n"), "1%\r2%\r\n");
    }

    #[test]
    fn a_sequence_may_be_cut() {
        let mut sanitizer = Sanitizer::default();
        let text: String = ["a\u{1b}", "[3", "1mb"].iter().map(|piece| sanitizer.push(piece)).collect();
        assert_eq!(text, "ab");
    }
}
