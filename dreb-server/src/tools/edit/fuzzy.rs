//! Text in the form in which `edit` compares it when it does not match to the letter, with the way back.

use std::ops::Range;

use unicode_normalization::char::{canonical_combining_class, decompose_compatible};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::super::path::is_unusual_space;
use super::text::stray_byte;

/// A text in NFKC, without whitespace at the ends of lines, with plain quotes, dashes and spaces.
#[derive(Debug)]
pub(super) struct Normalized {
    /// The normal form.
    pub(super) text: String,
    /// In order and without gaps in `text`.
    pieces: Vec<Piece>,
}

/// A stretch of the normal form and where it comes from.
#[derive(Debug)]
struct Piece {
    normal: Range<usize>,
    original: Range<usize>,
    /// Whether both are the same text, so that positions within correspond.
    same: bool,
}

/// A stretch of the original that stands for a stretch of the normal form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Origin<'a> {
    pub(super) range: Range<usize>,
    /// What belongs to the first and last character of the range, but not to the stretch: the `f` of
    /// a ligature of which only the `i` was asked for.
    pub(super) before: &'a str,
    pub(super) after: &'a str,
}

impl Normalized {
    pub(super) fn new(original: &str) -> Self {
        let mut result = Self { text: String::with_capacity(original.len()), pieces: Vec::new() };
        let mut start = 0;
        for line in original.split_inclusive('\n') {
            let body = line.trim_end_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            result.push_line(body, start);
            if line.ends_with('\n') {
                result.push("\n", start + line.len() - 1, 1, true);
            }
            start += line.len();
        }
        result
    }

    /// Where a stretch of the normal form, not an empty one, comes from.
    pub(super) fn origin(&self, normal: Range<usize>) -> Origin<'_> {
        let first = &self.pieces[self.pieces.partition_point(|piece| piece.normal.end <= normal.start)];
        let last = &self.pieces[self.pieces.partition_point(|piece| piece.normal.end < normal.end)];
        let (start, before) = if first.same {
            (first.original.start + (normal.start - first.normal.start), "")
        } else {
            (first.original.start, &self.text[first.normal.start..normal.start])
        };
        let (end, after) = if last.same {
            (last.original.start + (normal.end - last.normal.start), "")
        } else {
            (last.original.end, &self.text[normal.end..last.normal.end])
        };
        Origin { range: start..end, before, after }
    }

    fn push_line(&mut self, line: &str, start: usize) {
        let mut position = 0;
        while position < line.len() {
            let rest = &line[position..];
            let mut plain = rest.bytes().take_while(u8::is_ascii).count();
            if rest[plain..].chars().next().is_some_and(|next| !begins_segment(next)) {
                // An accent belongs to the letter before it.
                plain = plain.saturating_sub(1);
            }
            if plain > 0 {
                self.push(&rest[..plain], start + position, plain, true);
                position += plain;
                continue;
            }
            let length =
                rest.char_indices().skip(1).find(|(_, c)| begins_segment(*c)).map_or(rest.len(), |(index, _)| index);
            let normal: String = rest[..length].nfkc().map(plain_form).collect();
            self.push(&normal, start + position, length, normal == rest[..length]);
            position += length;
        }
    }

    fn push(&mut self, normal: &str, start: usize, length: usize, same: bool) {
        let from = self.text.len();
        self.text.push_str(normal);
        let to = self.text.len();
        match self.pieces.last_mut() {
            Some(last) if last.same && same && last.original.end == start => {
                last.normal.end = to;
                last.original.end = start + length;
            }
            _ if from == to => {}
            _ => self.pieces.push(Piece { normal: from..to, original: start..start + length, same }),
        }
    }
}

/// Whether normalisation never joins this character with what stands before it.
fn begins_segment(c: char) -> bool {
    if c.is_ascii() {
        return true;
    }
    let mut first = None;
    decompose_compatible(c, |part| {
        first.get_or_insert(part);
    });
    let first = first.unwrap_or(c);
    canonical_combining_class(first) == 0 && is_nfc_quick(std::iter::once(first)) != IsNormalized::Maybe
}

fn plain_form(c: char) -> char {
    match c {
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        _ if is_unusual_space(c) => ' ',
        // As the model saw it.
        _ if stray_byte(c).is_some() => '\u{fffd}',
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use proptest::prelude::*;

    use super::*;

    fn origin_text(original: &str, wanted: &str) -> (String, String, String) {
        let normalized = Normalized::new(original);
        let start = normalized.text.find(wanted).unwrap();
        let origin = normalized.origin(start..start + wanted.len());
        (origin.before.to_owned(), original[origin.range].to_owned(), origin.after.to_owned())
    }

    #[test]
    fn forms_that_look_alike_become_one() {
        for (original, normal) in [
            ("\u{2018}a\u{2019} \u{201c}b\u{201d}", "'a' \"b\""),
            ("1\u{2013}2\u{2014}3\u{2212}4", "1-2-3-4"),
            ("a\u{a0}b\u{3000}c", "a b c"),
            ("a  \nb\t\n  \nc", "a\nb\n\nc"),
            ("ﬁ", "fi"),
            ("e\u{301}", "é"),
            ("ｶﾞ", "ガ"),
            ("\u{1112}\u{1161}\u{11ab}", "한"),
        ] {
            assert_eq!(Normalized::new(original).text, normal);
        }
    }

    #[test]
    fn a_match_leads_back_to_its_origin() {
        for (original, wanted, origin) in [
            ("x \u{201c}a\u{201d}; y", "\"a\"", ("", "\u{201c}a\u{201d}", "")),
            ("a  \nb  \nc", "a\nb", ("", "a  \nb", "")),
            ("a  \nb  \nc", "a\nb\n", ("", "a  \nb  \n", "")),
            ("oﬃce", "fice", ("f", "ﬃce", "")),
            ("oﬃce", "of", ("", "oﬃ", "fi")),
            ("re\u{301}sume\u{301}", "sumé", ("", "sume\u{301}", "")),
        ] {
            let (before, text, after) = origin;
            assert_eq!(origin_text(original, wanted), (before.to_owned(), text.to_owned(), after.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn the_form_is_that_of_the_whole_text(
            parts in prop::collection::vec(prop_oneof![
                Just("a"), Just("e\u{301}"), Just("\u{301}"), Just("\u{323}"), Just(" "), Just("\n"), Just("\u{a0}"),
                Just("ﬁ"), Just("ｶ"), Just("\u{ff9e}"), Just("\u{1112}"), Just("\u{1161}"), Just("\u{11ab}"),
                Just("\u{2019}"), Just("\u{2014}"), Just("漢"), Just("\u{1d15e}"), Just("ﾡ"), Just("\u{0344}"),
            ], 0..20),
        ) {
            let original = parts.concat();
            let whole: String = original.nfkc().collect::<String>()
                .split('\n').map(str::trim_end).collect::<Vec<_>>().join("\n")
                .chars().map(plain_form).collect();
            let normalized = Normalized::new(&original);
            prop_assert_eq!(&normalized.text, &whole);
            for (start, c) in whole.char_indices() {
                let range = start..start + c.len_utf8();
                let origin = normalized.origin(range.clone());
                let again = Normalized::new(&original[origin.range]).text;
                let expected = format!("{}{}{}", origin.before, &whole[range], origin.after);
                prop_assert!(again == expected.trim_end() || again == expected);
            }
        }
    }
}
