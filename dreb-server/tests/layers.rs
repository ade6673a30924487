//! The layers of the server point downwards only; this test reads the `use` lines.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an unexpected value should fail the test on the spot")]

use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the bottom up. A module may name those of lower layers and of its own module only.
const LAYERS: &[&[&str]] = &[
    &["environment", "small_file"],
    &["process"],
    &["session", "settings", "llm"],
    &["tools", "context"],
    &["agent"],
    &["rpc"],
    &["cli"],
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Modules of the crate that a source text names, as `crate::module`, in braces too.
fn named_modules(text: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut modules = Vec::new();
    for (at, path) in text.match_indices("crate::") {
        let rest = &text[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let list = list.split(';').next().unwrap_or_default();
                let mut depth = 0;
                let mut start = true;
                for (index, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && depth == 0 && c.is_alphabetic() => {
                            modules.push(word(&list[index..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
            None => modules.push(word(rest)),
        }
    }
    modules
}

/// Upward or sideways edges in a source text of `module`.
fn violations(module: &str, text: &str) -> Vec<String> {
    let Some(layer) = layer_of(module) else { return vec![format!("module {module} stands in no layer")] };
    named_modules(text)
        .into_iter()
        .filter(|named| named != module && layer_of(named).is_some_and(|other| other >= layer))
        .collect()
}

#[test]
fn no_module_uses_a_module_of_its_own_or_a_higher_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 30, "the sources were not found");
    let mut found = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&root).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" || module == "main" {
            continue;
        }
        for edge in violations(module, &fs::read_to_string(&file).unwrap()) {
            found.push(format!("{} uses {edge}", relative.display()));
        }
    }
    assert!(found.is_empty(), "upward edges:\n{}", found.join("\n"));
}

#[test]
fn an_upward_edge_is_found() {
    assert_eq!(violations("llm", "use crate::agent::X;"), ["agent"]);
    assert_eq!(violations("tools", "use crate::{llm::X, rpc::{A, B}, context};"), ["rpc", "context"]);
    assert_eq!(violations("agent", "use crate::llm::X; fn f() { crate::tools::g() }"), Vec::<String>::new());
}
