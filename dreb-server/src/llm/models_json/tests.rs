use pretty_assertions::assert_eq;
use proptest::prelude::*;
use protocol_schema::model::ModelCost;
use serde_json::json;

use super::*;
use crate::llm::catalog;

fn parse(text: &str) -> (ModelsFile, Vec<String>) {
    ModelsFile::parse(text, Path::new("/a/models.json"))
}

fn parse_value(value: &Value) -> (ModelsFile, Vec<String>) {
    parse(&value.to_string())
}

/// The only message about a single provider.
fn complaint(name: &str, entry: Value) -> String {
    let (_, mut messages) = parse_value(&json!({ "providers": { name: entry } }));
    assert_eq!(messages.len(), 1, "{messages:?}");
    messages.remove(0)
}

fn entry(name: &str, entry: Value) -> ProviderEntry {
    let (mut file, messages) = parse_value(&json!({ "providers": { name: entry } }));
    assert_eq!(messages, [""; 0]);
    file.providers.remove(0)
}

#[test]
fn a_custom_model_gets_the_documented_defaults() {
    let entry = entry(
        "local",
        json!({
            "baseUrl": "http://127.0.0.1:8080/v1",
            "api": "openai-completions",
            "apiKey": "LOCAL_KEY",
            "models": [{ "id": "qwen" }],
        }),
    );
    let model = entry.own_models().next().unwrap();
    assert_eq!(
        serde_json::to_value(model).unwrap(),
        json!({
            "id": "qwen", "name": "qwen", "api": "openai-completions", "provider": "local",
            "baseUrl": "http://127.0.0.1:8080/v1", "reasoning": false, "input": ["text"],
            "cost": { "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0 },
            "contextWindow": 128_000, "maxTokens": 16_384,
        })
    );
    assert!(!entry.needs_no_key());
}

#[test]
fn a_custom_model_is_merged_with_its_provider() {
    let entry = entry(
        "local",
        json!({
            "baseUrl": "http://p/v1", "api": "openai-completions", "apiKey": "k", "authHeader": true,
            "headers": { "x-a": "provider", "x-b": "provider" },
            "compat": { "supportsStore": false, "openRouterRouting": { "only": ["a"], "order": ["b"] } },
            "models": [{
                "id": "m", "name": "M", "reasoning": true, "input": ["text", "image"], "api": "openai-responses",
                "baseUrl": "http://m/v1", "contextWindow": 65536.0, "maxTokens": 8192,
                "cost": { "input": 1, "output": 2.5, "cacheRead": 0.1, "cacheWrite": 0 },
                "headers": { "X-B": "model" },
                "compat": { "maxTokensField": "max_tokens", "openRouterRouting": { "order": ["c"] } },
            }],
        }),
    );
    let model = entry.own_models().next().unwrap();
    assert_eq!(
        serde_json::to_value(model).unwrap(),
        json!({
            "id": "m", "name": "M", "api": "openai-responses", "provider": "local", "baseUrl": "http://m/v1",
            "reasoning": true, "input": ["text", "image"],
            "cost": { "input": 1, "output": 2.5, "cacheRead": 0.1, "cacheWrite": 0 },
            "contextWindow": 65_536, "maxTokens": 8192,
            "headers": { "x-a": "provider", "X-B": "model" },
            "authMode": "bearer",
            "compat": {
                "supportsStore": false,
                "openRouterRouting": { "only": ["a"], "order": ["c"] },
                "maxTokensField": "max_tokens",
            },
        })
    );
}

#[test]
fn built_in_models_are_changed_by_provider_and_by_id() {
    let entry = entry(
        "anthropic",
        json!({
            "baseUrl": "https://proxy.example/anthropic", "authHeader": true,
            "headers": { "x-team": "red" }, "compat": { "one": 1 },
            "modelOverrides": {
                "claude-opus-4-6": {
                    "name": "Pinned", "reasoning": false, "input": ["text"], "cost": { "input": 1 },
                    "contextWindow": 10, "maxTokens": 5, "headers": { "x-team": "blue" }, "compat": { "two": 2 },
                },
                "no-such-model": { "name": "Nothing" },
            },
        }),
    );
    let mut model = catalog::find("anthropic", "claude-opus-4-6").unwrap();
    let before = model.clone();
    entry.change(&mut model);
    assert_eq!(model.base_url, "https://proxy.example/anthropic");
    assert_eq!(
        (model.name.as_str(), model.reasoning, model.input.as_slice()),
        ("Pinned", false, &["text".to_owned()][..])
    );
    assert_eq!((model.context_window, model.max_tokens), (10, 5));
    assert_eq!(model.cost, ModelCost { input: 1.0.into(), ..before.cost });
    assert_eq!(model.headers, json!({ "x-team": "blue" }).as_object().cloned());
    assert_eq!(model.auth_mode.as_deref(), Some("bearer"));
    assert_eq!(model.compat.as_ref().unwrap()["one"], json!(1));
    assert_eq!(model.compat.as_ref().unwrap()["two"], json!(2));
    assert_eq!(model.compat.as_ref().unwrap()["forceAdaptiveThinking"], json!(true), "the catalog's own stay");

    let mut other = catalog::find("anthropic", "claude-sonnet-4-5").unwrap();
    let name = other.name.clone();
    entry.change(&mut other);
    assert_eq!((other.name, other.base_url), (name, "https://proxy.example/anthropic".to_owned()));
}

#[test]
fn comments_and_trailing_commas_are_accepted() {
    let (file, messages) =
        parse("{ \"providers\": { // mine\n \"openai\": { \"baseUrl\": \"http://x//y\", /* all */ }, }, }");
    assert_eq!(messages, [""; 0]);
    assert_eq!(file.provider("openai").unwrap().base_url.as_deref(), Some("http://x//y"));
    assert_eq!(file.provider("anthropic"), None);
}

#[test]
fn a_file_that_is_no_json_is_told() {
    let (file, messages) = parse("{\n  \"providers\": {]\n}");
    assert_eq!(file, ModelsFile::default());
    assert_eq!(
        messages,
        ["Failed to parse models.json: key must be a string at line 2 column 17\n\nFile: /a/models.json"]
    );
}

#[test]
fn wrong_types_are_told_by_their_place() {
    for (text, line) in [
        ("[]", "root: must be object"),
        ("{}", "root: must have required property 'providers'"),
        ("{\"providers\":[]}", "/providers: must be object"),
        ("{\"providers\":{\"a/b\":5}}", "/providers/a~1b: must be object"),
        ("{\"providers\":{\"a\":{\"baseUrl\":\"\"}}}", "/providers/a/baseUrl: must be a non-empty string"),
        ("{\"providers\":{\"a\":{\"models\":{}}}}", "/providers/a/models: must be array"),
        ("{\"providers\":{\"a\":{\"authHeader\":1}}}", "/providers/a/authHeader: must be boolean"),
        ("{\"providers\":{\"a\":{\"headers\":{\"x\":1}}}}", "/providers/a/headers: must be an object of strings"),
    ] {
        let (file, messages) = parse(text);
        assert_eq!(file.providers, [], "{text}");
        assert_eq!(messages, [format!("Invalid models.json schema:\n  - {line}\n\nFile: /a/models.json")], "{text}");
    }
}

#[test]
fn one_message_has_all_wrong_types_and_the_rest_counts() {
    let (file, messages) = parse_value(&json!({ "providers": {
        "good": { "baseUrl": "http://good" },
        "bad": { "baseUrl": 5, "api": "" },
        "half": {
            "baseUrl": "http://half", "apiKey": "k", "api": "openai-completions",
            "modelOverrides": { "a": { "name": 1, "cost": { "input": "x" } }, "b": { "name": "B", "maxTokens": 0 }, "c": {} },
            "models": [
                { "id": "ok" },
                { "id": "" },
                { "name": "no id" },
                { "id": "x", "input": ["sound"] },
                { "id": "y", "cost": { "input": 1, "output": 1, "cacheRead": 1 } },
                "z",
            ],
        },
    }}));
    let names: Vec<_> = file.providers.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["good", "half"]);
    let half = file.provider("half").unwrap();
    let ids: Vec<_> = half.models.iter().map(|custom| custom.model.id.as_str()).collect();
    assert_eq!(ids, ["ok"]);
    assert_eq!(half.overrides, [("c".to_owned(), Override::default())]);
    assert_eq!(
        messages,
        ["Invalid models.json schema:\n\
          \x20 - /providers/bad/baseUrl: must be a non-empty string\n\
          \x20 - /providers/bad/api: must be a non-empty string\n\
          \x20 - /providers/half/modelOverrides/a/name: must be a non-empty string\n\
          \x20 - /providers/half/modelOverrides/a/cost/input: must be number\n\
          \x20 - /providers/half/modelOverrides/b/maxTokens: must be a positive number\n\
          \x20 - /providers/half/models/1/id: must be a non-empty string\n\
          \x20 - /providers/half/models/2: must have required property 'id'\n\
          \x20 - /providers/half/models/3/input: must be an array of \"text\" and \"image\"\n\
          \x20 - /providers/half/models/4/cost: must have required property 'cacheWrite'\n\
          \x20 - /providers/half/models/5: must be object\n\n\
          File: /a/models.json"]
    );
}

