//! The merged settings, with a getter for each.
//!
//! Nothing is checked when a file is loaded: a value of the wrong type counts as absent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use protocol_schema::ThinkingLevel;
use protocol_schema::queue::QueueMode;
use serde_json::{Map, Value};

use super::merge::merge;

/// How answers of a model travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// Server-sent events.
    #[default]
    Sse,
    /// A WebSocket.
    WebSocket,
    /// Whichever the provider prefers.
    Auto,
}

impl Transport {
    /// The word in the settings file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sse => "sse",
            Self::WebSocket => "websocket",
            Self::Auto => "auto",
        }
    }
}

/// `compaction.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionSettings {
    /// Whether the server compacts by itself.
    pub enabled: bool,
    /// Room kept free in the context window, in tokens.
    pub reserve_tokens: u64,
    /// How much of the newest history stays, in tokens.
    pub keep_recent_tokens: u64,
}

/// `retry.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrySettings {
    /// Whether failed requests are repeated.
    pub enabled: bool,
    /// How often at most.
    pub max_retries: u32,
    /// Wait before the first retry; it doubles with each.
    pub base_delay: Duration,
    /// Longest wait; `None` for no limit.
    pub max_delay: Option<Duration>,
}

/// `images.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageSettings {
    /// Whether large images are scaled down.
    pub auto_resize: bool,
    /// Whether models get no images at all.
    pub block_images: bool,
}

/// Both files and their merged view.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values {
    global: Map<String, Value>,
    project: Map<String, Value>,
    merged: Map<String, Value>,
}

impl Values {
    /// Merges a global and a project file.
    #[must_use]
    pub fn new(global: Map<String, Value>, project: Map<String, Value>) -> Self {
        let merged = merge(&global, &project);
        Self { global, project, merged }
    }

    /// The merged settings, whole.
    #[must_use]
    pub fn merged(&self) -> &Map<String, Value> {
        &self.merged
    }

    /// The global file, whole. Trust and arbiter settings are taken from here only.
    #[must_use]
    pub fn global(&self) -> &Map<String, Value> {
        &self.global
    }

    /// The project file, whole.
    #[must_use]
    pub fn project(&self) -> &Map<String, Value> {
        &self.project
    }

    /// A merged value by its key or dotted path.
    #[must_use]
    pub fn value(&self, path: &str) -> Option<&Value> {
        let mut keys = path.split('.');
        let first = self.merged.get(keys.next()?)?;
        keys.try_fold(first, |value, key| value.get(key))
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.value(path)?.as_str()
    }

    /// A text that is not empty.
    fn word(&self, path: &str) -> Option<&str> {
        self.text(path).filter(|text| !text.is_empty())
    }

    fn flag(&self, path: &str, default: bool) -> bool {
        self.value(path).and_then(Value::as_bool).unwrap_or(default)
    }

    fn count(&self, path: &str, default: u64) -> u64 {
        self.value(path).and_then(whole).unwrap_or(default)
    }

