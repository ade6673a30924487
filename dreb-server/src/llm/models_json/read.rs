//! Reading and checking `models.json`.

use std::path::Path;

use protocol_schema::model::ModelCost;
use protocol_schema::{Model, Number};
use serde_json::{Map, Value};

use super::{CustomModel, Headers, ModelsFile, Override, ProviderEntry};
use crate::llm::{Secret, jsonc, scripted};

const DEFAULT_CONTEXT_WINDOW: u64 = 128_000;
const DEFAULT_MAX_TOKENS: u64 = 16_384;

pub(super) const PRICES: [&str; 4] = ["input", "output", "cacheRead", "cacheWrite"];

/// The price named by one of [`PRICES`].
pub(super) fn price<'a>(cost: &'a mut ModelCost, field: &str) -> &'a mut Number {
    match field {
        "input" => &mut cost.input,
        "output" => &mut cost.output,
        "cacheRead" => &mut cost.cache_read,
        _ => &mut cost.cache_write,
    }
}

pub(super) fn file(text: &str, path: &Path) -> (ModelsFile, Vec<String>) {
    let place = format!("\n\nFile: {}", path.display());
    let root: Value = match serde_json::from_str(&jsonc::to_json(text)) {
        Ok(root) => root,
        Err(error) => {
            return (ModelsFile::default(), vec![format!("Failed to parse models.json: {error}{place}")]);
        }
    };
    let mut reader = Reader { folder: path.parent().unwrap_or(Path::new("")), schema: Vec::new(), load: Vec::new() };
    let providers = reader.providers(&root);
    let mut messages = Vec::new();
    if !reader.schema.is_empty() {
        messages.push(format!("Invalid models.json schema:\n{}{place}", reader.schema.join("\n")));
    }
    messages.extend(reader.load.iter().map(|text| format!("Failed to load models.json: {text}{place}")));
    (ModelsFile { providers }, messages)
}

/// An object and where it stands.
#[derive(Clone, Copy)]
struct Node<'a> {
    fields: &'a Map<String, Value>,
    pointer: &'a str,
}

struct Reader<'a> {
    folder: &'a Path,
    /// Lines about wrong types.
    schema: Vec<String>,
    /// Messages about what the types cannot say.
    load: Vec<String>,
}

