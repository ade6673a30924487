//! How a server deviates from OpenAI's own. What the model's `compat` says wins over what is known
//! of its provider and address.

use protocol_schema::{Model, ThinkingLevel};
use serde_json::{Map, Value};

use crate::llm::effort::{self, Effort};

/// The deviations.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Compat {
    pub(super) supports_store: bool,
    pub(super) supports_developer_role: bool,
    pub(super) supports_reasoning_effort: bool,
    pub(super) supports_usage_in_streaming: bool,
    pub(super) supports_strict_mode: bool,
    pub(super) requires_tool_result_name: bool,
    pub(super) requires_assistant_after_tool_result: bool,
    pub(super) requires_thinking_as_text: bool,
    pub(super) max_tokens_field: &'static str,
    pub(super) thinking_format: ThinkingFormat,
    /// Whether every answer in the history must name its thinking, be it empty.
    pub(super) requires_reasoning_content: bool,
    /// Whether the session's id is sent, for the choice of a server with a warm cache.
    pub(super) sends_session_affinity: bool,
    /// Whether streaming of tool arguments has to be asked for.
    pub(super) asks_tool_stream: bool,
    /// Level to the word the server takes for it.
    pub(super) reasoning_effort_map: Map<String, Value>,
    /// Preferences for OpenRouter's choice of a provider; only with its address.
    pub(super) open_router_routing: Option<Value>,
    /// Preferences for the choice of Vercel's gateway; only with its address.
    pub(super) vercel_gateway_routing: Option<Value>,
    /// Whether prompts of Claude models are to be marked for caching.
    pub(super) marks_cache: bool,
}

/// How thinking is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThinkingFormat {
    /// `reasoning_effort`.
    OpenAi,
    /// `reasoning.effort`.
    OpenRouter,
    /// `enable_thinking`.
    EnableThinking,
    /// `chat_template_kwargs.enable_thinking`.
    QwenChatTemplate,
    /// `thinking` with a type and an effort.
    Kimi,
    /// `thinking` with a type, and `reasoning_effort`.
    DeepSeek,
    /// `reasoning.enabled`, and `reasoning_effort`.
    Together,
}

impl Compat {
    pub(super) fn of(model: &Model) -> Self {
        let given = model.compat.as_ref().and_then(Value::as_object);
        let get = |name: &str| given.and_then(|given| given.get(name));
        let flag = |name: &str, detected: bool| get(name).and_then(Value::as_bool).unwrap_or(detected);
        let host = Host(model);

        let is_zai = host.is("zai", "z.ai");
        let is_xai = host.is("xai", "x.ai");
        let is_open_router = host.is("openrouter", "openrouter.ai");
        let is_chutes = host.at("chutes.ai");
        let is_plain = is_zai
            || is_xai
            || is_chutes
            || host.is("cerebras", "cerebras.ai")
            || host.is("deepseek", "deepseek.com")
            || host.is("opencode", "opencode.ai")
            || model.provider == "opencode-go";

        let max_tokens_field = match get("maxTokensField").and_then(Value::as_str) {
            Some("max_tokens") => "max_tokens",
            Some("max_completion_tokens") => "max_completion_tokens",
            _ if is_chutes => "max_tokens",
            _ => "max_completion_tokens",
        };
        let thinking_format = match get("thinkingFormat").and_then(Value::as_str) {
            Some("openai") => ThinkingFormat::OpenAi,
            Some("openrouter") => ThinkingFormat::OpenRouter,
            Some("zai" | "qwen") => ThinkingFormat::EnableThinking,
            Some("qwen-chat-template") => ThinkingFormat::QwenChatTemplate,
            Some("kimi") => ThinkingFormat::Kimi,
            Some("deepseek") => ThinkingFormat::DeepSeek,
            Some("together") => ThinkingFormat::Together,
            _ if is_zai => ThinkingFormat::EnableThinking,
            _ if is_open_router => ThinkingFormat::OpenRouter,
            _ => ThinkingFormat::OpenAi,
        };
        let reasoning_effort_map = match get("reasoningEffortMap").and_then(Value::as_object) {
            Some(map) => map.clone(),
            None if host.is("groq", "groq.com") && model.id == "qwen/qwen3-32b" => {
                ThinkingLevel::WORDS.iter().map(|level| ((*level).to_owned(), "default".into())).collect()
            }
            None => Map::new(),
        };
        let routing = |name: &str, domain: &str| {
            get(name)
                .filter(|routing| routing.as_object().is_some_and(|map| !map.is_empty()) && host.at(domain))
                .cloned()
        };
        Self {
            supports_store: flag("supportsStore", !is_plain),
            supports_developer_role: flag("supportsDeveloperRole", !is_plain),
            supports_reasoning_effort: flag("supportsReasoningEffort", !is_zai && !is_xai),
            supports_usage_in_streaming: flag("supportsUsageInStreaming", true),
            supports_strict_mode: flag("supportsStrictMode", true),
            requires_tool_result_name: flag("requiresToolResultName", false),
            requires_assistant_after_tool_result: flag("requiresAssistantAfterToolResult", false),
            requires_thinking_as_text: flag("requiresThinkingAsText", false),
            requires_reasoning_content: flag("requiresReasoningContentOnAssistantMessages", false),
            sends_session_affinity: flag("sendSessionAffinityHeaders", false),
            asks_tool_stream: flag("zaiToolStream", false),
            max_tokens_field,
            thinking_format,
            reasoning_effort_map,
            open_router_routing: routing("openRouterRouting", "openrouter.ai"),
            vercel_gateway_routing: routing("vercelGatewayRouting", "ai-gateway.vercel.sh"),
            marks_cache: get("cacheControlFormat").and_then(Value::as_str) == Some("anthropic")
                || is_open_router && model.id.starts_with("anthropic/"),
        }
    }

