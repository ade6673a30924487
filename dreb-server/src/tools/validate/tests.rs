use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;

fn check(schema: Value, arguments: Value) -> Result<Value, String> {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    Validator::new(&schema).check("t", &arguments).map(Value::Object)
}

/// What `value` becomes as an argument with this schema.
fn coerced(schema: Value, value: Value) -> Result<Value, String> {
    check(json!({"type": "object", "properties": {"v": schema}}), json!({"v": value})).map(|all| all["v"].clone())
}

/// The lines of the failure.
fn problems(schema: Value, arguments: Value) -> Vec<String> {
    let text = check(schema, arguments).unwrap_err();
    let list = text.strip_prefix("Validation failed for tool \"t\":\n").unwrap();
    let (list, _) = list.split_once("\n\nReceived arguments:\n").unwrap();
    list.lines().map(|line| line.strip_prefix("  - ").unwrap().to_owned()).collect()
}

fn problems_of(schema: Value, value: Value) -> Vec<String> {
    problems(json!({"type": "object", "properties": {"v": schema}}), json!({"v": value}))
}

#[test]
fn a_missing_argument_is_named() {
    let read = crate::tools::read::ReadTool::new();
    let validator = Validator::new(&crate::tools::Tool::definition(&read).parameters);
    assert_eq!(
        validator.check("read", &Map::new()),
        Err("Validation failed for tool \"read\":\n  - path: must have required property 'path'\n\nReceived \
             arguments:\n{}"
            .to_owned())
    );
}

#[test]
fn all_problems_are_listed_with_the_arguments_as_they_came() {
    let schema = json!({
        "type": "object",
        "properties": {
            "b": {"type": "number"},
            "a": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
            "c": {"type": "array", "items": {"type": "boolean"}}
        },
        "required": ["b", "z"]
    });
    assert_eq!(
        check(schema, json!({"c": ["true", "no"], "a": {}, "b": [1]})),
        Err(
            "Validation failed for tool \"t\":\n  - z: must have required property 'z'\n  - b: must be number\n  - a: \
             must have required property 'x'\n  - c/1: must be boolean\n\nReceived arguments:\n{\n  \"c\": [\n    \
             \"true\",\n    \"no\"\n  ],\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n}"
                .to_owned()
        )
    );
}

#[test]
fn scalars_are_converted_to_the_type_asked_for() {
    for (schema, value, expected) in [
        (json!({"type": "number"}), json!("5"), json!(5)),
        (json!({"type": "number"}), json!(" 1.5e3 "), json!(1500)),
        (json!({"type": "number"}), json!("0x10"), json!(16)),
        (json!({"type": "number"}), json!("-.5"), json!(-0.5)),
        (json!({"type": "number"}), json!(true), json!(1)),
        (json!({"type": "number"}), json!(null), json!(0)),
        (json!({"type": "integer"}), json!("7.0"), json!(7)),
        (json!({"type": "integer"}), json!(3.0), json!(3.0)),
        (json!({"type": "boolean"}), json!("true"), json!(true)),
        (json!({"type": "boolean"}), json!(0), json!(false)),
        (json!({"type": "boolean"}), json!(null), json!(false)),
        (json!({"type": "string"}), json!(5), json!("5")),
        (json!({"type": "string"}), json!(5.0), json!("5")),
        (json!({"type": "string"}), json!(-0.25), json!("-0.25")),
        (json!({"type": "string"}), json!(false), json!("false")),
        (json!({"type": "string"}), json!(null), json!("")),
        (json!({"type": "null"}), json!(""), json!(null)),
        (json!({"type": ["number", "null"]}), json!("4"), json!(4)),
        (json!({"type": ["string", "number"]}), json!(4), json!(4)),
        (json!({"type": "string", "nullable": true}), json!(4), json!("4")),
        (json!({"type": "string", "nullable": true}), json!(null), json!(null)),
        (json!({"type": "array", "items": {"type": "number"}}), json!(["1", 2]), json!([1, 2])),
        (json!({"prefixItems": [{"type": "number"}], "items": {"type": "string"}}), json!(["1", 2]), json!([1, "2"])),
        (
            json!({"items": [{"type": "number"}], "additionalItems": {"type": "string"}}),
            json!(["1", 2]),
            json!([1, "2"]),
        ),
        (json!({"additionalProperties": {"type": "number"}}), json!({"k": "1"}), json!({"k": 1})),
        (json!({"patternProperties": {"^(.*)$": {"type": "number"}}}), json!({"k": "1"}), json!({"k": 1})),
        (
            json!({"patternProperties": {"^n": {"type": "number"}}}),
            json!({"k": "1", "n": "1"}),
            json!({"k": "1", "n": 1}),
        ),
        (json!({"anyOf": [{"type": "number"}, {"type": "string"}]}), json!("x"), json!("x")),
        (json!({"anyOf": [{"type": "number"}, {"type": "string"}]}), json!("2"), json!(2)),
        (json!({"anyOf": [{"const": "a"}, {"type": "array", "items": {"type": "number"}}]}), json!(["2"]), json!([2])),
        (json!({"allOf": [{"type": "number"}]}), json!("2"), json!(2)),
        (json!({"type": "number", "default": 4}), json!(2), json!(2)),
    ] {
        assert_eq!(coerced(schema.clone(), value.clone()), Ok(expected), "{schema} {value}");
    }
}

