//! Finding the one place to replace.

use super::fuzzy::Normalized;

/// Why nothing was replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplaceError {
    NotFound,
    /// The old text stands there this many times.
    Several(usize),
    NoChange,
}

/// Replaces the one occurrence of `old`; only that stretch changes. An occurrence may differ in
/// whitespace at the ends of lines and in forms of quotes, dashes, spaces and letters, and all such
/// occurrences count.
pub(super) fn replace(text: &str, old: &str, new: &str) -> Result<String, ReplaceError> {
    let exact = text.find(old);
    let normal_old = Normalized::new(old).text;
    if normal_old.is_empty() {
        // Nothing is left to compare by, so only the exact text counts; and an empty text is everywhere.
        let start = exact.ok_or(ReplaceError::NotFound)?;
        let number = text.matches(old).count();
        return if number > 1 {
            Err(ReplaceError::Several(number))
        } else {
            splice(text, start..start + old.len(), new)
        };
    }
    let normalized = Normalized::new(text);
    let fuzzy = normalized.text.find(&normal_old);
    if exact.is_none() && fuzzy.is_none() {
        return Err(ReplaceError::NotFound);
    }
    let number = normalized.text.matches(&normal_old).count();
    if number > 1 {
        return Err(ReplaceError::Several(number));
    }
    match (exact, fuzzy) {
        (Some(start), _) => splice(text, start..start + old.len(), new),
        (None, Some(start)) => {
            let origin = normalized.origin(start..start + normal_old.len());
            let new = [origin.before, new, origin.after].concat();
            splice(text, origin.range, &new)
        }
        (None, None) => Err(ReplaceError::NotFound),
    }
}

fn splice(text: &str, range: std::ops::Range<usize>, new: &str) -> Result<String, ReplaceError> {
    if &text[range.clone()] == new {
        return Err(ReplaceError::NoChange);
    }
    Ok([&text[..range.start], new, &text[range.end..]].concat())
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn the_one_occurrence_is_replaced() {
        assert_eq!(replace("a b c", "b", "$1"), Ok("a $1 c".to_owned()));
        assert_eq!(replace("", "", "x"), Ok("x".to_owned()));
        assert_eq!(replace("a\tb", "\t", " "), Ok("a b".to_owned()));
    }

    #[test]
    fn a_fuzzy_occurrence_is_replaced_and_the_rest_left_alone() {
        let text = "\u{201c}keep\u{201d}  \nlet s = \u{2018}x\u{2019};  \nend\t\n";
        assert_eq!(
            replace(text, "let s = 'x';\nend", "let s = 1;\nEND"),
            Ok("\u{201c}keep\u{201d}  \nlet s = 1;\nEND\t\n".to_owned())
        );
        assert_eq!(replace("oﬃce", "fice", "FICE"), Ok("ofFICE".to_owned()));
    }

    #[test]
    fn failures() {
        assert_eq!(replace("abc", "x", "y"), Err(ReplaceError::NotFound));
        assert_eq!(replace("abc", "  ", "y"), Err(ReplaceError::NotFound));
        assert_eq!(replace("a a", "a", "y"), Err(ReplaceError::Several(2)));
        assert_eq!(replace("\u{2019} '", "'", "y"), Err(ReplaceError::Several(2)));
        assert_eq!(replace("ab", "", "y"), Err(ReplaceError::Several(3)));
        assert_eq!(replace("abc", "b", "b"), Err(ReplaceError::NoChange));
    }
}
