//! What the README shows is what is built here.

use pretty_assertions::assert_eq;

const README: &str = include_str!("../../README.md");

#[test]
fn the_program_of_the_readme_is_the_minimal_example() {
    let (_, rest) = README.split_once("```rust\n").unwrap();
    let (program, _) = rest.split_once("```\n").unwrap();
    assert_eq!(program, include_str!("../src/bin/minimal.rs"));
}

#[test]
fn the_readme_names_every_command() {
    for command in dreb_client::protocol::COMMANDS {
        assert!(README.contains(&format!("`{}`", command.name)), "{}", command.name);
    }
}