    fn texts(&self, path: &str) -> Vec<String> {
        let list = self.value(path).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// `defaultProvider`.
    #[must_use]
    pub fn default_provider(&self) -> Option<&str> {
        self.word("defaultProvider")
    }

    /// `defaultModel`.
    #[must_use]
    pub fn default_model(&self) -> Option<&str> {
        self.word("defaultModel")
    }

    /// `defaultThinkingLevel`; `None` if it is absent or no known level. Sessions then use `xhigh`.
    #[must_use]
    pub fn default_thinking_level(&self) -> Option<ThinkingLevel> {
        self.text("defaultThinkingLevel").map(ThinkingLevel::from).filter(ThinkingLevel::is_known)
    }

    /// `enabledModels`: patterns of the model scope; empty for no scope.
    #[must_use]
    pub fn enabled_models(&self) -> Vec<String> {
        self.texts("enabledModels")
    }

    /// `steeringMode`.
    #[must_use]
    pub fn steering_mode(&self) -> QueueMode {
        self.queue_mode("steeringMode")
    }

    /// `followUpMode`.
    #[must_use]
    pub fn follow_up_mode(&self) -> QueueMode {
        self.queue_mode("followUpMode")
    }

    fn queue_mode(&self, key: &str) -> QueueMode {
        self.text(key).map(QueueMode::from).filter(QueueMode::is_known).unwrap_or(QueueMode::OneAtATime)
    }

    /// `compaction.*`.
    #[must_use]
    pub fn compaction(&self) -> CompactionSettings {
        CompactionSettings {
            enabled: self.flag("compaction.enabled", true),
            reserve_tokens: self.count("compaction.reserveTokens", 16_384),
            keep_recent_tokens: self.count("compaction.keepRecentTokens", 20_000),
        }
    }

    /// `retry.*`.
    #[must_use]
    pub fn retry(&self) -> RetrySettings {
        let max_delay = self.count("retry.maxDelayMs", 60_000);
        RetrySettings {
            enabled: self.flag("retry.enabled", true),
            max_retries: u32::try_from(self.count("retry.maxRetries", 3)).unwrap_or(u32::MAX),
            base_delay: Duration::from_millis(self.count("retry.baseDelayMs", 2_000)),
            max_delay: (max_delay > 0).then(|| Duration::from_millis(max_delay)),
        }
    }

    /// `thinkingBudgets`: tokens by level; empty for the providers' own.
    #[must_use]
    pub fn thinking_budgets(&self) -> BTreeMap<String, u64> {
        let budgets = self.value("thinkingBudgets").and_then(Value::as_object);
        budgets.into_iter().flatten().filter_map(|(level, tokens)| Some((level.clone(), whole(tokens)?))).collect()
    }

    /// `images.*`.
    #[must_use]
    pub fn images(&self) -> ImageSettings {
        ImageSettings {
            auto_resize: self.flag("images.autoResize", true),
            block_images: self.flag("images.blockImages", false),
        }
    }

    /// `shellPath`.
    #[must_use]
    pub fn shell_path(&self) -> Option<PathBuf> {
        self.word("shellPath").map(PathBuf::from)
    }

    /// `shellCommandPrefix`.
    #[must_use]
    pub fn shell_command_prefix(&self) -> Option<&str> {
        self.word("shellCommandPrefix")
    }

    /// `sessionDir`, as it is written.
    #[must_use]
    pub fn session_dir(&self) -> Option<PathBuf> {
        self.word("sessionDir").map(PathBuf::from)
    }

    /// `hideThinkingBlock`.
    #[must_use]
    pub fn hide_thinking_block(&self) -> bool {
        self.flag("hideThinkingBlock", false)
    }

    /// `transport`.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self.text("transport") {
            Some("websocket") => Transport::WebSocket,
            Some("auto") => Transport::Auto,
            _ => Transport::Sse,
        }
    }

    /// `modelSettings` of one model: the fields of both files, the project's first.
    #[must_use]
    pub fn model_settings(&self, model_id: &str) -> Map<String, Value> {
        let of = |file: &Map<String, Value>| {
            file.get("modelSettings").and_then(|all| all.get(model_id)).and_then(Value::as_object).cloned()
        };
        let mut fields = of(&self.global).unwrap_or_default();
        fields.extend(of(&self.project).unwrap_or_default());
        fields
    }

    /// `modelSettings.<id>.thinkingDisplay`: `summarized` or `omitted`, if set.
    #[must_use]
    pub fn thinking_display(&self, model_id: &str) -> Option<String> {
        match self.model_settings(model_id).get("thinkingDisplay")?.as_str()? {
            word @ ("summarized" | "omitted") => Some(word.to_owned()),
            _ => None,
        }
    }
}

