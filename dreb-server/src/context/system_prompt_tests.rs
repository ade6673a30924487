use std::fs;

use pretty_assertions::assert_eq;

use super::*;

fn tool(name: &str, snippet: Option<&str>, guidelines: &[&str]) -> ToolLine {
    ToolLine {
        name: name.into(),
        snippet: snippet.map(Into::into),
        guidelines: guidelines.iter().map(|line| (*line).to_owned()).collect(),
    }
}

fn parts() -> PromptParts {
    PromptParts {
        tools: vec![
            tool("read", Some("Read files"), &["Read before editing", "Prefer small reads"]),
            tool("quiet", None, &["Read before editing"]),
            tool("bash", Some("Run commands"), &[]),
        ],
        date: "2026-02-03".into(),
        cwd: "/srv/app".into(),
        ui: "rpc".into(),
        model: Some(ModelRef { provider: "anthropic".into(), id: "claude-opus-4-6".into() }),
        ..PromptParts::default()
    }
}

const CLOSING: &str = "Current date: 2026-02-03\nCurrent working directory: /srv/app\nUI: a program that embeds you and \
                       shows your answers in its own way; plain Markdown is safe\nYou are running on: \
                       anthropic/claude-opus-4-6";

#[test]
fn the_built_in_prompt_lists_tools_and_guidelines() {
    assert_eq!(
        system_prompt(&parts()),
        format!(
            "{BASE}\n\nTools:\n- read: Read files\n- bash: Run commands\n\nGuidelines:\n- Read before editing\n- Prefer \
             small reads\n\n{CLOSING}"
        )
    );
    let bare = PromptParts { tools: vec![tool("quiet", None, &[])], ..parts() };
    assert_eq!(system_prompt(&bare), format!("{BASE}\n\n{CLOSING}"));
}

#[test]
fn parts_stand_in_their_order() {
    let parts = PromptParts {
        custom: Some("Own text.\n".into()),
        append: Some("Appended.".into()),
        context_files: vec![
            ContextFile { path: "/home/u/AGENTS.md".into(), content: "Use tabs.\n\n".into() },
            ContextFile { path: "/srv/app/CLAUDE.md".into(), content: "\nTest first.".into() },
        ],
        sections: vec!["# Skills\n\nNone.".into(), "  ".into()],
        project_state: Some(ProjectState {
            branch: "main".into(),
            uncommitted: Some(2),
            commits: vec!["abc Fix".into(), "def Add".into()],
        }),
        is_root: true,
        ..parts()
    };
    assert_eq!(
        system_prompt(&parts),
        format!(
            "Own text.\n\nAppended.\n\n# Project Context\n\nInstructions of the user and the project. Follow them.\n\n## \
             /home/u/AGENTS.md\n\nUse tabs.\n\n## /srv/app/CLAUDE.md\n\nTest first.\n\n# Skills\n\nNone.\n\n# Project \
             State\n\nAs it was when the session began.\n\nBranch: main\nUncommitted files: 2\nLatest commits:\n- abc \
             Fix\n- def Add\n\nWARNING: you run as root (UID 0). Nothing on this machine is protected from your \
             commands. Be careful with everything outside the project.\n\n{CLOSING}"
        )
    );
}

#[test]
fn the_user_interface_is_described_or_named() {
    for word in ["tui", "telegram", "rpc", "cli", "agent"] {
        assert_ne!(ui_description(word), word);
    }
    assert_eq!(ui_description("a web page"), "a web page");
    let prompt = system_prompt(&PromptParts { ui: "a web page".into(), model: None, ..parts() });
    assert!(prompt.ends_with("Current working directory: /srv/app\nUI: a web page"), "{prompt}");
}

#[test]
fn dates_are_iso() {
    let today = today();
    assert!(chrono::NaiveDate::parse_from_str(&today, "%Y-%m-%d").is_ok(), "{today}");
    assert_eq!(today.len(), 10);
}

struct Home {
    folder: tempfile::TempDir,
    paths: Paths,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths {
            home: folder.path().into(),
            agent_dir: folder.path().join("agent"),
            cwd: folder.path().join("work"),
            temp_dir: folder.path().join("tmp"),
        };
        fs::create_dir_all(paths.cwd.join(".dreb")).unwrap();
        fs::create_dir_all(&paths.agent_dir).unwrap();
        Self { folder, paths }
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.folder.path().join(path), text).unwrap();
    }

    fn load(&self, system: Option<&str>, append: Option<&str>) -> (Option<String>, Option<String>) {
        let sources = PromptSources::load_blocking(&self.paths, system, append);
        assert_eq!(sources.warnings, Vec::<String>::new());
        (sources.custom, sources.append)
    }
}

fn both(custom: &str, append: &str) -> (Option<String>, Option<String>) {
    (Some(custom.into()), Some(append.into()))
}

#[test]
fn the_flag_beats_the_project_and_the_project_the_user() {
    let home = Home::new();
    assert_eq!(home.load(None, None), (None, None));
    home.write("agent/SYSTEM.md", "user's");
    home.write("agent/APPEND_SYSTEM.md", "user's more");
    assert_eq!(home.load(None, None), both("user's", "user's more"));
    home.write("work/.dreb/SYSTEM.md", "project's");
    home.write("work/.dreb/APPEND_SYSTEM.md", "project's more");
    assert_eq!(home.load(None, None), both("project's", "project's more"));
    assert_eq!(home.load(Some("flag"), Some("more")), both("flag", "more"));
}

#[test]
fn a_flag_is_a_path_if_such_a_file_exists() {
    let home = Home::new();
    home.write("work/prompt.md", "from the file");
    let absolute = home.paths.cwd.join("prompt.md");
    assert_eq!(home.load(Some("prompt.md"), absolute.to_str()), both("from the file", "from the file"));
    assert_eq!(home.load(Some("other.md"), Some(".dreb")), both("other.md", ".dreb"));
    let long = "words ".repeat(2000);
    assert_eq!(home.load(Some(&long), None).0, Some(long));
}

#[tokio::test]
async fn loading_in_the_background_finds_the_same() {
    let home = Home::new();
    home.write("agent/SYSTEM.md", "user's");
    let sources = PromptSources::load(&home.paths, None, Some("x".into())).await;
    assert_eq!((sources.custom, sources.append), both("user's", "x"));
}