impl Reader<'_> {
    fn complain(&mut self, pointer: &str, text: &str) {
        let pointer = if pointer.is_empty() { "root" } else { pointer };
        self.schema.push(format!("  - {pointer}: {text}"));
    }

    fn providers(&mut self, root: &Value) -> Vec<ProviderEntry> {
        let Some(root) = root.as_object() else {
            self.complain("", "must be object");
            return Vec::new();
        };
        let providers = match root.get("providers") {
            Some(Value::Object(providers)) => providers,
            Some(_) => {
                self.complain("/providers", "must be object");
                return Vec::new();
            }
            None => {
                self.complain("", "must have required property 'providers'");
                return Vec::new();
            }
        };
        let mut entries = Vec::new();
        for (name, value) in providers {
            let pointer = format!("/providers/{}", escaped(name));
            if let Some(entry) = self.object(value, &pointer).and_then(|fields| {
                let node = Node { fields, pointer: &pointer };
                self.provider(name, node)
            }) {
                entries.push(entry);
            }
        }
        entries
    }

    fn provider(&mut self, name: &str, node: Node<'_>) -> Option<ProviderEntry> {
        let wrong_before = self.schema.len();
        let mut entry = ProviderEntry {
            name: name.to_owned(),
            base_url: self.text(node, "baseUrl"),
            api: self.text(node, "api"),
            api_key: self.text(node, "apiKey").map(Secret::new),
            headers: self.headers(node),
            auth_header: self.flag(node, "authHeader"),
            compat: self.map(node, "compat").cloned(),
            ..ProviderEntry::default()
        };
        let overrides = self.map(node, "modelOverrides");
        let models = match node.fields.get("models") {
            None => &[][..],
            Some(Value::Array(models)) => models,
            Some(_) => {
                self.complain(&format!("{}/models", node.pointer), "must be array");
                &[]
            }
        };
        if self.schema.len() > wrong_before {
            return None;
        }

        let has_overrides = overrides.is_some_and(|overrides| !overrides.is_empty());
        if models.is_empty() && entry.base_url.is_none() && entry.compat.is_none() && !has_overrides {
            self.load.push(format!(
                "Provider {name}: must specify \"baseUrl\", \"compat\", \"modelOverrides\", or \"models\"."
            ));
            return None;
        }
        for (id, value) in overrides.into_iter().flatten() {
            let pointer = format!("{}/modelOverrides/{}", node.pointer, escaped(id));
            if let Some(fields) = self.object(value, &pointer)
                && let Some(change) = self.change(Node { fields, pointer: &pointer })
            {
                entry.overrides.push((id.clone(), change));
            }
        }
        if is_scripted(&entry) && models.is_empty() {
            if self.may_have_models(&entry) {
                let script = entry.base_url.as_deref().unwrap_or_default();
                let model = scripted::model(&scripted::script_path(script, self.folder));
                entry.models.push(CustomModel { model, headers: Headers::new() });
            }
        } else if !models.is_empty() && self.may_have_models(&entry) {
            for (index, value) in models.iter().enumerate() {
                let pointer = format!("{}/models/{index}", node.pointer);
                if let Some(fields) = self.object(value, &pointer)
                    && let Some(model) = self.model(&entry, Node { fields, pointer: &pointer })
                {
                    // Of two with one id the later one counts.
                    match entry.models.iter_mut().find(|other| other.model.id == model.model.id) {
                        Some(other) => *other = model,
                        None => entry.models.push(model),
                    }
                }
            }
        }
        Some(entry)
    }

    fn may_have_models(&mut self, entry: &ProviderEntry) -> bool {
        let name = &entry.name;
        let mut complete = true;
        let has_key = entry.api_key.is_some() || is_scripted(entry);
        for (field, given) in [("baseUrl", entry.base_url.is_some()), ("apiKey", has_key)] {
            if !given {
                self.load.push(format!("Provider {name}: \"{field}\" is required when defining custom models."));
                complete = false;
            }
        }
        complete
    }

    fn model(&mut self, entry: &ProviderEntry, node: Node<'_>) -> Option<CustomModel> {
        let wrong_before = self.schema.len();
        if !node.fields.contains_key("id") {
            self.complain(node.pointer, "must have required property 'id'");
        }
        let id = self.text(node, "id").unwrap_or_default();
        let name = self.text(node, "name");
        let api = self.text(node, "api");
        let base_url = self.text(node, "baseUrl");
        let reasoning = self.flag(node, "reasoning").unwrap_or(false);
        let input = self.input(node).unwrap_or_else(|| vec!["text".to_owned()]);
        let window = self.number(node, "contextWindow");
        let max_tokens = self.number(node, "maxTokens");
        let cost = self.cost(node, true);
        let headers = self.headers(node);
        let compat = self.map(node, "compat").cloned().map(Value::Object);
        if self.schema.len() > wrong_before {
            return None;
        }

        let provider = &entry.name;
        let Some(api) = api.or_else(|| entry.api.clone()) else {
            self.load.push(format!(
                "Provider {provider}, model {id}: no \"api\" specified. Set at provider or model level."
            ));
            return None;
        };
        if api == scripted::API && provider != scripted::PROVIDER {
            self.load.push(format!(
                "Provider {provider}, model {id}: api \"{api}\" is for the provider \"{}\" only.",
                scripted::PROVIDER
            ));
            return None;
        }
        for (field, value) in [("contextWindow", window), ("maxTokens", max_tokens)] {
            if value.is_some_and(|value| value < 1.0) {
                self.load.push(format!("Provider {provider}, model {id}: invalid {field}"));
                return None;
            }
        }
        let base_url = base_url.or_else(|| entry.base_url.clone()).unwrap_or_default();
        let mut model = Model {
            name: name.unwrap_or_else(|| id.clone()),
            base_url: if api == scripted::API {
                scripted::script_path(&base_url, self.folder).to_string_lossy().into_owned()
            } else {
                base_url
            },
            id,
            api,
            provider: provider.clone(),
            reasoning,
            input,
            context_window: window.map_or(DEFAULT_CONTEXT_WINDOW, |tokens| tokens as u64),
            max_tokens: max_tokens.map_or(DEFAULT_MAX_TOKENS, |tokens| tokens as u64),
            compat,
            ..Model::default()
        };
        for (field, dollars) in cost {
            *price(&mut model.cost, field) = dollars.into();
        }
        Some(CustomModel { model, headers })
    }

    fn change(&mut self, node: Node<'_>) -> Option<Override> {
        let wrong_before = self.schema.len();
        let change = Override {
            name: self.text(node, "name"),
            reasoning: self.flag(node, "reasoning"),
            input: self.input(node),
            cost: self.cost(node, false),
            context_window: self.tokens(node, "contextWindow"),
            max_tokens: self.tokens(node, "maxTokens"),
            headers: self.headers(node),
            compat: self.map(node, "compat").cloned(),
        };
        (self.schema.len() == wrong_before).then_some(change)
    }

    fn object<'v>(&mut self, value: &'v Value, pointer: &str) -> Option<&'v Map<String, Value>> {
        let object = value.as_object();
        if object.is_none() {
            self.complain(pointer, "must be object");
        }
        object
    }

    /// A field of some kind; complains if it is there and not of this kind.
    fn field<'v, T>(
        &mut self,
        node: Node<'v>,
        key: &str,
        kind: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        let value = read(node.fields.get(key)?);
        if value.is_none() {
            self.complain(&format!("{}/{key}", node.pointer), &format!("must be {kind}"));
        }
        value
    }

    fn text(&mut self, node: Node<'_>, key: &str) -> Option<String> {
        self.field(node, key, "a non-empty string", |value| {
            value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
        })
    }

    fn flag(&mut self, node: Node<'_>, key: &str) -> Option<bool> {
        self.field(node, key, "boolean", Value::as_bool)
    }

    fn number(&mut self, node: Node<'_>, key: &str) -> Option<f64> {
        self.field(node, key, "number", Value::as_f64)
    }

    fn tokens(&mut self, node: Node<'_>, key: &str) -> Option<u64> {
        self.field(node, key, "a positive number", |value| {
            value.as_f64().filter(|tokens| *tokens >= 1.0).map(|tokens| tokens as u64)
        })
    }

    fn map<'v>(&mut self, node: Node<'v>, key: &str) -> Option<&'v Map<String, Value>> {
        self.field(node, key, "object", Value::as_object)
    }

    fn input(&mut self, node: Node<'_>) -> Option<Vec<String>> {
        self.field(node, "input", "an array of \"text\" and \"image\"", |value| {
            let kinds =
                value.as_array()?.iter().map(|kind| kind.as_str().filter(|kind| ["text", "image"].contains(kind)));
            kinds.map(|kind| kind.map(str::to_owned)).collect()
        })
    }

    fn headers(&mut self, node: Node<'_>) -> Headers {
        let headers = self.field(node, "headers", "an object of strings", |value| {
            let headers = value.as_object()?.iter();
            headers.map(|(name, value)| Some((name.clone(), Secret::new(value.as_str()?)))).collect()
        });
        headers.unwrap_or_default()
    }

    /// The prices given, all four of them if `whole`.
    fn cost(&mut self, node: Node<'_>, whole: bool) -> Vec<(&'static str, f64)> {
        let Some(fields) = self.map(node, "cost") else { return Vec::new() };
        let pointer = format!("{}/cost", node.pointer);
        let cost = Node { fields, pointer: &pointer };
        let mut prices = Vec::new();
        for field in PRICES {
            match self.number(cost, field) {
                Some(dollars) => prices.push((field, dollars)),
                None if whole && !fields.contains_key(field) => {
                    self.complain(&pointer, &format!("must have required property '{field}'"));
                }
                None => {}
            }
        }
        prices
    }
}

/// Whether the provider replays scripts.
fn is_scripted(entry: &ProviderEntry) -> bool {
    entry.name == scripted::PROVIDER && entry.api.as_deref() == Some(scripted::API)
}

/// A key as a JSON pointer has it.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
