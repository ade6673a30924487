//! Quickstart.

fn main() {}
