//! Pure operations on settings: old forms, precedence, changes.

use serde_json::{Map, Value};

/// Rewrites forms that older versions wrote.
pub(super) fn migrate(settings: &mut Map<String, Value>) {
    if let Some(mode) = settings.shift_remove("queueMode") {
        settings.entry("steeringMode").or_insert(mode);
    }
    if let Some(&Value::Bool(websockets)) = settings.get("websockets") {
        settings.shift_remove("websockets");
        settings.entry("transport").or_insert_with(|| if websockets { "websocket" } else { "sse" }.into());
    }
    if let Some(Value::Object(old)) = settings.get_mut("skills") {
        let enabled = old.remove("enableSkillCommands");
        let directories = old.remove("customDirectories");
        match directories {
            Some(Value::Array(directories)) if !directories.is_empty() => {
                settings.insert("skills".into(), directories.into());
            }
            _ => {
                settings.shift_remove("skills");
            }
        }
        if let Some(enabled) = enabled {
            settings.entry("enableSkillCommands").or_insert(enabled);
        }
    }
}

/// Project over global, key by key; objects on both sides are merged one level deep.
pub(super) fn merge(global: &Map<String, Value>, project: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = global.clone();
    for (key, value) in project {
        match (merged.get_mut(key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => {
                below.extend(above.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            _ => {
                merged.insert(key.clone(), value.clone());
            }
        }
    }
    merged
}

/// Sets each path to its value, making the objects in between; `null` removes the key.
pub(super) fn apply(settings: &mut Map<String, Value>, changes: &[(Vec<String>, Value)]) {
    for (path, value) in changes {
        if let Some((last, parents)) = path.split_last() {
            set(settings, parents, last, value);
        }
    }
}

fn set(object: &mut Map<String, Value>, parents: &[String], key: &str, value: &Value) {
    let Some((parent, rest)) = parents.split_first() else {
        if value.is_null() {
            object.shift_remove(key);
        } else {
            object.insert(key.to_owned(), value.clone());
        }
        return;
    };
    if value.is_null() && !matches!(object.get(parent), Some(Value::Object(_))) {
        return;
    }
    let child = object.entry(parent.clone()).or_insert(Value::Null);
    if !child.is_object() {
        *child = Value::Object(Map::new());
    }
    if let Value::Object(child) = child {
        set(child, rest, key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;

    fn object(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    fn text(object: &Map<String, Value>) -> String {
        serde_json::to_string(object).unwrap()
    }

    #[test]
    fn old_forms_become_new_ones() {
        for (old, new) in [
            (r#"{"queueMode":"all"}"#, r#"{"steeringMode":"all"}"#),
            (r#"{"queueMode":"all","steeringMode":"one-at-a-time"}"#, r#"{"steeringMode":"one-at-a-time"}"#),
            (r#"{"websockets":true}"#, r#"{"transport":"websocket"}"#),
            (r#"{"websockets":false,"x":1}"#, r#"{"x":1,"transport":"sse"}"#),
            (r#"{"websockets":"yes"}"#, r#"{"websockets":"yes"}"#),
            (
                r#"{"skills":{"enableSkillCommands":false,"customDirectories":["a"]}}"#,
                r#"{"skills":["a"],"enableSkillCommands":false}"#,
            ),
            (r#"{"skills":{"enableSkillCommands":true,"customDirectories":[]}}"#, r#"{"enableSkillCommands":true}"#),
            (r#"{"skills":["a"]}"#, r#"{"skills":["a"]}"#),
        ] {
            let mut settings = object(old);
            migrate(&mut settings);
            assert_eq!(text(&settings), new);
        }
    }

    #[test]
    fn the_project_wins_one_level_deep() {
        let global = object(r#"{"a":1,"o":{"x":1,"deep":{"p":1}},"list":[1,2],"n":5}"#);
        let project = object(r#"{"o":{"y":2,"deep":{"q":2}},"list":[3],"n":null,"z":{"k":1}}"#);
        assert_eq!(
            text(&merge(&global, &project)),
            r#"{"a":1,"o":{"x":1,"deep":{"q":2},"y":2},"list":[3],"n":null,"z":{"k":1}}"#
        );
    }

    #[test]
    fn changes_touch_only_their_path() {
        let mut settings = object(r#"{"z":1,"compaction":{"keep":7,"enabled":true},"retry":true,"b":2}"#);
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        apply(
            &mut settings,
            &[
                (path("compaction.enabled"), false.into()),
                (path("retry.enabled"), false.into()),
                (path("z"), Value::Null),
                (path("new.a.b"), 1.into()),
                (path("b.c.d"), Value::Null),
                (path("gone.x"), Value::Null),
            ],
        );
        assert_eq!(
            text(&settings),
            r#"{"compaction":{"keep":7,"enabled":false},"retry":{"enabled":false},"b":2,"new":{"a":{"b":1}}}"#
        );
    }
}
