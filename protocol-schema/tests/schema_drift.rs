//! The committed schema is what the types say.

use std::path::Path;

const COMMAND: &str = "cargo run -p protocol-schema --bin generate-schema";

#[test]
fn the_committed_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/protocol.schema.json");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let current = format!("{:#}\n", protocol_schema::schema::bundle());
    if committed != current {
        let difference = pretty_assertions::StrComparison::new(&committed, &current);
        panic!("the schema is out of date; run: {COMMAND}\n{difference}");
    }
}

#[test]
fn the_schema_is_valid_draft_2020_12() {
    let bundle = protocol_schema::schema::bundle();
    assert!(jsonschema::draft202012::meta::is_valid(&bundle));
}
