//! Token counts and what they cost.

use protocol_schema::Usage;
use protocol_schema::message::Cost;
use protocol_schema::model::ModelCost;

/// Tokens of one answer by kind. No token is counted twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Input tokens that came from no cache.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write: u64,
}

impl TokenCounts {
    /// The sum of the four.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.input, self.output, self.cache_read, self.cache_write].into_iter().fold(0, u64::saturating_add)
    }

    /// The usage with its cost at these prices, with the sum of the four as the total.
    #[must_use]
    pub fn priced(&self, prices: &ModelCost) -> Usage {
        Usage {
            input: self.input,
            output: self.output,
            cache_read: self.cache_read,
            cache_write: self.cache_write,
            total_tokens: Some(self.total()),
            cost: self.cost(prices),
            ..Usage::default()
        }
    }

    /// The cost in dollars; prices are dollars per million tokens.
    #[must_use]
    pub fn cost(&self, prices: &ModelCost) -> Cost {
        // The order of the operations is part of the number: sums of many answers are compared to the last digit.
        let dollars = |price: f64, tokens: u64| price / 1_000_000.0 * tokens as f64;
        let input = dollars(prices.input.0, self.input);
        let output = dollars(prices.output.0, self.output);
        let cache_read = dollars(prices.cache_read.0, self.cache_read);
        let cache_write = dollars(prices.cache_write.0, self.cache_write);
        Cost {
            input: input.into(),
            output: output.into(),
            cache_read: cache_read.into(),
            cache_write: cache_write.into(),
            total: (input + output + cache_read + cache_write).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_price_and_the_total_is_the_sum() {
        let prices =
            ModelCost { input: 3.0.into(), output: 15.0.into(), cache_read: 0.3.into(), cache_write: 3.75.into() };
        let usage = TokenCounts { input: 100, output: 20, cache_read: 1000, cache_write: 200 }.priced(&prices);
        assert_eq!(usage.total_tokens, Some(1320));
        assert_eq!(
            serde_json::to_string(&usage.cost).unwrap(),
            r#"{"input":0.00030000000000000003,"output":0.00030000000000000003,"cacheRead":0.0003,"cacheWrite":0.00075,"total":0.00165}"#
        );
    }

    #[test]
    fn no_tokens_cost_nothing_and_no_sum_overflows() {
        assert_eq!(TokenCounts::default().priced(&ModelCost::default()).cost, Cost::default());
        assert_eq!(TokenCounts { input: u64::MAX, output: 1, ..TokenCounts::default() }.total(), u64::MAX);
    }
}
