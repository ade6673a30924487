//! `models.json`: the user's own providers and models, and changes to built-in ones.
//!
//! The file may hold comments and trailing commas. What is wrong in it is reported and left out; all
//! the rest counts.

mod read;

use std::path::Path;

use futures_util::future::join_all;
use protocol_schema::Model;
use serde_json::{Map, Value};

use super::value_forms::Values;
use super::{Secret, scripted};

/// Header names and values. Values are [value forms](super::value_forms) until they are resolved.
pub type Headers = Vec<(String, Secret)>;

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelsFile {
    /// Providers in the order of the file.
    pub providers: Vec<ProviderEntry>,
}

/// What the file says of one provider.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProviderEntry {
    /// The provider's name.
    pub name: String,
    /// Base address for its models.
    pub base_url: Option<String>,
    /// Wire API of its own models.
    pub api: Option<String>,
    /// Key of last resort, a value form.
    pub api_key: Option<Secret>,
    /// Headers for all its models.
    pub headers: Headers,
    /// Whether the key goes into an `Authorization` header. Absent leaves the API's usual way.
    pub auth_header: Option<bool>,
    /// Deviations of its API.
    pub compat: Option<Map<String, Value>>,
    /// Changes to built-in models by id.
    pub overrides: Vec<(String, Override)>,
    /// Its own models.
    pub models: Vec<CustomModel>,
}

/// A model of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct CustomModel {
    /// The model without its headers.
    pub model: Model,
    /// Headers of this model; they win over the provider's.
    pub headers: Headers,
}

/// Changes to a built-in model; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Override {
    /// Name for people.
    pub name: Option<String>,
    /// Whether it can think.
    pub reasoning: Option<bool>,
    /// Kinds of input.
    pub input: Option<Vec<String>>,
    /// Prices by field name of `cost`.
    pub cost: Vec<(&'static str, f64)>,
    /// Size of the context window in tokens.
    pub context_window: Option<u64>,
    /// Largest answer in tokens.
    pub max_tokens: Option<u64>,
    /// More headers.
    pub headers: Headers,
    /// More deviations.
    pub compat: Option<Map<String, Value>>,
}

impl ModelsFile {
    /// Reads the text of a file that lies at `path`; relative paths in it start from its folder.
    /// Returns what is valid, and a message for each error.
    #[must_use]
    pub fn parse(text: &str, path: &Path) -> (Self, Vec<String>) {
        read::file(text, path)
    }

    /// What the file says of a provider.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&ProviderEntry> {
        self.providers.iter().find(|entry| entry.name == name)
    }

    /// Puts values in the place of all value forms of headers, running their commands side by side,
    /// and runs the commands of keys, so that [`Values::known`] knows them. A header without a value
    /// is left out; each failure is a message.
    pub async fn resolve(&mut self, values: &Values) -> Vec<String> {
        let mut wishes = Vec::new();
        for entry in &self.providers {
            let place = format!("providers.{}", entry.name);
            wishes.extend(entry.api_key.iter().map(|key| (format!("{place}.apiKey"), key.clone())));
            wishes.extend(in_headers(&place, &entry.headers));
            for (id, change) in &entry.overrides {
                wishes.extend(in_headers(&format!("{place}.modelOverrides.{id}"), &change.headers));
            }
            for custom in &entry.models {
                wishes.extend(in_headers(&format!("{place}.models.{}", custom.model.id), &custom.headers));
            }
        }
        let outcomes = join_all(wishes.iter().map(|(_, text)| values.resolve(text))).await;
        for headers in self.all_headers() {
            headers.retain_mut(|(_, value)| match values.known(value) {
                Some(Ok(known)) => {
                    *value = known;
                    true
                }
                _ => false,
            });
        }
        let failures = wishes.iter().zip(outcomes).filter_map(|((place, _), outcome)| Some((place, outcome.err()?)));
        failures.map(|(place, error)| format!("models.json: the command of {place} {error}")).collect()
    }

    fn all_headers(&mut self) -> impl Iterator<Item = &mut Headers> {
        self.providers.iter_mut().flat_map(|entry| {
            let overrides = entry.overrides.iter_mut().map(|(_, change)| &mut change.headers);
            let models = entry.models.iter_mut().map(|custom| &mut custom.headers);
            std::iter::once(&mut entry.headers).chain(overrides).chain(models)
        })
    }
}