#[test]
fn what_cannot_be_converted_stays_wrong() {
    for (name, value) in [
        ("number", json!("")),
        ("number", json!("5 apples")),
        ("number", json!("inf")),
        ("number", json!("1e999")),
        ("integer", json!("1.5")),
        ("integer", json!(1.5)),
        ("boolean", json!("yes")),
        ("boolean", json!(2)),
        ("string", json!(["a"])),
        ("null", json!("x")),
        ("array", json!("a")),
        ("object", json!(1)),
    ] {
        assert_eq!(problems_of(json!({"type": name}), value), [format!("v: must be {name}")]);
    }
}

#[test]
fn messages_are_those_of_ajv() {
    for (schema, value, message) in [
        (json!({"type": ["string", "null"]}), json!([]), "v: must be string,null"),
        (json!({"enum": ["a", "b"]}), json!("c"), "v: must be equal to one of the allowed values"),
        (json!({"const": "a"}), json!("c"), "v: must be equal to constant"),
        (json!({"minimum": 1}), json!(0), "v: must be >= 1"),
        (json!({"maximum": 1.5}), json!(2), "v: must be <= 1.5"),
        (json!({"exclusiveMinimum": 1}), json!(1), "v: must be > 1"),
        (json!({"exclusiveMaximum": 1}), json!(1), "v: must be < 1"),
        (json!({"multipleOf": 2}), json!(3), "v: must be multiple of 2"),
        (json!({"minLength": 2}), json!("a"), "v: must NOT have fewer than 2 characters"),
        (json!({"maxLength": 1}), json!("ab"), "v: must NOT have more than 1 characters"),
        (json!({"pattern": "^a$"}), json!("b"), "v: must match pattern \"^a$\""),
        (json!({"format": "email"}), json!("b"), "v: must match format \"email\""),
        (json!({"minItems": 2}), json!([1]), "v: must NOT have fewer than 2 items"),
        (json!({"maxItems": 0}), json!([1]), "v: must NOT have more than 0 items"),
        (
            json!({"uniqueItems": true}),
            json!([1, 2, 1]),
            "v: must NOT have duplicate items (items ## 0 and 2 are identical)",
        ),
        (
            json!({"uniqueItems": true, "items": {"type": "number"}}),
            json!([1, 2, 1]),
            "v: must NOT have duplicate items (items ## 2 and 0 are identical)",
        ),
        (json!({"type": "string", "nullable": true}), json!([]), "v: must be string"),
        (json!({"minProperties": 1}), json!({}), "v: must NOT have fewer than 1 properties"),
        (json!({"maxProperties": 0}), json!({"a": 1}), "v: must NOT have more than 0 properties"),
        (json!({"additionalProperties": false}), json!({"a": 1}), "v: must NOT have additional properties"),
        (
            json!({"properties": {"b": {}}, "additionalProperties": false}),
            json!({"a": 1}),
            "v: must NOT have additional properties",
        ),
        (json!({"not": {"type": "string"}}), json!("a"), "v: must NOT be valid"),
        (json!({"contains": {"const": 1}}), json!([2]), "v: must contain at least 1 valid item(s)"),
        (json!(false), json!(1), "v: boolean schema is false"),
        (
            json!({"properties": {"a/b": {"type": "array", "items": {"required": ["x"]}}}}),
            json!({"a/b": [{}]}),
            "v/a~1b/0: must have required property 'x'",
        ),
        (json!({"oneOf": [{"minimum": 1}, {"minimum": 2}]}), json!(3), "v: must match exactly one schema in oneOf"),
    ] {
        assert_eq!(problems_of(schema.clone(), value), [message], "{schema}");
    }
    assert_eq!(
        problems_of(json!({"anyOf": [{"type": "array"}, {"const": "x"}]}), json!("y")),
        ["v: must be array", "v: must be equal to constant", "v: must match a schema in anyOf"]
    );
    assert_eq!(
        problems_of(json!({"type": "string", "enum": ["a"]}), json!([])),
        ["v: must be string", "v: must be equal to one of the allowed values"]
    );
}

#[test]
fn references_within_the_schema_are_followed_and_others_refused() {
    let schema = json!({
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {
            "type": "object",
            "properties": {"n": {"type": "number"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["n"]
        }}
    });
    assert_eq!(
        check(schema.clone(), json!({"tree": {"n": "1", "next": {"n": "2", "extra": "3"}}})),
        Ok(json!({"tree": {"n": 1, "next": {"n": 2, "extra": "3"}}}))
    );
    assert_eq!(problems(schema, json!({"tree": {"n": "x"}})), ["tree/n: must be number"]);
    let circle = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    coerce::coerce(&circle, &mut json!({}));

    let outside = problems(json!({"$ref": "https://example.com/schema.json"}), json!({}));
    assert!(outside[0].starts_with("root: the schema of the tool is not valid: "), "{outside:?}");
    let broken = problems(json!({"type": "nonsense"}), json!({}));
    assert!(broken[0].starts_with("root: the schema of the tool is not valid: "), "{broken:?}");
}

#[test]
fn arguments_that_fit_come_back_as_they_were() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "x-own": 1});
    let arguments = json!({"z": [1.0, null], "a": "b"});
    let result = check(schema, arguments.clone()).unwrap();
    assert_eq!(serde_json::to_string(&result).unwrap(), serde_json::to_string(&arguments).unwrap());
}

#[test]
fn a_validator_compiles_at_its_first_check() {
    let validator = Validator::new(&json!({"type": "object"}));
    assert!(validator.inner.compiled.get().is_none());
    validator.check("t", &Map::new()).unwrap();
    assert!(validator.clone().inner.compiled.get().is_some());
}
