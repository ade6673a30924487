//! Credentials: `auth.json`, the environment, and the texts about what is missing.

mod environment_keys;

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

pub use self::environment_keys::{AUTHENTICATED, EnvironmentKeys};
use super::{Secret, jsonc};
use crate::small_file;

/// An access token is given up this long before it expires.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// Why there is no key for a provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// None is stored or set.
    #[error("No API key found for \"{provider}\". Set an API key environment variable or run '/login {provider}'.")]
    Missing {
        /// The provider's name.
        provider: String,
    },
    /// A login is stored and cannot be used any more.
    #[error(
        "Authentication failed for \"{provider}\". Credentials may have expired or network is unavailable. \
         Run '/login {provider}' to re-authenticate."
    )]
    Expired {
        /// The provider's name.
        provider: String,
    },
}

impl KeyError {
    /// The text that refuses a prompt, naming the folder of the documentation.
    #[must_use]
    pub fn prompt_text(&self, docs: &Path) -> String {
        match self {
            Self::Missing { provider } => format!(
                "No API key found for {provider}.\n\nUse /login or set an API key environment variable. See {}",
                docs.join("providers.md").display()
            ),
            Self::Expired { .. } => self.to_string(),
        }
    }
}

/// A stored credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A key, as a [value form](super::value_forms).
    ApiKey(Secret),
    /// A login.
    OAuth(OAuth),
    /// A kind this version does not know.
    Unknown,
}

/// A stored login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuth {
    /// The access token.
    pub access: Secret,
    /// When it expires, Unix time in milliseconds.
    pub expires: u64,
    /// Google Cloud project that goes with the token.
    pub project_id: Option<String>,
    /// Domain of a GitHub Enterprise server.
    pub enterprise_url: Option<String>,
}

impl OAuth {
    /// Whether the token is expired or about to.
    #[must_use]
    pub fn is_expired(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        now + EXPIRY_MARGIN >= Duration::from_millis(self.expires)
    }

    /// What is passed to the provider's wire API.
    #[must_use]
    pub fn key(&self, provider: &str) -> Secret {
        match (provider, &self.project_id) {
            ("google-gemini-cli" | "google-antigravity", Some(project)) => {
                let key = serde_json::json!({ "token": self.access.expose(), "projectId": project });
                Secret::new(key.to_string())
            }
            _ => self.access.clone(),
        }
    }
}

/// The contents of `auth.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    by_provider: HashMap<String, Credential>,
}

impl Credentials {
    /// Reads the text of `auth.json`; the messages name what could not be used, never its content.
    #[must_use]
    pub fn parse(text: &str, path: &Path) -> (Self, Vec<String>) {
        let place = path.display();
        let fields: Map<String, Value> = match serde_json::from_str(&jsonc::to_json(text)) {
            Ok(fields) => fields,
            // The parser's message may quote a piece of the text, so only the place is told.
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                let message = format!(
                    "Stored credentials are not used: {place} is not a JSON object (line {line}, column {column})"
                );
                return (Self::default(), vec![message]);
            }
        };
        let mut credentials = Self::default();
        let mut messages = Vec::new();
        for (provider, value) in fields {
            match credential(&value) {
                Some(credential) => {
                    credentials.by_provider.insert(provider, credential);
                }
                None => messages.push(format!("The credentials of {provider} in {place} are incomplete and not used")),
            }
        }
        (credentials, messages)
    }

    /// The credential stored for a provider.
    #[must_use]
    pub fn of(&self, provider: &str) -> Option<&Credential> {
        // There is no login for Anthropic; an old one must not hide the environment.
        let found = self.by_provider.get(provider);
        found.filter(|found| !(provider == "anthropic" && matches!(found, Credential::OAuth(_))))
    }
}

fn credential(value: &Value) -> Option<Credential> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    match text("type")? {
        "api_key" => Some(Credential::ApiKey(Secret::new(text("key")?))),
        "oauth" => Some(Credential::OAuth(OAuth {
            access: Secret::new(text("access")?),
            // Negative, fractional or missing: as far as the cast goes, and 0 is expired.
            expires: value.get("expires").and_then(Value::as_f64).unwrap_or(0.0) as u64,
            project_id: text("projectId").map(str::to_owned),
            enterprise_url: text("enterpriseUrl").map(str::to_owned),
        })),
        _ => Some(Credential::Unknown),
    }
}

