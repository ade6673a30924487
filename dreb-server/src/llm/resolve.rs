//! From what users write to a model: patterns, flags, scopes, and the choice at start.

mod order;

use std::sync::Arc;

use globset::{GlobBuilder, GlobMatcher};
use protocol_schema::{Model, ThinkingLevel};

use super::catalog::ModelName;
use super::models::Models;
use super::thinking;

/// What a pattern is matched against.
pub trait Named {
    /// The provider's name.
    fn provider(&self) -> &str;
    /// The model's id.
    fn id(&self) -> &str;
    /// Name for people.
    fn name(&self) -> &str;
}

macro_rules! named {
    ($($name:ty),*) => {
        $(impl Named for $name {
            fn provider(&self) -> &str {
                &self.provider
            }
            fn id(&self) -> &str {
                &self.id
            }
            fn name(&self) -> &str {
                &self.name
            }
        })*
    };
}

named!(Model, Arc<Model>, ModelName);

/// Whether the words are the same but for their case.
fn same(one: &str, other: &str) -> bool {
    if one.is_ascii() && other.is_ascii() {
        return one.eq_ignore_ascii_case(other);
    }
    one.to_lowercase() == other.to_lowercase()
}

fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The model that a pattern means: its `provider/id`, its id, or a part of its id or name. Of several
/// with that part the newest alias, else the newest dated one.
#[must_use]
pub fn match_pattern<'a, T: Named>(pattern: &str, models: &'a [T]) -> Option<&'a T> {
    if pattern.is_empty() {
        return None;
    }
    if let Some((provider, id)) = pattern.split_once('/') {
        // A provider's name with a slash in it only shows in the whole reference.
        let whole = |model: &&T| same(&format!("{}/{}", model.provider(), model.id()), pattern);
        let parts = |model: &&T| same(model.provider(), provider) && same(model.id(), id);
        if let Some(found) = only(models.iter().filter(whole)).or_else(|| only(models.iter().filter(parts))) {
            return Some(found);
        }
    }
    if let Some(found) = models.iter().find(|model| same(model.id(), pattern)) {
        return Some(found);
    }
    let part = pattern.to_lowercase();
    let contains =
        |model: &&T| model.id().to_lowercase().contains(&part) || model.name().to_lowercase().contains(&part);
    let newest = |aliases: bool| {
        let found = models.iter().filter(contains).filter(|model| is_alias(model.id()) == aliases);
        // The first of equals, not the last as `max_by` has it.
        found.reduce(|best, next| if order::collate(next.id(), best.id()).is_gt() { next } else { best })
    };
    newest(true).or_else(|| newest(false))
}

/// Whether an id does not end in a date.
fn is_alias(id: &str) -> bool {
    if id.ends_with("-latest") {
        return true;
    }
    let Some((_, end)) = id.rsplit_once('-') else { return true };
    !(end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What a suffix that is no thinking level means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// There is no such model.
    Strict,
    /// It is left out, with a warning.
    Scope,
}

/// What a pattern with a thinking level means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed<'a, T> {
    /// The model.
    pub model: &'a T,
    /// The level that the pattern asks for.
    pub thinking: Option<ThinkingLevel>,
    /// What was left out of the pattern.
    pub warning: Option<String>,
}

/// The level of this name, `None` for other words.
#[must_use]
pub fn level(word: &str) -> Option<ThinkingLevel> {
    Some(ThinkingLevel::from(word)).filter(ThinkingLevel::is_known)
}

/// Matches a pattern that may end in `:` and a thinking level. Ids may hold colons themselves.
#[must_use]
pub fn parse<'a, T: Named>(pattern: &str, models: &'a [T], mode: Mode) -> Option<Parsed<'a, T>> {
    if let Some(model) = match_pattern(pattern, models) {
        return Some(Parsed { model, thinking: None, warning: None });
    }
    let (rest, suffix) = pattern.rsplit_once(':')?;
    match (level(suffix), mode) {
        (Some(level), _) => {
            let parsed = parse(rest, models, mode)?;
            let thinking = parsed.warning.is_none().then_some(level);
            Some(Parsed { thinking, ..parsed })
        }
        (None, Mode::Strict) => None,
        (None, Mode::Scope) => {
            let Parsed { model, .. } = parse(rest, models, mode)?;
            let warning =
                format!("Invalid thinking level \"{suffix}\" in pattern \"{pattern}\". Using default instead.");
            Some(Parsed { model, thinking: None, warning: Some(warning) })
        }
    }
}

/// Why no model could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// `--provider` names none.
    #[error("Unknown provider \"{0}\". Use --list-models to see available providers/models.")]
    UnknownProvider(String),
    /// `--model` means none.
    #[error("Model \"{0}\" not found. Use --list-models to see available models.")]
    NotFound(String),
    /// There is no model at all.
    #[error("No models available. Check your installation or add models to models.json.")]
    EmptyRegistry,
    /// Nothing was asked for and no provider has credentials.
    #[error("No models available.")]
    NoneAvailable,
}

