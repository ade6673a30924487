//! How long a provider is asked to keep a prompt in its cache.

use crate::environment::Environment;

/// Wished lifetime of cached prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheRetention {
    /// The prompt is not marked for caching.
    None,
    /// The provider's usual time, minutes.
    #[default]
    Short,
    /// The provider's long time, hours, where it has one.
    Long,
}

impl CacheRetention {
    /// What `DREB_CACHE_RETENTION` says: `long`, else short.
    #[must_use]
    pub fn from_environment(environment: &Environment) -> Self {
        match environment.get("DREB_CACHE_RETENTION") {
            Some("long") => Self::Long,
            _ => Self::Short,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_long_means_long() {
        for (value, expected) in
            [("long", CacheRetention::Long), ("short", CacheRetention::Short), ("", CacheRetention::Short)]
        {
            let environment = [("DREB_CACHE_RETENTION".to_owned(), value.to_owned())].into_iter().collect();
            assert_eq!(CacheRetention::from_environment(&environment), expected);
        }
    }
}
