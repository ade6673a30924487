//! Writes the JSON Schema of the protocol to `protocol-schema/schema/`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema");
    std::fs::create_dir_all(&folder)?;
    let text = format!("{:#}\n", protocol_schema::schema::bundle());
    std::fs::write(folder.join("protocol.schema.json"), text)
}
