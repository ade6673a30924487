//! Request headers, and the secrets in them.

use std::fmt;

use protocol_schema::Model;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::llm::{ProviderError, Secret};

/// Headers of one request, the later value of a name winning.
#[derive(Debug)]
pub struct Headers {
    map: HeaderMap,
    secrets: Secrets,
    provider: String,
}

impl Headers {
    /// No headers yet, for a request to this provider.
    #[must_use]
    pub fn new(provider: &str) -> Self {
        Self { map: HeaderMap::new(), secrets: Secrets::default(), provider: provider.to_owned() }
    }

    /// Sets a header.
    ///
    /// # Errors
    ///
    /// Name or value has characters that a header cannot carry.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ProviderError> {
        let invalid = || {
            ProviderError::other(format!(
                "Header {name:?} of provider {} cannot be sent: invalid characters",
                self.provider
            ))
        };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| invalid())?;
        value.set_sensitive(is_sensitive(key.as_str()));
        self.map.insert(key, value);
        Ok(())
    }

    /// Sets the header that carries the key: `Authorization: Bearer` or one of the provider's own.
    ///
    /// # Errors
    ///
    /// The key has characters that a header cannot carry.
    pub fn set_key(&mut self, name: &str, key: &Secret) -> Result<(), ProviderError> {
        self.secrets.add(key.expose());
        let value = if name.eq_ignore_ascii_case(AUTHORIZATION.as_str()) {
            format!("Bearer {}", key.expose().trim())
        } else {
            key.expose().to_owned()
        };
        self.set(name, &value).map_err(|_| {
            ProviderError::other(format!(
                "The API key for provider {} has characters that cannot be sent",
                self.provider
            ))
        })
    }

    /// Adds the headers configured for the model.
    ///
    /// # Errors
    ///
    /// As for [`Headers::set`].
    pub fn add_model(&mut self, model: &Model) -> Result<(), ProviderError> {
        for (name, value) in model.headers.iter().flatten() {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Null => continue,
                other => other.to_string(),
            };
            if is_sensitive(name) {
                self.secrets.add(value.strip_prefix("Bearer ").unwrap_or(&value));
            }
            self.set(name, &value)?;
        }
        Ok(())
    }

    /// Whether the name is set.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The headers and the secrets that were put into them.
    #[must_use]
    pub fn into_parts(self) -> (HeaderMap, Secrets) {
        (self.map, self.secrets)
    }
}

fn is_sensitive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "key", "token", "secret", "cookie", "password", "credential"].iter().any(|word| name.contains(word))
}

/// Texts that must not be shown.
#[derive(Default, Clone)]
pub struct Secrets(Vec<String>);

/// A shorter key is a placeholder such as `-` for a server that needs none.
const SHORTEST_SECRET: usize = 4;

impl Secrets {
    /// Adds a secret.
    pub fn add(&mut self, secret: &str) {
        let secret = secret.trim();
        if secret.len() >= SHORTEST_SECRET {
            self.0.push(secret.to_owned());
            // Longest first, so that no part of one is left over by another.
            self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    /// The text with each secret cut out.
    #[must_use]
    pub fn redact(&self, text: impl Into<String>) -> String {
        self.0.iter().fold(text.into(), |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), "<redacted>") } else { text }
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}