    /// The server's word for a thinking level: the map of the server, then that of the model.
    pub(super) fn effort(&self, model: &Model, level: &ThinkingLevel) -> Effort {
        match self.reasoning_effort_map.get(level.as_str()).and_then(Value::as_str) {
            Some(word) => Effort::Word(word.to_owned()),
            None => effort::of(model, level),
        }
    }
}

struct Host<'a>(&'a Model);

impl Host<'_> {
    fn is(&self, provider: &str, domain: &str) -> bool {
        self.0.provider == provider || self.at(domain)
    }

    /// Whether the address is of this domain or one below it.
    fn at(&self, domain: &str) -> bool {
        let url = reqwest::Url::parse(&self.0.base_url).ok();
        let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or_default();
        host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model(provider: &str, base_url: &str, compat: Value) -> Model {
        Model { provider: provider.into(), base_url: base_url.into(), compat: Some(compat), ..Model::default() }
    }

    #[test]
    fn servers_are_known_by_provider_or_address() {
        for (provider, url, store, effort, field, format) in [
            ("local", "http://127.0.0.1:1/v1", true, true, "max_completion_tokens", ThinkingFormat::OpenAi),
            ("cerebras", "", false, true, "max_completion_tokens", ThinkingFormat::OpenAi),
            ("mine", "https://api.cerebras.ai/v1", false, true, "max_completion_tokens", ThinkingFormat::OpenAi),
            ("xai", "https://api.x.ai/v1", false, false, "max_completion_tokens", ThinkingFormat::OpenAi),
            ("mine", "https://llm.chutes.ai/v1", false, true, "max_tokens", ThinkingFormat::OpenAi),
            ("mine", "https://api.deepseek.com", false, true, "max_completion_tokens", ThinkingFormat::OpenAi),
            (
                "mine",
                "https://api.z.ai/api/paas/v4",
                false,
                false,
                "max_completion_tokens",
                ThinkingFormat::EnableThinking,
            ),
            ("opencode", "https://opencode.ai/zen/v1", false, true, "max_completion_tokens", ThinkingFormat::OpenAi),
            (
                "openrouter",
                "https://openrouter.ai/api/v1",
                true,
                true,
                "max_completion_tokens",
                ThinkingFormat::OpenRouter,
            ),
            ("mine", "https://notx.ai/v1", true, true, "max_completion_tokens", ThinkingFormat::OpenAi),
        ] {
            let compat = Compat::of(&model(provider, url, Value::Null));
            assert_eq!(
                (compat.supports_store, compat.supports_developer_role, compat.supports_reasoning_effort),
                (store, store, effort),
                "{provider} {url}"
            );
            assert_eq!((compat.max_tokens_field, compat.thinking_format), (field, format), "{provider} {url}");
        }
    }

    #[test]
    fn what_the_model_says_wins_and_wrong_types_are_ignored() {
        let given = json!({
            "supportsStore": true, "supportsDeveloperRole": 1, "supportsReasoningEffort": true,
            "supportsUsageInStreaming": false, "supportsStrictMode": false, "requiresToolResultName": true,
            "requiresAssistantAfterToolResult": true, "requiresThinkingAsText": true,
            "requiresReasoningContentOnAssistantMessages": true, "sendSessionAffinityHeaders": true,
            "zaiToolStream": true,
            "maxTokensField": "max_tokens", "thinkingFormat": "kimi", "reasoningEffortMap": {"xhigh": "max"},
            "openRouterRouting": {"only": ["a"]}, "vercelGatewayRouting": {"order": ["b"]},
        });
        let compat = Compat::of(&model("xai", "https://api.x.ai/v1", given.clone()));
        assert_eq!(
            compat,
            Compat {
                supports_store: true,
                supports_developer_role: false,
                supports_reasoning_effort: true,
                supports_usage_in_streaming: false,
                supports_strict_mode: false,
                requires_tool_result_name: true,
                requires_assistant_after_tool_result: true,
                requires_thinking_as_text: true,
                requires_reasoning_content: true,
                sends_session_affinity: true,
                asks_tool_stream: true,
                max_tokens_field: "max_tokens",
                thinking_format: ThinkingFormat::Kimi,
                reasoning_effort_map: json!({"xhigh": "max"}).as_object().unwrap().clone(),
                open_router_routing: None,
                vercel_gateway_routing: None,
                marks_cache: false,
            }
        );
        let plain = Model::default();
        assert_eq!(compat.effort(&plain, &ThinkingLevel::Xhigh), Effort::Word("max".into()));
        assert_eq!(compat.effort(&plain, &ThinkingLevel::Low), Effort::Usual);
        let compat = Compat::of(&model("mine", "https://openrouter.ai/api/v1", given.clone()));
        assert_eq!(compat.open_router_routing, Some(json!({"only": ["a"]})));
        let compat = Compat::of(&model("mine", "https://ai-gateway.vercel.sh/v1", given));
        assert_eq!(compat.vercel_gateway_routing, Some(json!({"order": ["b"]})));
    }

    #[test]
    fn groq_takes_one_word_for_every_level_of_qwen3() {
        let groq = Model { id: "qwen/qwen3-32b".into(), ..model("groq", "", Value::Null) };
        assert_eq!(Compat::of(&groq).effort(&groq, &ThinkingLevel::High), Effort::Word("default".into()));
        let other = Model { id: "other".into(), ..groq };
        assert_eq!(Compat::of(&other).effort(&other, &ThinkingLevel::High), Effort::Usual);
    }
}