/// A model that flags name.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The model.
    pub model: Arc<Model>,
    /// The level that the pattern asks for.
    pub thinking: Option<ThinkingLevel>,
    /// What the user should know, without the leading `Warning: `.
    pub warning: Option<String>,
}

/// The model that `--model`, and `--provider` if given, name. Credentials do not matter.
///
/// # Errors
///
/// There is no such provider or model. A known provider takes any id, with a warning.
pub fn from_flags(models: &Models, provider: Option<&str>, pattern: &str) -> Result<Choice, ResolveError> {
    let providers = models.providers();
    if providers.is_empty() {
        return Err(ResolveError::EmptyRegistry);
    }
    let known = |name: &str| providers.iter().find(|known| same(known, name)).cloned();
    let choice = |found: &Parsed<'_, ModelName>| choose(models, found);

    if let Some(wish) = provider {
        let provider = known(wish).ok_or_else(|| ResolveError::UnknownProvider(wish.to_owned()))?;
        let id = strip_provider(pattern, &provider);
        let names = models.names_of(&provider);
        let found = parse(id, &names, Mode::Strict).and_then(|found| choice(&found));
        return found.or_else(|| made_up(models, &provider, id)).ok_or_else(|| not_found(pattern));
    }
    if let Some((before, id)) = pattern.split_once('/')
        && let Some(provider) = known(before)
    {
        let names = models.names_of(&provider);
        let found = parse(id, &names, Mode::Strict).and_then(|found| choice(&found));
        // Ids of gateways begin with the names of other providers.
        return found
            .or_else(|| anywhere(models, pattern))
            .or_else(|| made_up(models, &provider, id))
            .ok_or_else(|| not_found(pattern));
    }
    anywhere(models, pattern).ok_or_else(|| not_found(pattern))
}

fn not_found(pattern: &str) -> ResolveError {
    ResolveError::NotFound(pattern.to_owned())
}

fn strip_provider<'a>(pattern: &'a str, provider: &str) -> &'a str {
    match pattern.split_at_checked(provider.len()) {
        Some((start, rest)) if same(start, provider) => rest.strip_prefix('/').unwrap_or(pattern),
        _ => pattern,
    }
}

/// The whole pattern as an exact id, else matched, among all models.
fn anywhere(models: &Models, pattern: &str) -> Option<Choice> {
    let names = models.names();
    let exact =
        names.iter().find(|name| same(&name.id, pattern) || same(&format!("{}/{}", name.provider, name.id), pattern));
    match exact {
        Some(model) => choose(models, &Parsed { model, thinking: None, warning: None }),
        None => choose(models, &parse(pattern, &names, Mode::Strict)?),
    }
}

fn choose(models: &Models, found: &Parsed<'_, ModelName>) -> Option<Choice> {
    let model = models.find(&found.model.provider, &found.model.id)?;
    Some(Choice { model, thinking: found.thinking.clone(), warning: found.warning.clone() })
}

/// A model with an unknown id, shaped as the provider's default one.
fn made_up(models: &Models, provider: &str, id: &str) -> Option<Choice> {
    let default = default_ids(provider).iter().find_map(|id| models.find(provider, id));
    let first = || models.find(provider, &models.names_of(provider).first()?.id);
    let mut model = Model::clone(&*default.or_else(first)?);
    id.clone_into(&mut model.id);
    id.clone_into(&mut model.name);
    let warning = format!("Model \"{id}\" not found for provider \"{provider}\". Using custom model id.");
    Some(Choice { model: Arc::new(model), thinking: None, warning: Some(warning) })
}

/// A model in the scope.
#[derive(Debug, Clone, PartialEq)]
pub struct ScopeEntry {
    /// The model.
    pub model: Arc<Model>,
    /// The level that its pattern asks for.
    pub thinking: Option<ThinkingLevel>,
}

/// The models that the patterns of `--models` or `enabledModels` mean among the available ones, and
/// warnings without the leading `Warning: `.
#[must_use]
pub fn scope<S: AsRef<str>>(patterns: &[S], available: &[Arc<Model>]) -> (Vec<ScopeEntry>, Vec<String>) {
    let mut entries: Vec<ScopeEntry> = Vec::new();
    let mut warnings = Vec::new();
    for pattern in patterns.iter().map(AsRef::as_ref) {
        let (found, thinking) = match globbed(pattern, available) {
            Some(found) => found,
            None => match parse(pattern, available, Mode::Scope) {
                Some(parsed) => {
                    warnings.extend(parsed.warning);
                    (vec![Arc::clone(parsed.model)], parsed.thinking)
                }
                None => (Vec::new(), None),
            },
        };
        if found.is_empty() {
            warnings.push(format!("No models match pattern \"{pattern}\""));
        }
        for model in found {
            let is_same = |entry: &ScopeEntry| entry.model.provider == model.provider && entry.model.id == model.id;
            if !entries.iter().any(is_same) {
                entries.push(ScopeEntry { model, thinking: thinking.clone() });
            }
        }
    }
    (entries, warnings)
}

