//! Choosing models and thinking levels.

use std::os::unix::fs::PermissionsExt as _;

use dreb_tests::home::providers;
use dreb_tests::notation::{event, messages, text};
use dreb_tests::{FakeProvider, Home, Reply, Server};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// The fake's models and one whose id says that it takes the level `xhigh`.
fn with_keen_model(fake: &FakeProvider) -> Home {
    let home = Home::empty();
    let mut models = providers(&fake.url());
    let list = models["providers"]["fake-openai"]["models"].as_array_mut().unwrap();
    list.push(json!({ "id": "gpt-5.4-fake", "reasoning": true }));
    home.models(&models);
    home
}

/// Switches to a model of the provider `fake-openai` and returns the level in force.
async fn switch(server: &mut Server, model: &str) -> Value {
    server.ok(json!({ "type": "set_model", "provider": "fake-openai", "modelId": model })).await;
    server.ok(json!({ "type": "get_state" })).await["thinkingLevel"].clone()
}

fn settings(home: &Home) -> Value {
    serde_json::from_str(&home.read("../.dreb/agent/settings.json")).unwrap()
}

#[tokio::test]
async fn a_switch_keeps_the_level_in_force_and_the_default_comes_back_after_a_model_that_cannot_think() {
    let fake = FakeProvider::start().await;
    let home = with_keen_model(&fake);
    let mut server = home.dreb().model("fake-openai/fake-gpt").start();
    // Without a setting `xhigh` is wished for, of which this model has `high`; that is what is kept.
    assert_eq!(switch(&mut server, "gpt-5.4-fake").await, "high");
    assert_eq!(settings(&home), json!({ "defaultProvider": "fake-openai", "defaultModel": "gpt-5.4-fake" }));
    assert_eq!(switch(&mut server, "fake-gpt-mini").await, "off");
    assert_eq!(settings(&home).get("defaultThinkingLevel"), None, "a model without thinking sets no default");
    assert_eq!(switch(&mut server, "gpt-5.4-fake").await, "xhigh");
    assert_eq!(settings(&home)["defaultThinkingLevel"], "xhigh");
    assert_eq!(switch(&mut server, "fake-gpt").await, "high");
    assert_eq!(settings(&home)["defaultThinkingLevel"], "high");
    server.finish().await;
}

#[tokio::test]
async fn a_retry_goes_by_the_model_that_is_set_while_it_is_waited_for() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.settings(&json!({ "retry": { "baseDelayMs": 1500 } }));
    fake.script([Reply::error(529, "overloaded_error", "Overloaded"), Reply::say("ok")]);
    let mut server = home.dreb().start();
    server.prompt("go").await;
    server.until("auto_retry_start").await;
    server.ok(json!({ "type": "set_model", "provider": "fake", "modelId": "fake-mini" })).await;
    server.ok(json!({ "type": "bash", "command": "true" })).await;
    let lines = server.until("agent_settled").await;
    assert_eq!(
        event(&lines, "agent_start"),
        &json!({ "type": "agent_start", "model": { "provider": "fake", "id": "fake-mini" }, "thinkingLevel": "off" })
    );
    assert_eq!(messages(&lines, "assistant")[0]["model"], "fake-mini");
    let context = server.ok(json!({ "type": "get_messages" })).await;
    let roles: Vec<_> =
        context["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "bashExecution", "assistant"]);
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["isRetrying"], &state["retryAttempt"]), (&json!(false), &json!(0)));
    server.finish().await;
}

#[tokio::test]
async fn a_model_of_an_api_that_is_not_spoken_is_warned_about_and_not_offered() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().model("openai/gpt-5.4").env("OPENAI_API_KEY", "k").start();
    let models = server.ok(json!({ "type": "get_available_models" })).await;
    let providers: std::collections::BTreeSet<_> =
        models["models"].as_array().unwrap().iter().map(|model| model["provider"].as_str().unwrap()).collect();
    assert_eq!(providers.into_iter().collect::<Vec<_>>(), ["fake", "fake-openai"]);
    assert_eq!(
        server.fails(json!({ "type": "set_model", "provider": "openai", "modelId": "gpt-5.4" })).await,
        "Model not found: openai/gpt-5.4"
    );
    let warning = "Warning: openai/gpt-5.4 cannot be used: this version does not speak its API, openai-responses.";
    assert!(server.stderr().contains(warning), "{}", server.stderr());
    server.finish().await;
}

#[tokio::test]
async fn no_child_of_the_server_inherits_the_key_from_the_environment() {
    let fake = FakeProvider::start().await;
    let home = Home::empty();
    let mut models = providers(&fake.url());
    // A command for a value, a git that tells what it sees, and the model's own shell.
    models["providers"]["fake"]["headers"] = json!({ "x-seen": "!printenv DREB_API_KEY || echo none" });
    home.models(&models);
    home.file("bin/git", "#!/bin/sh\necho \"${DREB_API_KEY-none}\" >> git-saw\n");
    let git = home.cwd().join("bin/git");
    std::fs::set_permissions(&git, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", home.cwd().join("bin").display(), std::env::var("PATH").unwrap());
    fake.script([
        Reply::new().tool_call("c1", "bash", &json!({ "command": "echo ${DREB_API_KEY-none}" })),
        Reply::say("done"),
    ]);
    let mut server = home.dreb().env("PATH", path).env("DREB_API_KEY", "key-of-the-host").start();
    let lines = server.run("go").await;
    let request = fake.request(1).await;
    assert_eq!(request.headers["x-api-key"], "key-of-the-host");
    assert_eq!(request.headers["x-seen"], "none");
    assert_eq!(text(messages(&lines, "toolResult")[0]), "none");
    let seen = home.read("git-saw");
    assert!(!seen.is_empty() && seen.lines().all(|line| line == "none"), "{seen}");
    server.finish().await;
}