/// A number that is not negative, without its fraction.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        // The cast saturates, and takes the fraction off.
        (number >= 0.0).then_some(number as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;

    fn values(global: &str, project: &str) -> Values {
        Values::new(serde_json::from_str(global).unwrap(), serde_json::from_str(project).unwrap())
    }

    #[test]
    fn absent_settings_have_their_defaults() {
        let values = Values::default();
        assert_eq!(values.default_provider(), None);
        assert_eq!(values.default_model(), None);
        assert_eq!(values.default_thinking_level(), None);
        assert_eq!(values.enabled_models(), Vec::<String>::new());
        assert_eq!(values.steering_mode(), QueueMode::OneAtATime);
        assert_eq!(values.follow_up_mode(), QueueMode::OneAtATime);
        assert_eq!(
            values.compaction(),
            CompactionSettings { enabled: true, reserve_tokens: 16_384, keep_recent_tokens: 20_000 }
        );
        assert_eq!(
            values.retry(),
            RetrySettings {
                enabled: true,
                max_retries: 3,
                base_delay: Duration::from_secs(2),
                max_delay: Some(Duration::from_secs(60))
            }
        );
        assert_eq!(values.thinking_budgets(), BTreeMap::new());
        assert_eq!(values.images(), ImageSettings { auto_resize: true, block_images: false });
        assert_eq!(values.shell_path(), None);
        assert_eq!(values.shell_command_prefix(), None);
        assert_eq!(values.session_dir(), None);
        assert!(!values.hide_thinking_block());
        assert_eq!(values.transport(), Transport::Sse);
        assert_eq!(values.thinking_display("m"), None);
    }

    #[test]
    fn set_values_are_read() {
        let values = values(
            r#"{"defaultProvider":"p","defaultModel":"m","defaultThinkingLevel":"low","steeringMode":"all",
                "retry":{"maxDelayMs":0,"baseDelayMs":1.5,"maxRetries":9},"thinkingBudgets":{"low":100,"high":"x"},
                "shellPath":"/bin/sh","sessionDir":"s","transport":"auto","enabledModels":["a",1,"b"],
                "compaction":{"enabled":true,"reserveTokens":5}}"#,
            r#"{"defaultModel":"n","compaction":{"enabled":false}}"#,
        );
        assert_eq!((values.default_provider(), values.default_model()), (Some("p"), Some("n")));
        assert_eq!(values.default_thinking_level(), Some(ThinkingLevel::Low));
        assert_eq!(values.steering_mode(), QueueMode::All);
        assert_eq!(
            values.retry(),
            RetrySettings { enabled: true, max_retries: 9, base_delay: Duration::from_millis(1), max_delay: None }
        );
        assert_eq!(values.thinking_budgets(), BTreeMap::from([("low".to_owned(), 100)]));
        assert_eq!(values.shell_path(), Some("/bin/sh".into()));
        assert_eq!(values.session_dir(), Some("s".into()));
        assert_eq!(values.transport(), Transport::Auto);
        assert_eq!(values.enabled_models(), ["a", "b"]);
        assert_eq!(
            values.compaction(),
            CompactionSettings { enabled: false, reserve_tokens: 5, keep_recent_tokens: 20_000 }
        );
    }

    #[test]
    fn values_of_the_wrong_kind_count_as_absent() {
        let values = values(
            r#"{"defaultProvider":5,"defaultThinkingLevel":"huge","steeringMode":"bogus","compaction":true,
                "retry":{"maxRetries":-1},"images":{"autoResize":"no"},"shellPath":"","thinkingBudgets":[1]}"#,
            "{}",
        );
        assert_eq!(values.default_provider(), None);
        assert_eq!(values.default_thinking_level(), None);
        assert_eq!(values.steering_mode(), QueueMode::OneAtATime);
        assert!(values.compaction().enabled);
        assert_eq!(values.retry().max_retries, 3);
        assert!(values.images().auto_resize);
        assert_eq!(values.shell_path(), None);
        assert_eq!(values.thinking_budgets(), BTreeMap::new());
    }

    #[test]
    fn model_settings_merge_field_by_field() {
        let values = values(
            r#"{"modelSettings":{"m.1":{"thinkingDisplay":"omitted","systemPrompt":"g"},"n":{"thinkingDisplay":"x"}}}"#,
            r#"{"modelSettings":{"m.1":{"systemPrompt":"p"}}}"#,
        );
        assert_eq!(
            Value::Object(values.model_settings("m.1")),
            serde_json::json!({ "thinkingDisplay": "omitted", "systemPrompt": "p" })
        );
        assert_eq!(values.thinking_display("m.1").as_deref(), Some("omitted"));
        assert_eq!(values.thinking_display("n"), None);
    }
}
