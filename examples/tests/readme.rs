//! What the README shows is what is here.

use pretty_assertions::assert_eq;

const README: &str = include_str!("../../README.md");

/// The first block of code in this language.
fn block(language: &str) -> Option<&'static str> {
    let (_, rest) = README.split_once(&format!("```{language}\n"))?;
    rest.split_once("```\n").map(|(block, _)| block)
}

#[test]
fn programs_are_those_of_the_examples() {
    assert_eq!(block("rust").unwrap(), include_str!("../src/bin/minimal.rs"));
    assert_eq!(block("python").unwrap(), include_str!("../python/ask.py"));
    assert_eq!(block("js").unwrap(), include_str!("../node/ask.mjs"));
}

#[test]
fn every_command_is_named() {
    let missing: Vec<_> = dreb_client::protocol::COMMANDS
        .iter()
        .map(|command| command.name)
        .filter(|name| !README.contains(&format!("`{name}`")))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn linked_files_are_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let targets = README.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let local: Vec<_> = targets.filter(|target| !target.contains("://")).collect();
    assert!(local.len() > 4);
    for target in local {
        assert!(root.join(target).exists(), "{target}");
    }
}
