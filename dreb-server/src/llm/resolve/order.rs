//! The order of ids as a locale has it: punctuation, digits, letters; case counts last.

use std::cmp::Ordering;

/// Punctuation and symbols of ASCII in the root order of the Unicode collation algorithm.
const PUNCTUATION: &str = "_-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$";

/// Compares two ids.
pub(super) fn collate(one: &str, other: &str) -> Ordering {
    let primary = one.chars().map(weight).cmp(other.chars().map(weight));
    // Small letters stand before capital ones, the reverse of their codes.
    primary.then_with(|| other.cmp(one))
}

fn weight(character: char) -> (u8, u32) {
    if let Some(place) = PUNCTUATION.find(character) {
        // The string is short.
        return (1, place as u32);
    }
    let folded = character.to_lowercase().next().unwrap_or(character);
    match folded {
        _ if folded.is_whitespace() => (0, folded.into()),
        _ if folded.is_numeric() => (2, folded.into()),
        _ => (3, folded.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_a_locale() {
        let ordered = [
            "claude-opus-4-5",
            "claude-opus-4-6",
            "claude-opus-4.6",
            "claude-opus-40",
            "claude-opus-a",
            "gpt",
            "GPT",
            "gpt-5",
            "gpt5",
            "gptx",
        ];
        for pair in ordered.windows(2) {
            assert_eq!(collate(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(collate(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(collate("a-b", "a-b"), Ordering::Equal);
    }
}
