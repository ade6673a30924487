use std::time::{Duration, UNIX_EPOCH};

use pretty_assertions::assert_eq;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::llm::scripted::ScriptedProvider;
use crate::llm::silent::Silent;

struct Home {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Home {
    fn new(variables: &[(&str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { folder: tempfile::tempdir().unwrap(), variables }
    }

    fn write(&self, name: &str, value: &Value) {
        std::fs::write(self.folder.path().join(name), value.to_string()).unwrap();
    }

    async fn open(&self) -> (Models, Vec<String>) {
        let environment = self.variables.iter().cloned().collect();
        let apis = ["anthropic-messages", "openai-completions"];
        let mut wires: Vec<Arc<dyn Provider>> = vec![Arc::new(ScriptedProvider::new())];
        wires.extend(apis.map(|api| Arc::new(Silent(api)) as Arc<dyn Provider>));
        Models::open(self.folder.path(), environment, wires).await
    }

    async fn models(&self) -> Models {
        let (models, messages) = self.open().await;
        assert_eq!(messages, [""; 0]);
        models
    }
}

fn local(id: &str) -> Value {
    json!({ "providers": { "local": {
        "baseUrl": "http://l", "apiKey": "LOCAL_KEY", "api": "openai-completions", "models": [{ "id": id }],
    }}})
}

async fn key(models: &Models, provider: &str) -> Result<Option<String>, String> {
    let key = models.key(provider).await;
    key.map(|key| key.map(|key| key.expose().to_owned())).map_err(|error| error.to_string())
}

fn found(key: &str) -> Result<Option<String>, String> {
    Ok(Some(key.to_owned()))
}

fn missing(provider: &str) -> Result<Option<String>, String> {
    Err(format!("No API key found for \"{provider}\". Set an API key environment variable or run '/login {provider}'."))
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn keys_are_looked_up_in_the_documented_order() {
    let home = Home::new(&[("GROQ_API_KEY", "env"), ("STORED", "from-variable")]);
    home.write(
        "models.json",
        &json!({ "providers": {
            "groq": { "baseUrl": "http://g", "apiKey": "file" },
            "local": { "baseUrl": "http://l", "apiKey": "file-local" },
        }}),
    );
    let models = home.models().await;
    assert_eq!(key(&models, "groq").await, found("env"));
    assert_eq!(key(&models, "local").await, found("file-local"));
    assert_eq!(key(&models, "openai").await, missing("openai"));

    home.write("auth.json", &json!({ "groq": { "type": "api_key", "key": "STORED" } }));
    assert_eq!(models.refresh().await, [""; 0]);
    assert_eq!(key(&models, "groq").await, found("from-variable"));
    assert!(!models.uses_subscription("groq"));

    let login = json!({ "type": "oauth", "access": "token", "refresh": "r", "expires": now_ms() + 3_600_000 });
    home.write("auth.json", &json!({ "groq": login }));
    models.refresh().await;
    assert_eq!(key(&models, "groq").await, found("token"));
    assert!(models.uses_subscription("groq"));

    models.set_runtime_key("groq", Secret::new("flag"));
    assert_eq!(key(&models, "groq").await, found("flag"));
    assert_eq!(key(&models, "local").await, found("file-local"), "the flag is for one provider");
    assert!(models.uses_subscription("groq"), "the stored login counts, not the flag");
}

#[tokio::test]
async fn a_stored_key_without_a_value_hides_the_environment() {
    let home = Home::new(&[("GROQ_API_KEY", "env")]);
    home.write("auth.json", &json!({ "groq": { "type": "api_key", "key": "!exit 7" } }));
    let models = home.models().await;
    assert!(models.has_auth("groq"), "any stored entry counts");
    assert_eq!(key(&models, "groq").await, missing("groq"));
    assert_eq!(key(&models, "groq").await, missing("groq"));
    assert_eq!(models.take_warnings(), ["No key for groq: its command in auth.json failed: exit status: 7"]);
    assert_eq!(models.take_warnings(), [""; 0]);
}

#[tokio::test]
async fn an_expired_login_is_an_error_until_another_program_renews_it() {
    let home = Home::new(&[("GROQ_API_KEY", "env")]);
    let login =
        |access: &str, expires: u64| json!({ "groq": { "type": "oauth", "access": access, "expires": expires } });
    home.write("auth.json", &login("old", now_ms()));
    let models = home.models().await;
    assert!(models.has_auth("groq"));
    assert_eq!(
        key(&models, "groq").await,
        Err("Authentication failed for \"groq\". Credentials may have expired or network is unavailable. \
             Run '/login groq' to re-authenticate."
            .to_owned())
    );
    home.write("auth.json", &login("renewed", now_ms() + 3_600_000));
    assert_eq!(key(&models, "groq").await, found("renewed"));
}

#[tokio::test]
async fn auth_json_is_made_when_missing_and_kept_when_broken() {
    let home = Home::new(&[]);
    home.models().await;
    let path = home.folder.path().join("auth.json");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

    std::fs::write(&path, "{ broken").unwrap();
    let (models, messages) = home.open().await;
    assert_eq!(
        messages,
        [format!("Stored credentials are not used: {} is not a JSON object (line 1, column 3)", path.display())]
    );
    assert_eq!(key(&models, "groq").await, missing("groq"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{ broken");
}

#[tokio::test]
async fn only_models_with_credentials_are_available_in_registry_order() {
    let home = Home::new(&[("XAI_API_KEY", "k"), ("CEREBRAS_API_KEY", "k")]);
    home.write("models.json", &json!({ "providers": {
        "zeta": { "baseUrl": "http://z", "apiKey": "k", "api": "openai-completions", "models": [{ "id": "z" }] },
        "fails": { "baseUrl": "http://z", "apiKey": "!false", "api": "openai-completions", "models": [{ "id": "f" }] },
        "cerebras": {
            "baseUrl": "http://c", "apiKey": "k", "api": "openai-completions",
            "models": [{ "id": "new" }, { "id": "gpt-oss-120b", "name": "Mine" }],
            "modelOverrides": { "gpt-oss-120b": { "name": "Not this" } },
        },
    }}));
    let (models, messages) = home.open().await;
    assert_eq!(messages, ["models.json: the command of providers.fails.apiKey failed: exit status: 1"]);
    let available = models.available();
    let references: Vec<_> = available.iter().map(|model| format!("{}/{}", model.provider, model.id)).collect();
    let mut expected: Vec<_> =
        catalog::models_of("cerebras").iter().map(|model| format!("cerebras/{}", model.id)).collect();
    let xai = catalog::models_of("xai");
    let spoken = xai.iter().filter(|model| model.api == "openai-completions");
    expected.extend(spoken.map(|model| format!("xai/{}", model.id)));
    expected.extend(["zeta/z".to_owned(), "cerebras/new".to_owned()]);
    assert_eq!(references, expected);
    let replaced = available.iter().find(|model| model.id == "gpt-oss-120b").unwrap();
    assert_eq!((replaced.name.as_str(), replaced.context_window), ("Mine", 128_000));
    for model in &available {
        assert_eq!(models.find(&model.provider, &model.id).as_ref(), Some(model));
    }
    assert_eq!(models.first_available().as_ref(), available.first());
    assert!(models.find("fails", "f").is_some() && !models.has_auth("fails"));
    assert_eq!(models.find("cerebras", "none"), None);

    // Names are those of the models, in the same order.
    let names = models.names();
    assert_eq!(names.len(), 1659 + 3);
    let with_key: Vec<_> = names
        .iter()
        .filter(|name| models.has_auth(&name.provider))
        .filter(|name| models.find(&name.provider, &name.id).is_some_and(|model| models.has_wire(&model)))
        .map(|name| (name.provider.clone(), name.id.clone(), name.name.clone()))
        .collect();
    let available: Vec<_> =
        available.iter().map(|model| (model.provider.clone(), model.id.clone(), model.name.clone())).collect();
    assert_eq!(with_key, available);
    assert_eq!(models.providers().len(), 41 + 2);
}

#[tokio::test]
async fn a_changed_models_json_is_seen_at_the_next_refresh() {
    let home = Home::new(&[]);
    let models = home.models().await;
    assert_eq!(models.available(), []);
    home.write("models.json", &local("first"));
    assert_eq!(models.find("local", "first"), None);
    assert_eq!(models.refresh().await, [""; 0]);
    assert_eq!(models.available().len(), 1);
    assert_eq!(models.refresh().await, [""; 0]);

    let clone = models.clone();
    home.write("models.json", &json!({ "providers": { "local": { "headers": {} } } }));
    assert_eq!(clone.refresh().await.len(), 1);
    assert_eq!(models.refresh().await, [""; 0], "told once");
    assert_eq!(models.find("local", "first"), None);
    std::fs::remove_file(home.folder.path().join("models.json")).unwrap();
    assert_eq!(models.refresh().await, [""; 0]);
    assert_eq!(models.available(), []);
}

#[tokio::test]
async fn a_script_is_listed_only_when_configured_and_needs_no_key() {
    let home = Home::new(&[]);
    let models = home.models().await;
    assert!(models.find("scripted", "scripted").is_none() && !models.has_auth("scripted"));
    assert!(!models.providers().iter().any(|provider| provider == "scripted"));
    assert!(models.wire("scripted").is_some() && models.wire("other").is_none());

    let home = Home::new(&[("DREB_SCRIPT", "/tmp/demo.json")]);
    home.write(
        "models.json",
        &json!({ "providers": {
            "scripted": { "api": "scripted", "baseUrl": "file.json", "models": [{ "id": "more" }] },
            "local": local("m")["providers"]["local"],
        }}),
    );
    let models = home.models().await;
    let references: Vec<_> =
        models.available().iter().map(|model| (model.id.clone(), model.base_url.clone())).collect();
    let file = home.folder.path().join("file.json");
    assert_eq!(
        references,
        [
            ("m".to_owned(), "http://l".to_owned()),
            ("more".to_owned(), file.to_str().unwrap().to_owned()),
            ("scripted".to_owned(), "/tmp/demo.json".to_owned()),
        ]
    );
    assert_eq!(key(&models, "scripted").await, Ok(None));

    let home = Home::new(&[("DREB_SCRIPT", "demo.json")]);
    let model = home.models().await.find("scripted", "scripted").unwrap();
    assert_eq!(Path::new(&model.base_url), std::env::current_dir().unwrap().join("demo.json"));
}

#[tokio::test]
async fn clients_see_no_secret() {
    let home = Home::new(&[("TOKEN", "sesame")]);
    home.write("models.json", &json!({ "providers": {
        "nvidia": { "baseUrl": "https://user:sesame@proxy.example/v1?a@b", "headers": { "x-token": "TOKEN" } },
        "local": { "baseUrl": "http://l", "apiKey": "TOKEN", "api": "openai-completions", "models": [{ "id": "m" }] },
    }}));
    let models = home.models().await;
    let model = catalog::models_of("nvidia").into_iter().find(|model| model.headers.is_some()).unwrap();
    let model = models.find("nvidia", &model.id).unwrap();
    assert_eq!(model.headers.as_ref().unwrap()["x-token"], json!("sesame"));
    let masked = models.masked(&model);
    assert_eq!(masked.base_url, "https://***@proxy.example/v1?a@b");
    assert_eq!(masked.headers, json!({ "NVCF-POLL-SECONDS": "3600", "x-token": "***" }).as_object().cloned());
    let plain = models.find("openai", "o3").unwrap();
    assert_eq!(models.masked(&plain), *plain);

    models.set_runtime_key("openai", Secret::new("sesame"));
    let printed = format!("{models:?} {:?}", models.inner.environment_keys);
    assert!(!printed.contains("sesame"), "{printed}");
}

#[tokio::test]
async fn a_copilot_login_says_where_it_is_served() {
    let home = Home::new(&[]);
    let expires = UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let expires = expires.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    for (login, address) in [
        (json!({ "access": "tid=1;proxy-ep=proxy.business.example;x=y" }), "https://api.business.example"),
        (json!({ "access": "tid=1", "enterpriseUrl": "ghe.example" }), "https://copilot-api.ghe.example"),
        (json!({ "access": "tid=1" }), "https://api.individual.githubcopilot.com"),
    ] {
        let mut login = login;
        login["type"] = json!("oauth");
        login["expires"] = json!(expires);
        home.write("auth.json", &json!({ "github-copilot": login }));
        let models = home.models().await;
        assert_eq!(models.find("github-copilot", "claude-sonnet-5").unwrap().base_url, address);
        assert_eq!(models.available()[0].base_url, address);
    }
    home.write("models.json", &json!({ "providers": { "github-copilot": { "baseUrl": "http://mine" } } }));
    assert_eq!(home.models().await.available()[0].base_url, "http://mine");
}

#[tokio::test]
async fn models_of_an_api_that_is_not_on_hand_are_not_offered() {
    let home = Home::new(&[("OPENAI_API_KEY", "k")]);
    let models = home.models().await;
    assert_eq!(models.find("openai", "gpt-5.4").unwrap().api, "openai-responses");
    assert_eq!((models.available(), models.first_available()), (Vec::new(), None));

    let home = Home::new(&[("OPENAI_API_KEY", "k"), ("GROQ_API_KEY", "k")]);
    let models = home.models().await;
    assert!(models.available().iter().all(|model| model.provider == "groq"), "{:?}", models.available());
    assert_eq!(models.first_available().unwrap().provider, "groq");
}
