//! Values of the wrong type made into the right one, where that is plain, by Ajv's rules.

use serde_json::{Map, Number, Value, json};

use super::message::number as number_text;

/// Levels of schemas within schemas that are followed; stops references that lead in a circle.
const MAX_DEPTH: usize = 64;

/// Converts what the schema asks for and leaves the rest.
pub(super) fn coerce(schema: &Value, value: &mut Value) {
    Coercion { root: schema }.apply(schema, value, 0);
}

struct Coercion<'a> {
    /// The document that references point into.
    root: &'a Value,
}

impl Coercion<'_> {
    fn apply(&self, schema: &Value, value: &mut Value, depth: usize) {
        let (Some(schema), true) = (schema.as_object(), depth < MAX_DEPTH) else {
            return;
        };
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|text| self.target(text)) {
            self.apply(target, value, depth + 1);
        }
        coerce_type(schema, value);
        match value {
            Value::Object(object) => self.properties(schema, object, depth + 1),
            Value::Array(items) => self.items(schema, items, depth + 1),
            _ => {}
        }
        for part in schemas(schema, "allOf") {
            self.apply(part, value, depth + 1);
        }
        for keyword in ["anyOf", "oneOf"] {
            self.union(schemas(schema, keyword), value, depth + 1);
        }
    }

    fn target(&self, reference: &str) -> Option<&Value> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn properties(&self, schema: &Map<String, Value>, object: &mut Map<String, Value>, depth: usize) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let additional = schema.get("additionalProperties");
        for (key, value) in object {
            let mut is_known = false;
            if let Some(schema) = properties.and_then(|properties| properties.get(key)) {
                self.apply(schema, value, depth);
                is_known = true;
            }
            for (pattern, schema) in patterns.into_iter().flatten() {
                if matches_pattern(pattern, key) {
                    self.apply(schema, value, depth);
                    is_known = true;
                }
            }
            if let (false, Some(schema)) = (is_known, additional) {
                self.apply(schema, value, depth);
            }
        }
    }

    fn items(&self, schema: &Map<String, Value>, items: &mut [Value], depth: usize) {
        let mut first: Vec<&Value> = schemas(schema, "prefixItems").collect();
        let rest = match schema.get("items") {
            Some(Value::Array(schemas)) => {
                first.extend(schemas);
                schema.get("additionalItems")
            }
            other => other,
        };
        for (index, item) in items.iter_mut().enumerate() {
            if let Some(schema) = first.get(index).copied().or(rest) {
                self.apply(schema, item, depth);
            }
        }
    }

    /// The first branch that the value fits, converted if need be, wins.
    fn union<'s>(&self, branches: impl Iterator<Item = &'s Value>, value: &mut Value, depth: usize) {
        for branch in branches {
            let mut candidate = value.clone();
            self.apply(branch, &mut candidate, depth);
            if self.fits(branch, &candidate) {
                *value = candidate;
                return;
            }
        }
    }

    fn fits(&self, branch: &Value, value: &Value) -> bool {
        let mut schema = branch.clone();
        if let Some(schema) = schema.as_object_mut() {
            for key in ["$defs", "definitions"] {
                if let (Some(definitions), false) = (self.root.get(key), schema.contains_key(key)) {
                    schema.insert(key.to_owned(), definitions.clone());
                }
            }
        }
        super::compile(&schema).is_ok_and(|validator| validator.is_valid(value))
    }
}

fn schemas<'s>(schema: &'s Map<String, Value>, keyword: &str) -> impl Iterator<Item = &'s Value> + use<'s> {
    schema.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

fn matches_pattern(pattern: &str, key: &str) -> bool {
    // What schema builders write for a map of anything.
    matches!(pattern, "" | ".*" | "^.*$" | "^(.*)$")
        || super::compile(&json!({"pattern": pattern})).is_ok_and(|validator| validator.is_valid(&json!(key)))
}

fn coerce_type(schema: &Map<String, Value>, value: &mut Value) {
    let mut types: Vec<&str> = match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        types.push("null");
    }
    if !types.iter().any(|name| has_type(name, value))
        && let Some(converted) = types.iter().find_map(|name| convert(name, value))
    {
        *value = converted;
    }
}

fn has_type(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

fn convert(name: &str, value: &Value) -> Option<Value> {
    match (name, value) {
        ("string", Value::Number(number)) => Some(Value::String(match number.as_f64() {
            Some(float) if number.is_f64() => number_text(float),
            _ => number.to_string(),
        })),
        ("string", Value::Bool(flag)) => Some(Value::String(flag.to_string())),
        ("string", Value::Null) => Some(Value::String(String::new())),
        ("number", _) => to_number(value),
        ("integer", _) => to_number(value).filter(|number| has_type("integer", number)),
        ("boolean", Value::Null) => Some(Value::Bool(false)),
        ("boolean", Value::String(text)) => text.parse().ok().map(Value::Bool),
        ("boolean", Value::Number(number)) => match number.as_f64() {
            Some(0.0) => Some(Value::Bool(false)),
            Some(1.0) => Some(Value::Bool(true)),
            _ => None,
        },
        ("null", Value::Bool(false)) => Some(Value::Null),
        ("null", Value::String(text)) if text.is_empty() => Some(Value::Null),
        ("null", Value::Number(number)) if number.as_f64() == Some(0.0) => Some(Value::Null),
        _ => None,
    }
}

fn to_number(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(flag) => Some(Value::from(u8::from(*flag))),
        Value::Null => Some(Value::from(0)),
        Value::String(text) => parse_number(text).map(Value::Number),
        _ => None,
    }
}

/// A number as JavaScript reads one from a string that is not empty.
fn parse_number(text: &str) -> Option<Number> {
    let trimmed = text.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    if trimmed.is_empty() {
        return if text.is_empty() { None } else { Some(Number::from(0)) };
    }
    for (prefix, radix) in [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)] {
        if let Some(digits) = trimmed.strip_prefix(prefix) {
            // A sign is no digit.
            let plain = digits.chars().all(|c| c.is_ascii_hexdigit());
            return u64::from_str_radix(digits, radix).ok().filter(|_| plain).map(Number::from);
        }
    }
    if let Ok(whole) = trimmed.parse::<i64>() {
        return Some(Number::from(whole));
    }
    // Rust also reads names such as `inf`, JavaScript has others; none is a JSON number.
    if !trimmed.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')) {
        return None;
    }
    let number: f64 = trimmed.parse().ok()?;
    if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
        // In range and whole, so the cast is exact.
        return Some(Number::from(number as i64));
    }
    Number::from_f64(number)
}