/// Reads `auth.json`. If it is missing, an empty one (mode 0600) is made, and its folder (mode 0700).
/// An existing file is never written.
///
/// # Errors
///
/// There is a file and it cannot be read.
pub fn open_file(path: &Path) -> io::Result<String> {
    let read = || small_file::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    match make_file(path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(),
        // A read-only home has no stored credentials to lose.
        made => {
            if let Err(error) = made {
                tracing::debug!(path = %path.display(), %error, "auth.json could not be made");
            }
            Ok("{}".to_owned())
        }
    }
}

fn make_file(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(b"{}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> (Credentials, Vec<String>) {
        Credentials::parse(&value.to_string(), Path::new("/a/auth.json"))
    }

    #[test]
    fn the_texts_are_those_of_the_protocol() {
        let missing = KeyError::Missing { provider: "openai".into() };
        assert_eq!(
            missing.to_string(),
            "No API key found for \"openai\". Set an API key environment variable or run '/login openai'."
        );
        assert_eq!(
            missing.prompt_text(Path::new("/docs")),
            "No API key found for openai.\n\nUse /login or set an API key environment variable. See /docs/providers.md"
        );
        let expired = KeyError::Expired { provider: "github-copilot".into() };
        let text = "Authentication failed for \"github-copilot\". Credentials may have expired or network is \
                    unavailable. Run '/login github-copilot' to re-authenticate.";
        assert_eq!((expired.to_string().as_str(), expired.prompt_text(Path::new("/d")).as_str()), (text, text));
    }

    #[test]
    fn credentials_of_all_kinds() {
        let (credentials, messages) = parse(&json!({
            "openai": { "type": "api_key", "key": "KEY_VAR" },
            "github-copilot":
                { "type": "oauth", "refresh": "r", "access": "a", "expires": 1_770_113_741_000_u64, "enterpriseUrl": "ghe.example" },
            "anthropic": { "type": "oauth", "access": "old", "refresh": "r", "expires": 0 },
            "new": { "type": "passkey" },
            "half": { "type": "api_key" },
            "odd": 5,
        }));
        assert_eq!(credentials.of("openai"), Some(&Credential::ApiKey(Secret::new("KEY_VAR"))));
        assert_eq!(
            credentials.of("github-copilot"),
            Some(&Credential::OAuth(OAuth {
                access: Secret::new("a"),
                expires: 1_770_113_741_000,
                project_id: None,
                enterprise_url: Some("ghe.example".into()),
            }))
        );
        assert_eq!(credentials.of("anthropic"), None);
        assert_eq!(credentials.of("new"), Some(&Credential::Unknown));
        assert_eq!(credentials.of("half"), None);
        assert_eq!(
            messages,
            [
                "The credentials of half in /a/auth.json are incomplete and not used",
                "The credentials of odd in /a/auth.json are incomplete and not used",
            ]
        );
        assert!(!format!("{credentials:?}").contains("KEY_VAR"));
    }

    #[test]
    fn a_broken_file_is_told_without_its_content() {
        let (credentials, messages) = Credentials::parse("{\n \"openai\": sk-secret }", Path::new("/a/auth.json"));
        assert_eq!(credentials, Credentials::default());
        assert_eq!(
            messages,
            ["Stored credentials are not used: /a/auth.json is not a JSON object (line 2, column 12)"]
        );
        assert_eq!(Credentials::parse("[]", Path::new("/a")).1.len(), 1);
    }

    #[test]
    fn a_token_expires_a_minute_early() {
        let login = OAuth { access: Secret::new("a"), expires: 100_000, project_id: None, enterprise_url: None };
        assert!(!login.is_expired(UNIX_EPOCH + Duration::from_millis(39_999)));
        assert!(login.is_expired(UNIX_EPOCH + Duration::from_millis(40_000)));
    }

    #[test]
    fn google_logins_carry_their_project() {
        let login = OAuth { access: Secret::new("a"), expires: 0, project_id: Some("p".into()), enterprise_url: None };
        assert_eq!(login.key("google-gemini-cli").expose(), r#"{"token":"a","projectId":"p"}"#);
        assert_eq!(login.key("openai-codex").expose(), "a");
    }

    #[test]
    fn a_missing_file_is_made_private_and_a_present_one_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x/agent/auth.json");
        assert_eq!(open_file(&path).unwrap(), "{}");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        std::fs::write(&path, "broken {").unwrap();
        assert_eq!(open_file(&path).unwrap(), "broken {");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "broken {");
        assert_eq!(open_file(Path::new("/proc/none/auth.json")).unwrap(), "{}", "a folder that cannot be made");
        assert!(open_file(folder.path()).is_err(), "a folder is no file");
    }
}