#[test]
fn what_types_cannot_say_is_told_in_the_known_words() {
    let load = |text: &str| format!("Failed to load models.json: {text}\n\nFile: /a/models.json");
    let models = json!([{ "id": "m" }]);
    for (value, text) in [
        (
            json!({ "headers": { "a": "b" }, "apiKey": "k", "modelOverrides": {}, "models": [] }),
            "Provider p: must specify \"baseUrl\", \"compat\", \"modelOverrides\", or \"models\".",
        ),
        (
            json!({ "apiKey": "k", "models": models }),
            "Provider p: \"baseUrl\" is required when defining custom models.",
        ),
        (
            json!({ "baseUrl": "u", "api": "a", "models": models }),
            "Provider p: \"apiKey\" is required when defining custom models.",
        ),
        (
            json!({ "baseUrl": "u", "apiKey": "k", "models": models }),
            "Provider p, model m: no \"api\" specified. Set at provider or model level.",
        ),
        (
            json!({ "baseUrl": "u", "apiKey": "k", "api": "a", "models": [{ "id": "m", "contextWindow": 0 }] }),
            "Provider p, model m: invalid contextWindow",
        ),
        (
            json!({ "baseUrl": "u", "apiKey": "k", "api": "a", "models": [{ "id": "m", "maxTokens": -1 }] }),
            "Provider p, model m: invalid maxTokens",
        ),
        (
            json!({ "baseUrl": "u", "apiKey": "k", "api": "scripted", "models": models }),
            "Provider p, model m: api \"scripted\" is for the provider \"scripted\" only.",
        ),
    ] {
        assert_eq!(complaint("p", value), load(text));
    }
}

