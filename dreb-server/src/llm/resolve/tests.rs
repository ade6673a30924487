use std::path::Path;

use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;
use crate::environment::Environment;
use crate::llm::Provider;
use crate::llm::silent::Silent;

fn name(reference: &str) -> ModelName {
    let (provider, id) = reference.split_once('/').unwrap();
    ModelName { provider: provider.into(), id: id.into(), name: format!("The {id}") }
}

fn names(references: &[&str]) -> Vec<ModelName> {
    references.iter().copied().map(name).collect()
}

fn reference(model: &ModelName) -> String {
    format!("{}/{}", model.provider, model.id)
}

#[test]
fn each_way_to_match() {
    let list = names(&[
        "anthropic/claude-opus-4-5",
        "anthropic/claude-opus-4-5-20251101",
        "anthropic/claude-opus-4-6",
        "copilot/claude-opus-4.6",
        "dated/solo-20240101",
        "dated/solo-20250101",
        "groq/openai/gpt-oss",
        "openrouter/openai/gpt-oss",
        "openrouter/llama3.1:8b",
    ]);
    for (pattern, expected) in [
        ("anthropic/claude-opus-4-5", Some("anthropic/claude-opus-4-5")),
        ("ANTHROPIC/Claude-Opus-4-5", Some("anthropic/claude-opus-4-5")),
        ("groq/openai/gpt-oss", Some("groq/openai/gpt-oss")),
        ("claude-opus-4-6", Some("anthropic/claude-opus-4-6")),
        // An ambiguous id: the first in the list.
        ("openai/gpt-oss", Some("groq/openai/gpt-oss")),
        // A part: the alias that stands highest, dated ones do not count.
        ("opus", Some("copilot/claude-opus-4.6")),
        ("the claude", Some("copilot/claude-opus-4.6")),
        // Dated ones only.
        ("solo", Some("dated/solo-20250101")),
        ("llama3.1:8b", Some("openrouter/llama3.1:8b")),
        ("gemini", None),
        ("", None),
    ] {
        let found = match_pattern(pattern, &list).map(reference);
        assert_eq!(found.as_deref(), expected, "{pattern}");
    }
}

#[test]
fn aliases_are_told_from_dated_ids() {
    assert!(is_alias("claude-opus-latest") && is_alias("gpt-4o") && is_alias("x-2025010") && is_alias("plain"));
    assert!(!is_alias("claude-opus-4-5-20251101"));
}

fn parsed(pattern: &str, mode: Mode) -> Option<(String, Option<ThinkingLevel>, Option<String>)> {
    let list = names(&["a/qwen", "a/llama3.1:8b", "b/vendor/model:free"]);
    parse(pattern, &list, mode).map(|parsed| (reference(parsed.model), parsed.thinking, parsed.warning))
}

#[test]
fn patterns_may_end_in_a_level_and_ids_in_a_colon() {
    let found = |reference: &str, level: Option<ThinkingLevel>| Some((reference.to_owned(), level, None));
    for mode in [Mode::Strict, Mode::Scope] {
        assert_eq!(parsed("qwen:high", mode), found("a/qwen", Some(ThinkingLevel::High)));
        assert_eq!(parsed("llama3.1:8b", mode), found("a/llama3.1:8b", None));
        assert_eq!(parsed("llama3.1:8b:off", mode), found("a/llama3.1:8b", Some(ThinkingLevel::Off)));
        assert_eq!(parsed("vendor/model:free:low", mode), found("b/vendor/model:free", Some(ThinkingLevel::Low)));
        assert_eq!(parsed("nothing:high", mode), None);
        assert_eq!(parsed("nothing", mode), None);
    }
}

#[test]
fn a_suffix_that_is_no_level_is_an_error_or_a_warning() {
    assert_eq!(parsed("qwen:max", Mode::Strict), None);
    let warning = |pattern: &str| {
        Some(format!("Invalid thinking level \"max\" in pattern \"{pattern}\". Using default instead."))
    };
    assert_eq!(parsed("qwen:max", Mode::Scope), Some(("a/qwen".into(), None, warning("qwen:max"))));
    // The inner warning takes the level with it.
    assert_eq!(parsed("qwen:max:high", Mode::Scope), Some(("a/qwen".into(), None, warning("qwen:max"))));
}

async fn models(variables: &[(&str, &str)], file: &serde_json::Value) -> Models {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("models.json"), file.to_string()).unwrap();
    open(variables, folder.path()).await
}

async fn open(variables: &[(&str, &str)], folder: &Path) -> Models {
    let environment: Environment =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let apis = ["openai-completions", "openai-responses", "scripted"];
    let wires = apis.map(|api| Arc::new(Silent(api)) as Arc<dyn Provider>).to_vec();
    let (models, messages) = Models::open(folder, environment, wires).await;
    assert_eq!(messages, [""; 0]);
    models
}

