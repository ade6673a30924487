//! The built-in model catalog.
//!
//! Nothing is parsed at start. The first question makes an index of where each provider's lines are,
//! found by text alone; only the lines asked for are parsed.

use std::sync::OnceLock;

use memchr::memmem;
use protocol_schema::Model;
use serde::Deserialize;
use serde_json::Value;

/// One model a line, ordered by provider and id. Where it comes from stands in `data/README.md`.
const MODELS: &str = include_str!("../../data/models.jsonl");

/// What patterns are matched against.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ModelName {
    /// The provider's name.
    pub provider: String,
    /// The model's id.
    pub id: String,
    /// Name for people.
    pub name: String,
}

/// The lines of one provider.
#[derive(Debug)]
struct Section {
    provider: &'static str,
    lines: &'static str,
}

/// Names of the providers in the catalog, in its order.
pub fn providers() -> impl Iterator<Item = &'static str> {
    sections().iter().map(|section| section.provider)
}

/// Whether the catalog has models of this provider.
#[must_use]
pub fn has_provider(provider: &str) -> bool {
    lines_of(provider).is_some()
}

/// One model of the catalog.
#[must_use]
pub fn find(provider: &str, id: &str) -> Option<Model> {
    parse(line_of(provider, id)?)
}

/// Whether the catalog has this model.
#[must_use]
pub fn contains(provider: &str, id: &str) -> bool {
    line_of(provider, id).is_some()
}

/// The models of one provider in the catalog's order; empty for an unknown provider.
#[must_use]
pub fn models_of(provider: &str) -> Vec<Model> {
    lines_of(provider).into_iter().flat_map(str::lines).filter_map(parse).collect()
}

/// The names of one provider's models in the catalog's order, read without the rest of their lines.
#[must_use]
pub fn names_of(provider: &str) -> Vec<ModelName> {
    lines_of(provider).into_iter().flat_map(str::lines).filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn sections() -> &'static [Section] {
    static SECTIONS: OnceLock<Vec<Section>> = OnceLock::new();
    SECTIONS.get_or_init(|| {
        let mut sections: Vec<Section> = Vec::new();
        let mut start = 0;
        let mut end = 0;
        for line in MODELS.split_inclusive('\n') {
            if let Some(provider) = provider_of(line)
                && sections.last().is_none_or(|section| section.provider != provider)
            {
                close(&mut sections, &MODELS[start..end]);
                start = end;
                sections.push(Section { provider, lines: "" });
            }
            end += line.len();
        }
        close(&mut sections, &MODELS[start..end]);
        sections
    })
}

fn close(sections: &mut [Section], lines: &'static str) {
    if let Some(section) = sections.last_mut() {
        section.lines = lines;
    }
}

/// The provider a line names. Inside of strings quotes are escaped, so the text stands for a key only.
fn provider_of(line: &'static str) -> Option<&'static str> {
    const KEY: &str = "\"provider\":\"";
    let start = memmem::find(line.as_bytes(), KEY.as_bytes())? + KEY.len();
    line[start..].split('"').next()
}

fn lines_of(provider: &str) -> Option<&'static str> {
    sections().iter().find(|section| section.provider == provider).map(|section| section.lines)
}

fn line_of(provider: &str, id: &str) -> Option<&'static str> {
    let start = format!("{{\"id\":{},", Value::from(id));
    lines_of(provider)?.lines().find(|line| line.starts_with(&start))
}

/// Price steps have no place in a model's `cost`; they are kept as `costTiers`.
#[derive(Deserialize)]
struct Tiers {
    cost: TieredCost,
}

#[derive(Deserialize)]
struct TieredCost {
    tiers: Option<Value>,
}

fn parse(line: &str) -> Option<Model> {
    let mut model: Model = serde_json::from_str(line).ok()?;
    if line.contains("\"tiers\":") {
        let Tiers { cost } = serde_json::from_str(line).ok()?;
        model.extra.extend(cost.tiers.map(|tiers| ("costTiers".to_owned(), tiers)));
    }
    Some(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;
    use serde_json::json;

    #[test]
    fn every_line_is_a_model_of_the_form_the_search_relies_on() {
        let mut found = Vec::new();
        for provider in providers() {
            for model in models_of(provider) {
                assert_eq!(model.provider, provider);
                assert!(model.context_window > 0 && model.max_tokens > 0 && !model.api.is_empty(), "{}", model.id);
                assert_eq!(find(provider, &model.id).as_ref(), Some(&model));
                found.push((model.provider, model.id));
            }
        }
        assert_eq!((found.len(), providers().count(), MODELS.lines().count()), (1659, 41, 1659));
        assert!(found.is_sorted_by(|one, next| one < next), "ordered, and no model twice");
    }

    #[test]
    fn names_are_those_of_the_models() {
        for provider in providers() {
            let names = names_of(provider);
            let models = models_of(provider);
            assert_eq!(names.len(), models.len());
            for (name, model) in names.iter().zip(&models) {
                assert_eq!((&*name.provider, &*name.id, &*name.name), (&*model.provider, &*model.id, &*model.name));
            }
        }
    }

    #[test]
    fn an_entry_keeps_what_the_model_has_no_field_for() {
        let model = find("google", "gemini-2.5-pro").unwrap();
        assert_eq!(model.api, "google-generative-ai");
        assert_eq!(model.cost.cache_read.0, 0.125);
        assert_eq!(
            model.extra["costTiers"],
            json!([{ "inputTokensAbove": 200_000, "input": 2.5, "output": 15, "cacheRead": 0.25, "cacheWrite": 0 }])
        );
        let model = find("openai", "o3").unwrap();
        assert_eq!(model.extra["thinkingLevelMap"]["low"], json!("low"));
        assert_eq!(model.compat, Some(json!({ "supportsStrictMode": true })));
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        assert_eq!(find("openai", "o"), None);
        assert_eq!(find("openai", "o3\",\"name"), None);
        assert_eq!(find("azure", "gpt-5.2"), None);
        assert!(has_provider("azure-openai-responses") && !has_provider("scripted"));
        assert_eq!(models_of("nobody"), []);
    }
}
