//! JSON Schema (draft 2020-12) of the protocol, made from the types.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::event::Event;
use crate::registry::{COMMANDS, CommandInfo};

/// The schema of everything that may stand on a line.
///
/// `$defs` holds each type, plus `ClientLine` (any command) and `ServerLine` (any response or event).
#[must_use]
pub fn bundle() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let event = generator.subschema_for::<Event>().to_value();
    let mut commands = Vec::new();
    let mut responses = Vec::new();
    let mut defs = Map::new();
    for command in COMMANDS {
        let (request_name, response_name) = definition_names(command.name);
        defs.insert(request_name.clone(), request(command, &mut generator));
        defs.insert(response_name.clone(), response(command, &mut generator));
        commands.push(json!({ "$ref": format!("#/$defs/{request_name}") }));
        responses.push(json!({ "$ref": format!("#/$defs/{response_name}") }));
    }
    defs.insert("Failure".into(), failure());
    responses.push(json!({ "$ref": "#/$defs/Failure" }));
    defs.insert("Response".into(), json!({ "description": "Any response.", "anyOf": responses }));
    defs.insert("ClientLine".into(), json!({ "description": "A line a client may write.", "anyOf": commands }));
    // A response is no event: an event's `type` is never `response`.
    defs.insert(
        "ServerLine".into(),
        json!({
            "description": "A line a server may write.",
            "if": { "properties": { "type": { "const": "response" } }, "required": ["type"] },
            "then": { "$ref": "#/$defs/Response" },
            "else": event,
        }),
    );
    for (name, schema) in generator.take_definitions(true) {
        defs.insert(name, schema);
    }
    defs.sort_keys();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://dreb.dev/schema/protocol.schema.json",
        "title": "dreb protocol",
        "description": "Every line of the dreb JSONL protocol. Validate one against $defs/ClientLine or $defs/ServerLine.",
        "$defs": defs,
    })
}

/// Names of a command's request and response definitions, for example `PromptRequest`.
fn definition_names(command: &str) -> (String, String) {
    let camel: String = command
        .split('_')
        .map(|word| {
            let (head, tail) = word.split_at(word.len().min(1));
            head.to_uppercase() + tail
        })
        .collect();
    (format!("{camel}Command"), format!("{camel}Response"))
}

fn request(command: &CommandInfo, generator: &mut SchemaGenerator) -> Value {
    let fields = (command.request_schema)(generator).to_value();
    json!({
        "type": "object",
        "properties": {
            "id": { "description": "Echoed in the response; any JSON value." },
            "type": { "const": command.name },
        },
        "required": ["type"],
        "allOf": [fields],
    })
}

fn response(command: &CommandInfo, generator: &mut SchemaGenerator) -> Value {
    let mut properties = Map::new();
    properties.insert("id".into(), json!({ "description": "The request's id, absent when it had none." }));
    properties.insert("type".into(), json!({ "const": "response" }));
    properties.insert("command".into(), json!({ "const": command.name }));
    properties.insert("success".into(), json!({ "const": true }));
    let mut required = vec!["type", "command", "success"];
    if command.has_data {
        properties.insert("data".into(), (command.response_schema)(generator).to_value());
        required.push("data");
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

fn failure() -> Value {
    json!({
        "description": "A command that failed. `command` is `parse` for a line that is not JSON.",
        "type": "object",
        "properties": {
            "id": { "description": "The request's id, absent when it had none or could not be read." },
            "type": { "const": "response" },
            "command": { "type": "string" },
            "success": { "const": false },
            "error": { "type": "string" },
        },
        "required": ["type", "command", "success", "error"],
    })
}
