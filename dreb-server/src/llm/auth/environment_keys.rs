//! Keys in environment variables.

use std::fmt;
use std::path::PathBuf;

use crate::environment::Environment;
use crate::llm::Secret;

/// Stands for credentials that the wire API finds by itself.
pub const AUTHENTICATED: &str = "<authenticated>";

/// The variables of a provider, the first one set wins.
fn variables(provider: &str) -> &'static [&'static str] {
    match provider {
        "ant-ling" => &["ANT_LING_API_KEY"],
        "anthropic" => &["ANTHROPIC_OAUTH_TOKEN", "ANTHROPIC_API_KEY"],
        "azure-openai-responses" => &["AZURE_OPENAI_API_KEY"],
        "baseten" => &["BASETEN_API_KEY"],
        "cerebras" => &["CEREBRAS_API_KEY"],
        "cloudflare-ai-gateway" | "cloudflare-workers-ai" => &["CLOUDFLARE_API_KEY"],
        "deepseek" => &["DEEPSEEK_API_KEY"],
        "fireworks" => &["FIREWORKS_API_KEY"],
        "github-copilot" => &["COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"],
        "google" => &["GEMINI_API_KEY"],
        "google-vertex" => &["GOOGLE_CLOUD_API_KEY"],
        "groq" => &["GROQ_API_KEY"],
        "huggingface" => &["HF_TOKEN"],
        "kimi-coding" => &["KIMI_API_KEY"],
        "meta" => &["META_API_KEY"],
        "minimax" => &["MINIMAX_API_KEY"],
        "minimax-cn" => &["MINIMAX_CN_API_KEY"],
        "mistral" => &["MISTRAL_API_KEY"],
        "moonshotai" | "moonshotai-cn" => &["MOONSHOT_API_KEY"],
        "nvidia" => &["NVIDIA_API_KEY"],
        "openai" => &["OPENAI_API_KEY"],
        "opencode" | "opencode-go" => &["OPENCODE_API_KEY"],
        "openrouter" => &["OPENROUTER_API_KEY"],
        "qwen-token-plan" => &["QWEN_TOKEN_PLAN_TEAM_API_KEY", "QWEN_TOKEN_PLAN_API_KEY"],
        "qwen-token-plan-cn" => &["QWEN_TOKEN_PLAN_TEAM_CN_API_KEY", "QWEN_TOKEN_PLAN_CN_API_KEY"],
        "qwen-token-plan-individual" => &["QWEN_TOKEN_PLAN_INDIVIDUAL_API_KEY", "QWEN_TOKEN_PLAN_API_KEY"],
        "qwen-token-plan-individual-cn" => &["QWEN_TOKEN_PLAN_INDIVIDUAL_CN_API_KEY", "QWEN_TOKEN_PLAN_CN_API_KEY"],
        "together" => &["TOGETHER_API_KEY"],
        "vercel-ai-gateway" => &["AI_GATEWAY_API_KEY"],
        "xai" => &["XAI_API_KEY"],
        "xiaomi" => &["XIAOMI_API_KEY"],
        "xiaomi-token-plan-ams" => &["XIAOMI_TOKEN_PLAN_AMS_API_KEY"],
        "xiaomi-token-plan-cn" => &["XIAOMI_TOKEN_PLAN_CN_API_KEY"],
        "xiaomi-token-plan-sgp" => &["XIAOMI_TOKEN_PLAN_SGP_API_KEY"],
        "zai" => &["ZAI_API_KEY", "ZHIPU_API_KEY"],
        "zai-coding-cn" => &["ZAI_CODING_CN_API_KEY"],
        _ => &[],
    }
}

/// The keys an environment holds.
#[derive(Clone)]
pub struct EnvironmentKeys {
    environment: Environment,
    google_credentials: bool,
}

// The environment holds the keys, so it is not printed.
impl fmt::Debug for EnvironmentKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvironmentKeys").finish_non_exhaustive()
    }
}