/// What a pattern with wildcards means; `None` if it has none or is no valid glob.
fn globbed(pattern: &str, available: &[Arc<Model>]) -> Option<(Vec<Arc<Model>>, Option<ThinkingLevel>)> {
    if !pattern.contains(['*', '?', '[']) {
        return None;
    }
    let (glob, thinking) = match pattern.rsplit_once(':') {
        Some((glob, word)) if level(word).is_some() => (glob, level(word)),
        _ => (pattern, None),
    };
    let glob: GlobMatcher =
        GlobBuilder::new(glob).case_insensitive(true).literal_separator(true).build().ok()?.compile_matcher();
    let found = available
        .iter()
        .filter(|model| glob.is_match(format!("{}/{}", model.provider, model.id)) || glob.is_match(model.id.as_str()));
    Some((found.cloned().collect(), thinking))
}

/// Default ids of the providers in the order in which they are tried. Where the catalog has moved on,
/// the id in use today follows the older one.
const DEFAULTS: &[(&str, &[&str])] = &[
    ("amazon-bedrock", &["us.anthropic.claude-opus-4-6-v1"]),
    ("anthropic", &["claude-opus-4-6"]),
    ("openai", &["gpt-5.4"]),
    ("azure-openai-responses", &["gpt-5.2"]),
    ("openai-codex", &["gpt-5.4", "gpt-6.2-sol"]),
    ("google", &["gemini-2.5-pro"]),
    ("google-gemini-cli", &["gemini-2.5-pro"]),
    ("google-antigravity", &["gemini-3.1-pro-high"]),
    ("google-vertex", &["gemini-3-pro-preview", "gemini-4-argon"]),
    ("github-copilot", &["gpt-4o", "gpt-6.1-sol"]),
    ("openrouter", &["openai/gpt-5.1-codex"]),
    ("vercel-ai-gateway", &["anthropic/claude-opus-4-6", "anthropic/claude-opus-4.6"]),
    ("xai", &["grok-4-fast-non-reasoning", "grok-4.7"]),
    ("groq", &["openai/gpt-oss-120b"]),
    ("cerebras", &["gpt-oss-120b"]),
    ("mistral", &["devstral-medium-latest"]),
    ("minimax", &["MiniMax-M2.7"]),
    ("minimax-cn", &["MiniMax-M2.7"]),
    ("huggingface", &["moonshotai/Kimi-K2.5"]),
    ("opencode", &["claude-opus-4-6"]),
    ("opencode-go", &["kimi-k2.5", "kimi-k3.1-pro"]),
    ("kimi-coding", &["kimi-k2-thinking", "kimi-for-coding"]),
    ("kimi-coding-oauth", &["kimi-for-coding"]),
    // Providers that the catalog gained later.
    ("ant-ling", &["Ring-2.6-1T"]),
    ("baseten", &["zai-org/GLM-5.3"]),
    ("cloudflare-ai-gateway", &["workers-ai/@cf/moonshotai/kimi-k2.7-code"]),
    ("cloudflare-workers-ai", &["@cf/moonshotai/kimi-k2.7-code"]),
    ("deepseek", &["deepseek-v4-pro"]),
    ("fireworks", &["accounts/fireworks/models/kimi-k3"]),
    ("meta", &["muse-spark-1.3"]),
    ("moonshotai", &["kimi-k2.7-code"]),
    ("moonshotai-cn", &["kimi-k2.7-code"]),
    ("nvidia", &["nvidia/nemotron-3.5-super-vl-120b-a12b"]),
    ("qwen-token-plan", &["qwen3.8-max"]),
    ("qwen-token-plan-cn", &["qwen3.8-max"]),
    ("qwen-token-plan-individual", &["qwen3.8-max"]),
    ("qwen-token-plan-individual-cn", &["qwen3.8-max"]),
    ("together", &["moonshotai/Kimi-K3"]),
    ("xiaomi", &["mimo-v2.6-pro"]),
    ("xiaomi-token-plan-ams", &["mimo-v2.6-pro"]),
    ("xiaomi-token-plan-cn", &["mimo-v2.6-pro"]),
    ("xiaomi-token-plan-sgp", &["mimo-v2.6-pro"]),
    ("zai", &["glm-5.3"]),
    ("zai-coding-cn", &["glm-5.3"]),
];

