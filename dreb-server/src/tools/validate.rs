//! Arguments checked against a tool's schema, with the coercions and messages of Ajv, which models and
//! clients know.

mod coerce;
mod message;

use std::sync::{Arc, OnceLock};

use jsonschema::{Draft, ValidationError};
use serde_json::{Map, Value};

/// Checks the arguments of one tool. Making one costs nothing; the schema is compiled at the first check.
/// Clones share the compiled schema.
#[derive(Debug, Clone)]
pub struct Validator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    schema: Value,
    compiled: OnceLock<Result<jsonschema::Validator, String>>,
}

impl Validator {
    /// A validator for this JSON Schema.
    #[must_use]
    pub fn new(schema: &Value) -> Self {
        Self { inner: Arc::new(Inner { schema: schema.clone(), compiled: OnceLock::new() }) }
    }

    /// The arguments with values of the types that the schema asks for, where they can be converted
    /// (`"5"` to `5`, `"true"` to `true`, a number to a string). Unknown keys pass; defaults are not
    /// filled in.
    ///
    /// # Errors
    ///
    /// Everything that does not fit, as the text for the model. It shows the arguments as they came.
    pub fn check(&self, tool_name: &str, arguments: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        let compiled = self.inner.compiled.get_or_init(|| compile(&self.inner.schema));
        let problems = match compiled {
            Ok(validator) => {
                let mut value = Value::Object(arguments.clone());
                coerce::coerce(&self.inner.schema, &mut value);
                let problems = self.problems(validator, &value);
                match value {
                    Value::Object(coerced) if problems.is_empty() => return Ok(coerced),
                    _ => problems,
                }
            }
            Err(error) => vec![format!("root: the schema of the tool is not valid: {error}")],
        };
        let received = serde_json::to_string_pretty(arguments).unwrap_or_default();
        let problems: String = problems.into_iter().map(|problem| format!("  - {problem}\n")).collect();
        Err(format!("Validation failed for tool \"{tool_name}\":\n{problems}\nReceived arguments:\n{received}"))
    }

    fn problems(&self, validator: &jsonschema::Validator, value: &Value) -> Vec<String> {
        let mut errors: Vec<ValidationError<'_>> = validator.iter_errors(value).collect();
        errors.sort_by_cached_key(|error| self.rank(error));
        let mut problems = Vec::new();
        for error in &errors {
            message::collect(&self.inner.schema, error, &mut problems);
        }
        problems
    }

    /// The place of an error in the list: outer before inner, properties in the order of the schema,
    /// at one place the keywords in the order in which Ajv looks at them.
    fn rank(&self, error: &ValidationError<'_>) -> (Vec<usize>, usize) {
        const KEYWORDS: [&str; 10] = [
            "type",
            "maxProperties",
            "minProperties",
            "required",
            "maxItems",
            "minItems",
            "uniqueItems",
            "additionalProperties",
            "const",
            "enum",
        ];
        let mut schema = Some(&self.inner.schema);
        let mut path = Vec::new();
        for segment in error.instance_path().as_str().split('/').skip(1) {
            let name = segment.replace("~1", "/").replace("~0", "~");
            let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
            let position = properties
                .and_then(|properties| properties.keys().position(|key| *key == name))
                .or_else(|| name.parse().ok())
                .unwrap_or(usize::MAX);
            path.push(position);
            schema = properties
                .and_then(|properties| properties.get(&name))
                .or_else(|| schema.and_then(|schema| schema.get("items")));
        }
        let keyword = error.kind().keyword();
        (path, KEYWORDS.iter().position(|known| *known == keyword).unwrap_or(KEYWORDS.len()))
    }
}

/// The newest draft is right for nearly all schemas; an older one takes forms of `items` and the
/// like that have changed. References to other documents are not followed.
fn compile(schema: &Value) -> Result<jsonschema::Validator, String> {
    let mut schema = schema.clone();
    admit_null(&mut schema);
    let build = |options: jsonschema::ValidationOptions<'_>| options.should_validate_formats(true).build(&schema);
    build(jsonschema::options())
        .or_else(|error| build(jsonschema::options().with_draft(Draft::Draft7)).map_err(|_| error.to_string()))
}

/// Makes `nullable`, which Ajv knows and the standard does not, a type.
fn admit_null(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("nullable") == Some(&Value::Bool(true))
                && let Some(name @ Value::String(_)) = object.get("type")
            {
                let types = vec![name.clone(), Value::from("null")];
                object.insert("type".to_owned(), Value::Array(types));
            }
            object
                .iter_mut()
                .filter(|(key, _)| !matches!(key.as_str(), "const" | "enum"))
                .for_each(|(_, value)| admit_null(value));
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(admit_null),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