impl EnvironmentKeys {
    /// Looks for the file of Google's application default credentials, so this may block.
    #[must_use]
    pub fn look_up(environment: Environment) -> Self {
        let file = environment.get("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from).or_else(|| {
            let home = environment.get("HOME")?;
            Some(PathBuf::from(home).join(".config/gcloud/application_default_credentials.json"))
        });
        // Without project and location the file is of no use.
        let any = |names: &[&str]| names.iter().any(|name| environment.get(name).is_some());
        let google_credentials = any(&["GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"])
            && any(&["GOOGLE_CLOUD_LOCATION"])
            && file.is_some_and(|file| file.exists());
        Self { environment, google_credentials }
    }

    /// The key of a provider.
    #[must_use]
    pub fn of(&self, provider: &str) -> Option<Secret> {
        let set = |name: &&str| self.environment.get(name);
        if let Some(key) = variables(provider).iter().find_map(set) {
            return Some(Secret::new(key));
        }
        let found = match provider {
            "google-vertex" => self.google_credentials,
            "amazon-bedrock" => self.has_aws_credentials(),
            _ => false,
        };
        found.then(|| Secret::new(AUTHENTICATED))
    }

    fn has_aws_credentials(&self) -> bool {
        let set = |name: &str| self.environment.get(name).is_some();
        set("AWS_PROFILE")
            || (set("AWS_ACCESS_KEY_ID") && set("AWS_SECRET_ACCESS_KEY"))
            || set("AWS_BEARER_TOKEN_BEDROCK")
            || set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
            || set("AWS_CONTAINER_CREDENTIALS_FULL_URI")
            || set("AWS_WEB_IDENTITY_TOKEN_FILE")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::catalog;

    fn keys(variables: &[(&str, &str)]) -> EnvironmentKeys {
        let pairs = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        EnvironmentKeys::look_up(pairs.collect())
    }

    fn key(variables: &[(&str, &str)], provider: &str) -> Option<String> {
        keys(variables).of(provider).map(|key| key.expose().to_owned())
    }

    #[test]
    fn the_first_variable_wins() {
        let both = [("ANTHROPIC_API_KEY", "key"), ("ANTHROPIC_OAUTH_TOKEN", "token")];
        assert_eq!(key(&both, "anthropic").as_deref(), Some("token"));
        assert_eq!(key(&both[..1], "anthropic").as_deref(), Some("key"));
        assert_eq!(key(&[("ANTHROPIC_API_KEY", "")], "anthropic"), None);
        assert_eq!(key(&[("GITHUB_TOKEN", "g"), ("GH_TOKEN", "h")], "github-copilot").as_deref(), Some("h"));
        assert_eq!(key(&both, "nobody"), None);
    }

    #[test]
    fn every_provider_of_the_catalog_has_a_variable_or_a_login() {
        let without: Vec<_> = catalog::providers().filter(|provider| variables(provider).is_empty()).collect();
        assert_eq!(without, ["amazon-bedrock", "openai-codex"]);
    }

    #[test]
    fn credentials_that_are_no_key() {
        assert_eq!(key(&[("AWS_PROFILE", "p")], "amazon-bedrock").as_deref(), Some(AUTHENTICATED));
        assert_eq!(key(&[("AWS_ACCESS_KEY_ID", "p")], "amazon-bedrock"), None);
        let pair = [("AWS_ACCESS_KEY_ID", "p"), ("AWS_SECRET_ACCESS_KEY", "s")];
        assert_eq!(key(&pair, "amazon-bedrock").as_deref(), Some(AUTHENTICATED));

        let home = tempfile::tempdir().unwrap();
        let vertex = [("HOME", home.path().to_str().unwrap()), ("GCLOUD_PROJECT", "p"), ("GOOGLE_CLOUD_LOCATION", "l")];
        assert_eq!(key(&vertex, "google-vertex"), None);
        let folder = home.path().join(".config/gcloud");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("application_default_credentials.json"), "{}").unwrap();
        assert_eq!(key(&vertex, "google-vertex").as_deref(), Some(AUTHENTICATED));
        assert_eq!(key(&vertex[..2], "google-vertex"), None);
    }
}
