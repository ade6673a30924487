//! Path arguments as models write them.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use unicode_normalization::UnicodeNormalization;

use crate::environment::expand_tilde;

/// The file a path argument means, absolute as far as `cwd` is.
///
/// Surrounding quotes and a leading `@` are removed, unusual Unicode spaces become plain ones, `~` and
/// `~/` the home folder. Where nothing stands under that name but a file of exactly the given name
/// exists, that file is meant. Asks the file system, so it blocks.
#[must_use]
pub fn resolve(argument: &str, cwd: &Path) -> PathBuf {
    // Settings of the process, not of the session, and the same for all tools.
    let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
    resolve_with_home(argument, cwd, &home)
}

/// [`resolve`], and where that finds nothing, the spellings under which macOS stores file names:
/// a narrow no-break space before AM and PM, decomposed letters, the curly apostrophe.
#[must_use]
pub fn resolve_for_reading(argument: &str, cwd: &Path) -> PathBuf {
    let path = resolve(argument, cwd);
    if exists(&path) {
        return path;
    }
    // A name that is not Unicode was not typed by a model.
    let Some(text) = path.to_str() else {
        return path;
    };
    let decomposed: String = text.nfd().collect();
    [
        text.replace(" AM.", "\u{202f}AM.").replace(" PM.", "\u{202f}PM."),
        text.replace('\'', "\u{2019}"),
        decomposed.replace('\'', "\u{2019}"),
        decomposed,
    ]
    .into_iter()
    .map(PathBuf::from)
    .find(|variant| exists(variant))
    .unwrap_or(path)
}

/// A path as results show it: relative to `base` where it lies below, with `/` between names.
#[must_use]
pub fn display_relative<'a>(path: &'a Path, base: &Path) -> Cow<'a, str> {
    path.strip_prefix(base).unwrap_or(path).to_string_lossy()
}

fn resolve_with_home(argument: &str, cwd: &Path, home: &Path) -> PathBuf {
    let cleaned = clean(argument);
    let path = absolute(&expand_tilde(&cleaned, home), cwd);
    if cleaned != argument && !exists(&path) {
        let literal = absolute(Path::new(argument), cwd);
        if exists(&literal) {
            return literal;
        }
    }
    path
}

fn clean(argument: &str) -> String {
    let unquoted =
        ['"', '\''].into_iter().find_map(|quote| argument.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(argument);
    unquoted.strip_prefix('@').unwrap_or(unquoted).replace(is_unusual_space, " ")
}

/// Spaces that look like a plain one.
pub(super) fn is_unusual_space(c: char) -> bool {
    matches!(c, '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}')
}

/// Joins and removes `.` and `..` by the text alone; an absolute path stays as it is.
fn absolute(path: &Path, cwd: &Path) -> PathBuf {
    if path.is_absolute() {
        return path.to_path_buf();
    }
    let mut result = PathBuf::new();
    for component in cwd.join(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pretty_assertions::assert_eq;

    use super::*;

    #[test]
    fn arguments_are_cleaned() {
        for (argument, path) in [
            ("a.txt", "/c/a.txt"),
            ("./a/../b.txt", "/c/b.txt"),
            ("../x", "/x"),
            ("\"a b.txt\"", "/c/a b.txt"),
            ("'a.txt'", "/c/a.txt"),
            ("'a.txt", "/c/'a.txt"),
            ("@src/a.rs", "/c/src/a.rs"),
            ("a\u{a0}b\u{202f}c", "/c/a b c"),
            ("~", "/h"),
            ("~/x", "/h/x"),
            ("@~/x", "/h/x"),
            ("~user", "/c/~user"),
            ("/abs/../y", "/abs/../y"),
            ("", "/c"),
        ] {
            assert_eq!(resolve_with_home(argument, Path::new("/c"), Path::new("/h")), Path::new(path), "{argument}");
        }
    }

    #[test]
    fn a_file_of_the_literal_name_is_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("@x"), "").unwrap();
        assert_eq!(resolve("@x", dir.path()), dir.path().join("@x"));
        fs::write(dir.path().join("x"), "").unwrap();
        assert_eq!(resolve("@x", dir.path()), dir.path().join("x"));
    }

    #[test]
    fn reading_tries_the_spellings_of_macos() {
        let dir = tempfile::tempdir().unwrap();
        for (argument, stored) in [
            ("Shot 1.02 PM.png", "Shot 1.02\u{202f}PM.png"),
            ("é.txt", "e\u{301}.txt"),
            ("it's", "it\u{2019}s"),
            ("d'été", "d\u{2019}e\u{301}te\u{301}"),
        ] {
            fs::write(dir.path().join(stored), "").unwrap();
            assert_eq!(resolve_for_reading(argument, dir.path()), dir.path().join(stored), "{argument}");
        }
        assert_eq!(resolve_for_reading("none", dir.path()), dir.path().join("none"));
    }
}
