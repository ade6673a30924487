//! Thinking levels: which a model has, and what a wish becomes.

use protocol_schema::{Model, ThinkingLevel};
use serde_json::Value;

/// Levels from none to most.
const LADDER: [ThinkingLevel; 6] = [
    ThinkingLevel::Off,
    ThinkingLevel::Minimal,
    ThinkingLevel::Low,
    ThinkingLevel::Medium,
    ThinkingLevel::High,
    ThinkingLevel::Xhigh,
];

/// The level that is wished for where neither the user nor the settings name one.
pub const DEFAULT: ThinkingLevel = ThinkingLevel::Xhigh;

/// GPT versions, as they stand in ids, that take the effort `xhigh`.
const XHIGH_GPT: [&str; 5] = ["gpt-5.2", "gpt-5.3", "gpt-5.4", "gpt-5.5", "gpt-5.6"];

/// Whether the model takes the level `xhigh`: by its id, or because its catalog entry says so.
#[must_use]
pub fn supports_xhigh(model: &Model) -> bool {
    if model.extra.get("thinkingLevelMap").and_then(|map| map.get("xhigh")).is_some_and(Value::is_string) {
        return true;
    }
    if XHIGH_GPT.iter().any(|version| model.id.contains(version)) {
        return true;
    }
    if model.provider == "kimi-coding-oauth" && model.id == "k3" {
        return true;
    }
    match claude_version(&model.id) {
        Some((Family::Opus, version)) => version >= (4, 6),
        Some((Family::Sonnet, version)) => version >= (5, 0),
        None => false,
    }
}

/// Whether the model decides by itself how much it thinks, so that it gets an effort and no budget.
#[must_use]
pub fn is_adaptive(model: &Model) -> bool {
    let forced = model.compat.as_ref().and_then(|compat| compat.get("forceAdaptiveThinking"));
    forced == Some(&Value::Bool(true)) || claude_version(&model.id).is_some_and(|(_, version)| version >= (4, 6))
}

/// The levels the model has, from `off` upwards.
#[must_use]
pub fn available_levels(model: &Model) -> Vec<ThinkingLevel> {
    let count = match (model.reasoning, supports_xhigh(model)) {
        (false, _) => 1,
        (true, false) => LADDER.len() - 1,
        (true, true) => LADDER.len(),
    };
    LADDER[..count].to_vec()
}

/// The level that a wish for `level` means for the model: the level itself, else the next one above
/// that it has, else the next one below. An unknown word means `off`.
#[must_use]
pub fn clamp(model: &Model, level: &ThinkingLevel) -> ThinkingLevel {
    let Some(wish) = LADDER.iter().position(|step| step == level) else {
        return ThinkingLevel::Off;
    };
    // The levels of a model are always the lowest ones, so there is never one above that is not
    // the wish itself.
    let top = available_levels(model).len() - 1;
    LADDER[wish.min(top)].clone()
}

