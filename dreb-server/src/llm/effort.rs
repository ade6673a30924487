//! The words that a model takes for thinking levels, where its catalog entry lists them.

use protocol_schema::{Model, ThinkingLevel};
use serde_json::Value;

/// What a catalog entry says of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effort {
    /// The word the model takes.
    Word(String),
    /// Nothing; the API's usual way applies.
    Usual,
    /// Thinking cannot be turned off.
    AlwaysOn,
}

/// The efforts a map may name, from least to most.
const LADDER: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// What the model's `thinkingLevelMap` says of the level. A level that the map rules out becomes
/// the next one above that it has, else the next one below.
#[must_use]
pub fn of(model: &Model, level: &ThinkingLevel) -> Effort {
    let Some(map) = model.extra.get("thinkingLevelMap").and_then(Value::as_object) else { return Effort::Usual };
    match (level, map.get(level.as_str())) {
        (_, None) => Effort::Usual,
        (_, Some(Value::String(word))) => Effort::Word(word.clone()),
        (ThinkingLevel::Off, Some(_)) => Effort::AlwaysOn,
        _ => {
            let at = LADDER.iter().position(|step| *step == level.as_str()).unwrap_or_default();
            let mut nearest = LADDER[at..].iter().chain(LADDER[..at].iter().rev());
            nearest
                .find_map(|step| map.get(*step)?.as_str())
                .map_or(Effort::Usual, |word| Effort::Word(word.to_owned()))
        }
    }
}

/// The word for `max`, the effort above all levels, if the model has it.
#[must_use]
pub fn most(model: &Model) -> Option<String> {
    model.extra.get("thinkingLevelMap")?.get("max")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_map_decides_and_gaps_are_filled_from_above_then_below() {
        let mut model = Model::default();
        assert_eq!(of(&model, &ThinkingLevel::High), Effort::Usual);
        let map = json!({"off": null, "minimal": null, "low": "lo", "medium": null, "high": null});
        model.extra.insert("thinkingLevelMap".into(), map);
        for (level, expected) in [
            ("off", Effort::AlwaysOn),
            ("minimal", Effort::Word("lo".into())),
            ("low", Effort::Word("lo".into())),
            ("medium", Effort::Word("lo".into())),
            ("xhigh", Effort::Usual),
        ] {
            assert_eq!(of(&model, &level.into()), expected, "{level}");
        }
        assert_eq!(most(&model), None);
        model.extra.insert("thinkingLevelMap".into(), json!({"off": "none", "high": null, "max": "top"}));
        assert_eq!(of(&model, &ThinkingLevel::High), Effort::Word("top".into()));
        assert_eq!(of(&model, &ThinkingLevel::Off), Effort::Word("none".into()));
        assert_eq!(most(&model).as_deref(), Some("top"));
    }
}