#[test]
fn an_invalid_model_leaves_the_other_parts_of_its_provider() {
    let (file, messages) = parse_value(&json!({ "providers": { "p": {
        "baseUrl": "u", "apiKey": "k", "models": [{ "id": "a" }, { "id": "b", "api": "openai-completions" }],
    }}}));
    assert_eq!(messages.len(), 1);
    let ids: Vec<_> = file.providers[0].own_models().map(|model| model.id).collect();
    assert_eq!(ids, ["b"]);
}

#[test]
fn of_two_models_with_one_id_the_later_counts_in_the_place_of_the_first() {
    let entry = entry(
        "p",
        json!({ "baseUrl": "u", "apiKey": "k", "api": "a", "models": [
            { "id": "a", "name": "first" }, { "id": "b" }, { "id": "a", "name": "second" },
        ]}),
    );
    let names: Vec<_> = entry.own_models().map(|model| model.name).collect();
    assert_eq!(names, ["second", "b"]);
}

#[test]
fn scripts_lie_relative_to_the_file_and_need_no_key() {
    let short = entry("scripted", json!({ "api": "scripted", "baseUrl": "file:demo.json" }));
    let model = short.own_models().next().unwrap();
    assert_eq!((model.id.as_str(), model.base_url.as_str()), ("scripted", "/a/demo.json"));
    assert!(short.needs_no_key());

    let long = entry(
        "scripted",
        json!({ "api": "scripted", "baseUrl": "one.json", "models": [
            { "id": "one" }, { "id": "two", "baseUrl": "file:///b/two.json", "contextWindow": 4000 },
        ]}),
    );
    let places: Vec<_> = long.own_models().map(|model| (model.base_url, model.context_window)).collect();
    assert_eq!(places, [("/a/one.json".to_owned(), 128_000), ("/b/two.json".to_owned(), 4000)]);
    assert!(long.needs_no_key());
}

