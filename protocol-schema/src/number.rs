//! Numbers as JavaScript prints them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A JSON number with a possible fraction: dollars, percentages, milliseconds with decimals.
///
/// A whole value is written without a fraction (`3`, not `3.0`), as JavaScript writes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, schemars::JsonSchema)]
#[schemars(transparent)]
pub struct Number(pub f64);

/// Up to here every whole double is a distinct integer.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() <= MAX_SAFE_INTEGER {
            // In range and whole, so the cast is exact.
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::deserialize(deserializer).map(Self)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl std::ops::AddAssign for Number {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_print_without_a_fraction() {
        for (value, text) in [(3.0, "3"), (0.0, "0"), (-0.0, "0"), (0.084, "0.084"), (1e300, "1e+300")] {
            assert_eq!(serde_json::to_string(&Number(value)).unwrap(), text);
        }
    }
}