fn default_ids(provider: &str) -> &'static [&'static str] {
    DEFAULTS.iter().find(|(name, _)| *name == provider).map_or(&[], |(_, ids)| ids)
}

/// Everything that has a say in the first model and thinking level of a session.
#[derive(Debug, Clone, Default)]
pub struct StartWishes<'a> {
    /// `--provider`; counts only together with `--model`.
    pub provider: Option<&'a str>,
    /// `--model`.
    pub model: Option<&'a str>,
    /// `--thinking`, checked.
    pub thinking: Option<ThinkingLevel>,
    /// The scope, empty for none.
    pub scope: &'a [ScopeEntry],
    /// Whether an existing session was asked for (`--continue`, `--resume`, `--session`).
    pub continues: bool,
    /// Whether the session already has messages.
    pub has_messages: bool,
    /// Provider and id of the model stored in the session.
    pub session_model: Option<(&'a str, &'a str)>,
    /// Level stored in the session.
    pub session_thinking: Option<ThinkingLevel>,
    /// Settings `defaultProvider` and `defaultModel`.
    pub default_model: Option<(&'a str, &'a str)>,
    /// Setting `defaultThinkingLevel`.
    pub default_thinking: Option<ThinkingLevel>,
}

/// The first model and thinking level of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// The model.
    pub model: Arc<Model>,
    /// The level, clamped to the model.
    pub thinking: ThinkingLevel,
    /// What the user should know, without the leading `Warning: `.
    pub warning: Option<String>,
    /// `modelFallbackMessage`: why the session's own model is not used.
    pub fallback_message: Option<String>,
}

/// Chooses the first model and thinking level of a session.
///
/// # Errors
///
/// `--model` names none, or nothing names one and no provider has credentials.
pub fn start(models: &Models, wishes: &StartWishes<'_>) -> Result<Start, ResolveError> {
    let mut pattern_level = None;
    let mut warning = None;
    let mut fallback = None;
    let model = if let Some(pattern) = wishes.model {
        let choice = from_flags(models, wishes.provider, pattern)?;
        pattern_level = choice.thinking;
        warning = choice.warning;
        choice.model
    } else if let Some(entry) = scoped_start(wishes) {
        pattern_level.clone_from(&entry.thinking);
        Arc::clone(&entry.model)
    } else {
        let restored = match wishes.session_model.filter(|_| wishes.has_messages) {
            Some((provider, id)) => restore(models, provider, id).map_err(|reason| {
                fallback = Some(format!("Could not restore model {provider}/{id} ({reason})"));
            }),
            None => Err(()),
        };
        match restored {
            Ok(model) => model,
            Err(()) => without_wish(models, wishes).ok_or(ResolveError::NoneAvailable)?,
        }
    };
    let session_level = wishes.session_thinking.clone().filter(|_| wishes.has_messages);
    let level = wishes
        .thinking
        .clone()
        .or(pattern_level)
        .or(session_level)
        .or_else(|| wishes.default_thinking.clone())
        .unwrap_or(thinking::DEFAULT);
    let thinking = thinking::clamp(&model, &level);
    let fallback_message = fallback.map(|text| format!("{text}. Using {}/{}", model.provider, model.id));
    Ok(Start { model, thinking, warning, fallback_message })
}

/// A fresh session begins with the default model if the scope has it, else with the scope's first.
fn scoped_start<'a>(wishes: &StartWishes<'a>) -> Option<&'a ScopeEntry> {
    if wishes.continues {
        return None;
    }
    let default = wishes.default_model.and_then(|(provider, id)| {
        wishes.scope.iter().find(|entry| entry.model.provider == provider && entry.model.id == id)
    });
    default.or_else(|| wishes.scope.first())
}

fn restore(models: &Models, provider: &str, id: &str) -> Result<Arc<Model>, &'static str> {
    let model = models.find(provider, id).ok_or("not found in registry")?;
    if models.has_auth(provider) { Ok(model) } else { Err("no API key available") }
}

fn without_wish(models: &Models, wishes: &StartWishes<'_>) -> Option<Arc<Model>> {
    let scoped = wishes.scope.first().filter(|_| !wishes.has_messages).map(|entry| Arc::clone(&entry.model));
    // Credentials are not looked at here: a missing key is told when it is needed.
    let set = || wishes.default_model.and_then(|(provider, id)| models.find(provider, id));
    let usual = || {
        let with_key = DEFAULTS.iter().filter(|(provider, _)| models.has_auth(provider));
        with_key
            .flat_map(|(provider, ids)| ids.iter().map(move |id| (provider, id)))
            .filter_map(|(provider, id)| models.find(provider, id))
            .find(|model| models.has_wire(model))
    };
    scoped.or_else(set).or_else(usual).or_else(|| models.first_available())
}

#[cfg(test)]
mod tests;