/// Thinking budget of a level in tokens, for models that take a budget; 0 for `off`.
#[must_use]
pub fn default_budget(level: &ThinkingLevel) -> u64 {
    match level {
        ThinkingLevel::Minimal => 1024,
        ThinkingLevel::Low => 2048,
        ThinkingLevel::Medium => 8192,
        ThinkingLevel::High | ThinkingLevel::Xhigh => 16384,
        _ => 0,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Opus,
    Sonnet,
}

/// Family and version of a Claude model: `opus-` or `sonnet-`, a major of one or two digits, and
/// perhaps a minor of one or two digits after `-` or `.`. Longer digits are a date, not a version.
fn claude_version(id: &str) -> Option<(Family, (u32, u32))> {
    [("opus-", Family::Opus), ("sonnet-", Family::Sonnet)].into_iter().find_map(|(word, family)| {
        id.match_indices(word).find_map(|(at, _)| Some((family, version(&id[at + word.len()..])?)))
    })
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = short_number(text)?;
    let minor = rest.strip_prefix(['-', '.']).and_then(short_number).map_or(0, |(minor, _)| minor);
    Some((major, minor))
}

/// One or two digits that no further digit follows, and the rest.
fn short_number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if !(1..=2).contains(&digits) {
        return None;
    }
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model(provider: &str, id: &str, reasoning: bool) -> Model {
        Model { id: id.into(), provider: provider.into(), reasoning, ..Model::default() }
    }

    #[test]
    fn claude_versions_are_read_and_dates_are_not() {
        for (id, expected) in [
            ("claude-opus-4-6", Some((4, 6))),
            ("anthropic/claude-opus-4.7", Some((4, 7))),
            ("us.anthropic.claude-opus-4-6-v1", Some((4, 6))),
            ("claude-sonnet-4-20250514", Some((4, 0))),
            ("claude-sonnet-4-5-20250929", Some((4, 5))),
            ("claude-sonnet-5", Some((5, 0))),
            ("claude-opus-10", Some((10, 0))),
            ("claude-3-opus-20240229", None),
            ("claude-3-5-sonnet-latest", None),
            ("gpt-5.2", None),
        ] {
            assert_eq!(claude_version(id).map(|(_, version)| version), expected, "{id}");
        }
    }

    #[test]
    fn the_rules_by_id() {
        for (provider, id, xhigh, adaptive) in [
            ("anthropic", "claude-opus-4-5", false, false),
            ("anthropic", "claude-opus-4-6", true, true),
            ("anthropic", "claude-sonnet-4-6", false, true),
            ("anthropic", "claude-sonnet-5", true, true),
            ("anthropic", "claude-opus-5", true, true),
            ("anthropic", "claude-sonnet-4-20250514", false, false),
            ("openai", "gpt-5.1", false, false),
            ("openrouter", "openai/gpt-5.2-codex", true, false),
            ("openai", "gpt-5.6", true, false),
            ("kimi-coding-oauth", "k3", true, false),
            ("kimi-coding", "k3", false, false),
        ] {
            let model = model(provider, id, true);
            assert_eq!((supports_xhigh(&model), is_adaptive(&model)), (xhigh, adaptive), "{id}");
        }
    }

    #[test]
    fn a_catalog_entry_may_say_more_than_the_id() {
        let mut model = model("anthropic", "claude-fable-5", true);
        assert!(!supports_xhigh(&model) && !is_adaptive(&model));
        model.extra.insert("thinkingLevelMap".into(), json!({ "xhigh": "xhigh", "off": null }));
        model.compat = Some(json!({ "forceAdaptiveThinking": true }));
        assert!(supports_xhigh(&model) && is_adaptive(&model));
        model.extra.insert("thinkingLevelMap".into(), json!({ "xhigh": null }));
        model.compat = Some(json!({ "forceAdaptiveThinking": false }));
        assert!(!supports_xhigh(&model) && !is_adaptive(&model));
    }

    #[test]
    fn levels_and_clamping_follow_the_model() {
        use ThinkingLevel::{High, Low, Minimal, Off, Unknown, Xhigh};
        let dull = model("openai", "gpt-4o", false);
        let plain = model("openai", "o3", true);
        let keen = model("openai", "gpt-5.4", true);
        assert_eq!(available_levels(&dull), [Off]);
        assert_eq!(available_levels(&plain), LADDER[..5]);
        assert_eq!(available_levels(&keen), LADDER);
        for (model, wish, level) in [
            (&dull, Xhigh, Off),
            (&dull, Minimal, Off),
            (&plain, Xhigh, High),
            (&plain, Off, Off),
            (&plain, Low, Low),
            (&keen, Xhigh, Xhigh),
            (&keen, Unknown("max".into()), Off),
        ] {
            assert_eq!(clamp(model, &wish), level);
        }
    }

    #[test]
    fn budgets() {
        assert_eq!(LADDER.each_ref().map(default_budget), [0, 1024, 2048, 8192, 16384, 16384]);
    }
}
