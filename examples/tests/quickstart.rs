//! The quickstart as a user runs it.

use std::process::{Command, Output};

use pretty_assertions::assert_eq;

fn quickstart(args: &[&str]) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_quickstart")).args(args).env_remove("DREB_LOG").output();
    run.unwrap_or_else(|error| panic!("the quickstart does not start: {error}"))
}

#[test]
fn the_script_mends_the_project() {
    let run = quickstart(&[]);
    let shown = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{shown}\n{}", String::from_utf8_lossy(&run.stderr));
    let parts = [
        "Model    scripted/scripted, thinking ",
        "\nPrompt   The tests fail",
        "\nI run the tests to see what fails.\n",
        "\n> bash sh run-tests.sh\n  ok    major\n",
        "\n  FAIL  newest of three: expected 1.10.0, got 1.9.0\n",
        "\n> grep newest\\(\\)\n  version.sh:14: newest() {\n",
        "\n> read version.sh\n  # Functions on version numbers",
        "\n> edit version.sh\n",
        "\n  -15     printf '%s\\n' \"$@\" | sort | tail -n 1\n",
        "\n  +15     printf '%s\\n' \"$@\" | sort -t . -k 1,1n -k 2,2n -k 3,3n | tail -n 1\n",
        "\n  all tests pass\n",
        "\nThe tests pass. `newest` in version.sh",
        "\n\nChecked: the project's tests pass.\n6 answers, ",
    ];
    let mut rest = &*shown;
    for part in parts {
        let place = rest.find(part).unwrap_or_else(|| panic!("no {part:?} in the rest of\n{shown}"));
        // The line feed at the end of one part may begin the next.
        rest = &rest[place + part.len() - 1..];
    }
    assert!(!shown.contains('\x1b'), "{shown}");
}

#[test]
fn a_model_that_is_not_there_is_a_failure() {
    let run = quickstart(&["--provider", "nowhere", "--model", "none"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).starts_with("Error: the server ended before it answered: "));
}

#[test]
fn help_names_every_option_and_mistakes_end_with_2() {
    let run = quickstart(&["--help"]);
    assert!(run.status.success());
    let help = String::from_utf8(run.stdout).unwrap();
    for option in ["--provider", "--model", "--thinking", "--keep", "--help"] {
        assert!(help.contains(option), "{help}");
    }
    let run = quickstart(&["--bogus"]);
    assert_eq!(run.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(run.stderr).unwrap(),
        "Error: unknown argument --bogus; --help shows the known ones\n"
    );
}
