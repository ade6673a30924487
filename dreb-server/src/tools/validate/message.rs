//! What is wrong, in Ajv's words.

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind as Kind;
use protocol_schema::Number;
use serde_json::Value;

/// Adds the lines for an error; those of the branches of a union come before the union's own.
pub(super) fn collect(schema: &Value, error: &ValidationError<'_>, lines: &mut Vec<String>) {
    match error.kind() {
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            for inner in context.iter().flatten() {
                collect(schema, inner, lines);
            }
        }
        Kind::PropertyNames { error } => collect(schema, error, lines),
        _ => {}
    }
    for message in messages(schema, error) {
        lines.push(format!("{}: {message}", place(error)));
    }
}

/// The JSON pointer without its first slash; at the root the missing property or `root`.
fn place(error: &ValidationError<'_>) -> String {
    match (error.instance_path().as_str().strip_prefix('/'), error.kind()) {
        (Some(path), _) => path.to_owned(),
        (None, Kind::Required { property }) => text(property),
        (None, _) => "root".to_owned(),
    }
}

fn messages(schema: &Value, error: &ValidationError<'_>) -> Vec<String> {
    let limit = |words: &str, limit: &Value| format!("must be {words} {}", text(limit));
    let count = |words: &str, limit: u64, what: &str| format!("must NOT have {words} than {limit} {what}");
    let message = match error.kind() {
        Kind::AdditionalItems { limit } => format!("must NOT have more than {limit} items"),
        Kind::AdditionalProperties { unexpected } => {
            return vec!["must NOT have additional properties".to_owned(); unexpected.len()];
        }
        Kind::AnyOf { .. } => "must match a schema in anyOf".to_owned(),
        Kind::Constant { .. } => "must be equal to constant".to_owned(),
        Kind::Contains => "must contain at least 1 valid item(s)".to_owned(),
        Kind::Enum { .. } => "must be equal to one of the allowed values".to_owned(),
        Kind::ExclusiveMaximum { limit: value } => limit("<", value),
        Kind::ExclusiveMinimum { limit: value } => limit(">", value),
        // So the library reports it where no property is known at all.
        Kind::FalseSchema if error.schema_path().as_str().ends_with("/additionalProperties") => {
            "must NOT have additional properties".to_owned()
        }
        Kind::FalseSchema => "boolean schema is false".to_owned(),
        Kind::Format { format } => format!("must match format \"{format}\""),
        Kind::MaxItems { limit } => count("more", *limit, "items"),
        Kind::Maximum { limit: value } => limit("<=", value),
        Kind::MaxLength { limit } => count("more", *limit, "characters"),
        Kind::MaxProperties { limit } => count("more", *limit, "properties"),
        Kind::MinItems { limit } => count("fewer", *limit, "items"),
        Kind::Minimum { limit: value } => limit(">=", value),
        Kind::MinLength { limit } => count("fewer", *limit, "characters"),
        Kind::MinProperties { limit } => count("fewer", *limit, "properties"),
        Kind::MultipleOf { multiple_of } => format!("must be multiple of {}", number(*multiple_of)),
        Kind::Not { .. } => "must NOT be valid".to_owned(),
        Kind::OneOfMultipleValid { .. } | Kind::OneOfNotValid { .. } => {
            "must match exactly one schema in oneOf".to_owned()
        }
        Kind::Pattern { pattern } => format!("must match pattern \"{pattern}\""),
        Kind::PropertyNames { .. } => "property name must be valid".to_owned(),
        Kind::Required { property } => format!("must have required property '{}'", text(property)),
        Kind::Type { .. } => match schema.pointer(error.schema_path().as_str()) {
            Some(Value::String(name)) => format!("must be {name}"),
            Some(Value::Array(names)) => {
                format!("must be {}", names.iter().map(text).collect::<Vec<_>>().join(","))
            }
            _ => error.to_string(),
        },
        Kind::UnevaluatedItems { .. } => "must NOT have unevaluated items".to_owned(),
        Kind::UnevaluatedProperties { unexpected } => {
            return vec!["must NOT have unevaluated properties".to_owned(); unexpected.len()];
        }
        Kind::UniqueItems => {
            let path = error.schema_path().as_str();
            let array = schema.pointer(path.strip_suffix("/uniqueItems").unwrap_or(path));
            match equal_items(error.instance(), array.is_some_and(has_scalar_items)) {
                Some((one, other)) => {
                    format!("must NOT have duplicate items (items ## {one} and {other} are identical)")
                }
                None => "must NOT have duplicate items".to_owned(),
            }
        }
        _ => error.to_string(),
    };
    vec![message]
}

/// The pair that Ajv names: of items of any type the last that has an equal one before it, and the nearest
/// such; of scalars the last that has an equal one behind it, named second.
fn equal_items(value: &Value, are_scalars: bool) -> Option<(usize, usize)> {
    let items = value.as_array()?;
    (0..items.len()).rev().find_map(|index| {
        let is_equal = |other: &Value| *other == items[index];
        let other = if are_scalars {
            index + 1 + items[index + 1..].iter().position(is_equal)?
        } else {
            items[..index].iter().rposition(is_equal)?
        };
        Some((other, index))
    })
}

/// Whether an array schema declares the type of its items and that is neither object nor array.
fn has_scalar_items(schema: &Value) -> bool {
    let is_scalar = |name: &Value| !matches!(name.as_str(), Some("object" | "array") | None);
    match schema.get("items").and_then(|items| items.get("type")) {
        Some(Value::Array(names)) => !names.is_empty() && names.iter().all(is_scalar),
        Some(name) => is_scalar(name),
        None => false,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(value) => value.as_f64().map_or_else(|| value.to_string(), number),
        other => other.to_string(),
    }
}

/// A number as JavaScript prints it.
pub(super) fn number(value: f64) -> String {
    serde_json::to_string(&Number(value)).unwrap_or_default()
}
