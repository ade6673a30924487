//! `~/.dreb/secrets/providers.env`: variables for the server that are in no shell profile.

use std::path::Path;

use crate::environment::Environment;
use crate::small_file;

/// The environment with the file's variables added; those that are set already win.
///
/// A missing or unreadable file adds nothing.
pub(super) fn with_secrets(environment: Environment) -> Environment {
    let Some(home) = environment.get("HOME") else { return environment };
    let bytes = small_file::read(&Path::new(home).join(".dreb/secrets/providers.env"));
    match bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
        Some(text) => environment.with_defaults(variables(&text)),
        None => environment,
    }
}

/// Lines `KEY=value`; blank lines and `#` lines are skipped, one pair of quotes is taken off.
fn variables(text: &str) -> impl Iterator<Item = (String, String)> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
        let (name, value) = (name.trim(), value.trim());
        let unquoted =
            ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value);
        (!name.is_empty()).then(|| (name.to_owned(), unquoted.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_and_values() {
        let text = "# c\n\n A = b c \nQ='x y'\nD=\"\"\nbroken\n=v\nE=a=b\n";
        let pairs: Vec<_> = variables(text).collect();
        let expected = [("A", "b c"), ("Q", "x y"), ("D", ""), ("E", "a=b")];
        assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
