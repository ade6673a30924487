//! The `dreb` binary.

fn main() {}