fn in_headers(place: &str, headers: &Headers) -> Vec<(String, Secret)> {
    headers.iter().map(|(name, value)| (format!("{place}.headers.{name}"), value.clone())).collect()
}

impl ProviderEntry {
    /// Applies what the entry says to a built-in model.
    pub fn change(&self, model: &mut Model) {
        if let Some(base_url) = &self.base_url {
            model.base_url.clone_from(base_url);
        }
        add_headers(model, &self.headers);
        self.set_auth_mode(model);
        merge_compat(&mut model.compat, self.compat.as_ref());
        if let Some((_, change)) = self.overrides.iter().find(|(id, _)| *id == model.id) {
            change.apply(model);
        }
    }

    /// The entry's own models, whole.
    pub fn own_models(&self) -> impl Iterator<Item = Model> {
        self.models.iter().map(|custom| {
            let mut model = custom.model.clone();
            let own_compat = model.compat.take();
            merge_compat(&mut model.compat, self.compat.as_ref());
            merge_compat(&mut model.compat, own_compat.as_ref().and_then(Value::as_object));
            add_headers(&mut model, &self.headers);
            add_headers(&mut model, &custom.headers);
            self.set_auth_mode(&mut model);
            model
        })
    }

    /// Whether the provider works without a key: it replays a script.
    #[must_use]
    pub fn needs_no_key(&self) -> bool {
        self.api_key.is_none() && self.models.iter().any(|custom| custom.model.api == scripted::API)
    }

    // The key itself stays out of the model: the wire API puts it into the header.
    fn set_auth_mode(&self, model: &mut Model) {
        match self.auth_header {
            Some(true) => model.auth_mode = Some("bearer".to_owned()),
            Some(false) => model.auth_mode = None,
            None => {}
        }
    }
}

impl Override {
    fn apply(&self, model: &mut Model) {
        if let Some(name) = &self.name {
            model.name.clone_from(name);
        }
        if let Some(reasoning) = self.reasoning {
            model.reasoning = reasoning;
        }
        if let Some(input) = &self.input {
            model.input.clone_from(input);
        }
        for (field, price) in &self.cost {
            *read::price(&mut model.cost, field) = (*price).into();
        }
        if let Some(tokens) = self.context_window {
            model.context_window = tokens;
        }
        if let Some(tokens) = self.max_tokens {
            model.max_tokens = tokens;
        }
        add_headers(model, &self.headers);
        merge_compat(&mut model.compat, self.compat.as_ref());
    }
}

fn add_headers(model: &mut Model, headers: &Headers) {
    for (name, value) in headers {
        let all = model.headers.get_or_insert_default();
        // Header names know no case; two spellings would be sent as two headers.
        all.retain(|other, _| !other.eq_ignore_ascii_case(name));
        all.insert(name.clone(), value.expose().into());
    }
}

/// Merges shallowly, the two routing objects one level deeper.
fn merge_compat(compat: &mut Option<Value>, more: Option<&Map<String, Value>>) {
    let Some(more) = more else { return };
    let Value::Object(all) = compat.get_or_insert_with(|| Value::Object(Map::new())) else { return };
    for (key, value) in more {
        match (key.as_str(), all.get_mut(key), value) {
            ("openRouterRouting" | "vercelGatewayRouting", Some(Value::Object(old)), Value::Object(new)) => {
                old.extend(new.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            _ => {
                all.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