fn fake() -> serde_json::Value {
    json!({ "providers": { "fake": {
        "baseUrl": "http://f", "apiKey": "k", "api": "openai-completions",
        "models": [{ "id": "first", "reasoning": true }, { "id": "anthropic/odd-one" }],
    }}})
}

fn flags(models: &Models, provider: Option<&str>, pattern: &str) -> Result<String, String> {
    from_flags(models, provider, pattern)
        .map(|choice| {
            format!("{}/{} {:?} {:?}", choice.model.provider, choice.model.id, choice.thinking, choice.warning)
        })
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn flags_name_a_model_in_all_documented_ways() {
    let models = models(&[], &fake()).await;
    for (provider, pattern, expected) in [
        (Some("FAKE"), "first", "fake/first None None"),
        (Some("fake"), "Fake/first", "fake/first None None"),
        (Some("fake"), "first:low", "fake/first Some(Low) None"),
        (Some("fake"), "fir", "fake/first None None"),
        (None, "fake/first", "fake/first None None"),
        (None, "fake/fir:high", "fake/first Some(High) None"),
        (None, "anthropic/claude-opus-4-6", "anthropic/claude-opus-4-6 None None"),
        (None, "o3", "azure-openai-responses/o3 None None"),
        // The slash names a provider that does not have it; another has an id with the slash.
        (None, "anthropic/odd-one", "fake/anthropic/odd-one None None"),
        (
            None,
            "fake/zzz",
            "fake/zzz None Some(\"Model \\\"zzz\\\" not found for provider \\\"fake\\\". Using custom model id.\")",
        ),
        (
            Some("anthropic"),
            "claude-next",
            "anthropic/claude-next None Some(\"Model \\\"claude-next\\\" not found for provider \\\"anthropic\\\". Using custom model id.\")",
        ),
    ] {
        assert_eq!(flags(&models, provider, pattern).as_deref(), Ok(expected), "{provider:?} {pattern}");
    }
    assert_eq!(
        flags(&models, None, "zzz/none"),
        Err("Model \"zzz/none\" not found. Use --list-models to see available models.".into())
    );
    assert_eq!(
        flags(&models, Some("zzz"), "first"),
        Err("Unknown provider \"zzz\". Use --list-models to see available providers/models.".into())
    );
}

#[tokio::test]
async fn a_made_up_model_is_shaped_as_the_default_one() {
    let models = models(&[], &fake()).await;
    let choice = from_flags(&models, Some("anthropic"), "claude-next").unwrap();
    let default = models.find("anthropic", "claude-opus-4-6").unwrap();
    let expected = Model { id: "claude-next".into(), name: "claude-next".into(), ..Model::clone(&default) };
    assert_eq!(*choice.model, expected);
    let choice = from_flags(&models, Some("fake"), "zzz").unwrap();
    assert_eq!((choice.model.base_url.as_str(), choice.model.reasoning), ("http://f", true));
}

fn model(provider: &str, id: &str) -> Arc<Model> {
    Arc::new(Model { provider: provider.into(), id: id.into(), name: id.into(), ..Model::default() })
}

#[test]
fn a_scope_takes_patterns_and_globs() {
    let available = [
        model("anthropic", "claude-opus-4-6"),
        model("anthropic", "claude-haiku-4-5"),
        model("openrouter", "anthropic/claude-opus-4.6"),
        model("openrouter", "gpt"),
    ];
    let scoped = |patterns: &[&str]| {
        let (entries, warnings) = scope(patterns, &available);
        let entries: Vec<_> = entries.iter().map(|entry| (entry.model.id.clone(), entry.thinking.clone())).collect();
        (entries, warnings)
    };
    let plain = |ids: &[&str]| ids.iter().map(|id| ((*id).to_owned(), None)).collect::<Vec<_>>();
    assert_eq!(
        scoped(&["anthropic/*"]),
        (plain(&["claude-opus-4-6", "claude-haiku-4-5", "anthropic/claude-opus-4.6"]), vec![])
    );
    assert_eq!(scoped(&["OPENROUTER/*"]), (plain(&["gpt"]), vec![]));
    assert_eq!(
        scoped(&["*haiku*:low", "haiku:high", "gp?", "nothing*", "none"]),
        (
            vec![("claude-haiku-4-5".into(), Some(ThinkingLevel::Low)), ("gpt".into(), None)],
            vec!["No models match pattern \"nothing*\"".into(), "No models match pattern \"none\"".into()]
        )
    );
    assert_eq!(
        scoped(&["gpt:huge"]),
        (
            plain(&["gpt"]),
            vec!["Invalid thinking level \"huge\" in pattern \"gpt:huge\". Using default instead.".into()]
        )
    );
}

#[test]
fn every_provider_of_the_catalog_has_a_default_that_exists() {
    for provider in crate::llm::catalog::providers() {
        let ids = default_ids(provider);
        assert!(ids.iter().any(|id| crate::llm::catalog::contains(provider, id)), "{provider}");
    }
}

fn started(models: &Models, wishes: &StartWishes<'_>) -> (String, ThinkingLevel) {
    let start = start(models, wishes).unwrap();
    (format!("{}/{}", start.model.provider, start.model.id), start.thinking)
}

#[tokio::test]
async fn the_start_follows_the_documented_steps() {
    use ThinkingLevel::{High, Low, Medium, Minimal, Off, Xhigh};
    let models = models(&[("XAI_API_KEY", "k"), ("OPENAI_API_KEY", "k")], &fake()).await;
    let scope = [
        ScopeEntry { model: models.find("xai", "grok-4.7").unwrap(), thinking: Some(Low) },
        ScopeEntry { model: models.find("fake", "first").unwrap(), thinking: None },
    ];
    let none = StartWishes::default();
    // 6: the first provider of the table with a key.
    assert_eq!(started(&models, &none), ("openai/gpt-5.4".into(), Xhigh));
    // 5: the settings, with or without a key.
    let set = StartWishes {
        default_model: Some(("groq", "openai/gpt-oss-120b")),
        default_thinking: Some(Medium),
        ..none.clone()
    };
    assert_eq!(started(&models, &set), ("groq/openai/gpt-oss-120b".into(), Medium));
    let gone = StartWishes { default_model: Some(("groq", "gone")), ..none.clone() };
    assert_eq!(started(&models, &gone).0, "openai/gpt-5.4");
    // 2: a scope, its level and the default in it.
    let scoped = StartWishes { scope: &scope, ..set.clone() };
    assert_eq!(started(&models, &scoped), ("xai/grok-4.7".into(), Low));
    let inside = StartWishes { default_model: Some(("fake", "first")), ..scoped.clone() };
    assert_eq!(started(&models, &inside), ("fake/first".into(), Medium));
    // 4: a session without messages begins with the scope, without its level.
    let resumed = StartWishes { continues: true, ..scoped.clone() };
    assert_eq!(started(&models, &resumed), ("xai/grok-4.7".into(), Medium));
    // 3: the session's own model and level.
    let session = StartWishes {
        has_messages: true,
        session_model: Some(("fake", "first")),
        session_thinking: Some(Minimal),
        ..resumed.clone()
    };
    assert_eq!(started(&models, &session), ("fake/first".into(), Minimal));
    // 1: flags go before everything; the flag's level before the pattern's.
    let flags = StartWishes { provider: Some("fake"), model: Some("first:low"), ..session.clone() };
    assert_eq!(started(&models, &flags), ("fake/first".into(), Low));
    let both = StartWishes { thinking: Some(Xhigh), ..flags.clone() };
    assert_eq!(started(&models, &both), ("fake/first".into(), High), "clamped to the model");
    let dull = StartWishes { model: Some("fake/anthropic/odd-one"), ..StartWishes::default() };
    assert_eq!(started(&models, &dull).1, Off);
}

#[tokio::test]
async fn a_session_whose_model_is_gone_says_so() {
    let models = models(&[("OPENAI_API_KEY", "k")], &json!({ "providers": {} })).await;
    for (provider, id, reason) in
        [("fake", "first", "not found in registry"), ("groq", "openai/gpt-oss-120b", "no API key available")]
    {
        let wishes = StartWishes { has_messages: true, session_model: Some((provider, id)), ..StartWishes::default() };
        let start = start(&models, &wishes).unwrap();
        assert_eq!(
            start.fallback_message,
            Some(format!("Could not restore model {provider}/{id} ({reason}). Using openai/gpt-5.4"))
        );
    }
}

#[tokio::test]
async fn without_credentials_only_a_script_is_left() {
    let empty = json!({ "providers": {} });
    let nobody = models(&[], &empty).await;
    assert_eq!(start(&nobody, &StartWishes::default()), Err(ResolveError::NoneAvailable));
    assert_eq!(ResolveError::NoneAvailable.to_string(), "No models available.");

    let script = models(&[("DREB_SCRIPT", "/s.json")], &empty).await;
    assert_eq!(started(&script, &StartWishes::default()).0, "scripted/scripted");
    let named = StartWishes { provider: Some("scripted"), model: Some("scripted"), ..StartWishes::default() };
    assert_eq!(started(&script, &named).0, "scripted/scripted");

    let both = models(&[("DREB_SCRIPT", "/s.json"), ("XAI_API_KEY", "k")], &empty).await;
    assert_eq!(started(&both, &StartWishes::default()).0, "xai/grok-4.7");

    let custom = models(&[("DREB_SCRIPT", "/s.json")], &fake()).await;
    assert_eq!(started(&custom, &StartWishes::default()).0, "fake/first");
}