#[test]
fn a_script_needs_its_file() {
    assert_eq!(
        complaint("scripted", json!({ "api": "scripted", "compat": {} })),
        "Failed to load models.json: Provider scripted: \"baseUrl\" is required when defining custom models.\n\n\
         File: /a/models.json"
    );
}

#[tokio::test]
async fn values_are_put_in_place_and_failures_named_without_them() {
    let (mut file, messages) = parse_value(&json!({ "providers": { "p": {
        "baseUrl": "u", "apiKey": "!echo secret-key; exit 2", "api": "a",
        "headers": { "x-var": "TEAM", "x-text": "plain", "x-bad": "!echo secret-header; false" },
        "modelOverrides": { "o": { "headers": { "x-o": "!echo over" } } },
        "models": [{ "id": "m", "headers": { "x-m": "!true" } }],
    }}}));
    assert_eq!(messages, [""; 0]);
    let environment = [("TEAM".to_owned(), "red".to_owned())].into_iter().collect();
    let values = Values::new(environment);
    assert_eq!(
        file.resolve(&values).await,
        [
            "models.json: the command of providers.p.apiKey failed: exit status: 2",
            "models.json: the command of providers.p.headers.x-bad failed: exit status: 1",
            "models.json: the command of providers.p.models.m.headers.x-m printed nothing",
        ]
    );
    let entry = &file.providers[0];
    let headers = entry.own_models().next().unwrap().headers;
    assert_eq!(headers, json!({ "x-var": "red", "x-text": "plain" }).as_object().cloned());
    assert_eq!(entry.overrides[0].1.headers, [("x-o".to_owned(), Secret::new("over"))]);
    let printed = format!("{file:?}");
    assert!(!printed.contains("secret-key") && !printed.contains("red\"") && printed.contains("x-var"));
}

/// Any JSON, made of the words that the file knows so that it gets far.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(scripted|text|image|a)?".prop_map(Value::from),
    ];
    let word = prop_oneof![
        Just("providers"),
        Just("models"),
        Just("id"),
        Just("api"),
        Just("apiKey"),
        Just("baseUrl"),
        Just("cost"),
        Just("input"),
        Just("maxTokens"),
        Just("contextWindow"),
        Just("headers"),
        Just("compat"),
        Just("modelOverrides"),
        Just("scripted"),
        Just("p"),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(word.clone().prop_map(str::to_owned), inner, 0..6).prop_map(Value::from_iter),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_file_is_survived_and_what_it_gives_is_whole(providers in any_json()) {
        let (file, _) = parse_value(&json!({ "providers": providers }));
        for entry in &file.providers {
            for model in entry.own_models() {
                prop_assert_eq!(&model.provider, &entry.name);
                prop_assert!(!model.id.is_empty() && !model.api.is_empty() && !model.base_url.is_empty());
                prop_assert!(model.context_window > 0 && model.max_tokens > 0);
            }
        }
    }
}
