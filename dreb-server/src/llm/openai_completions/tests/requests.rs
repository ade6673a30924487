use std::sync::Arc;

use pretty_assertions::assert_eq;
use protocol_schema::content::Content;
use protocol_schema::{AssistantMessage, ImageContent, ThinkingContent, ToolCall, ToolResultMessage};

use super::*;
use crate::llm::ToolDefinition;
use crate::llm::http::loopback::{Answer, Server, client, run, whole_stream};

fn assistant(content: Vec<ContentBlock>) -> AgentMessage {
    AssistantMessage { content, ..AssistantMessage::empty(API, "custom", "m", 2) }.into()
}

fn call(id: &str) -> ToolCall {
    let arguments = json!({"path": "a"}).as_object().unwrap().clone();
    ToolCall { id: id.into(), name: "read".into(), arguments, ..ToolCall::default() }
}

fn result(id: &str, content: Vec<ContentBlock>) -> AgentMessage {
    ToolResultMessage::new(id, "read", content, None, false, 3).into()
}

fn thinking(text: &str, signature: Option<&str>) -> ContentBlock {
    ThinkingContent { thinking: text.into(), thinking_signature: signature.map(Into::into), ..Default::default() }
        .into()
}

fn image() -> ContentBlock {
    ImageContent::new("AAAA", "image/png").into()
}

#[tokio::test]
async fn the_request_on_the_wire() {
    let server = Server::start(vec![Answer::Bytes(whole_stream(&with_done(&text_chunks())))]).await;
    let mut model = model(&format!("{}/v1/", server.url()), Value::Null);
    model.headers = serde_json::from_value(json!({"x-team": "t"})).unwrap();
    model.wire_model_id = Some("m-wire".into());
    let (_, result) = run(&OpenAiCompletions::new(client()), request(model)).await;
    assert_eq!(result, Ok(StopReason::Stop));
    let received = server.requests().remove(0);
    assert_eq!(received.path, "/v1/chat/completions");
    assert_eq!(received.header("authorization"), Some("Bearer sk-test-key"));
    assert_eq!(received.header("x-team"), Some("t"));
    assert_eq!(
        received.body,
        json!({
            "model": "m-wire",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
            "stream": true,
            "stream_options": {"include_usage": true},
            "store": false,
            "max_completion_tokens": 32000,
        })
    );
}

#[test]
fn headers_with_a_bearer_of_the_model_and_for_copilot() {
    let headers = |provider: &str, auth_mode: Option<&str>| {
        let stored = serde_json::from_value(json!({"Authorization": "Bearer stored"})).unwrap();
        let model = Model {
            provider: provider.into(),
            auth_mode: auth_mode.map(Into::into),
            headers: Some(stored),
            ..model("http://x", Value::Null)
        };
        let mut request = request(model);
        request.messages = vec![user(vec![image()]), assistant(vec![call("a").into()]), result("a", vec![])];
        request::post(request).unwrap().headers
    };
    assert_eq!(headers("custom", None)["authorization"], "Bearer stored");
    assert_eq!(headers("custom", Some("bearer"))["authorization"], "Bearer sk-test-key");
    let copilot = headers("github-copilot", Some("bearer"));
    assert_eq!(copilot["x-initiator"], "agent");
    assert_eq!(copilot["copilot-vision-request"], "true");
}

fn body_with(compat: Value, change: impl FnOnce(&mut ProviderRequest)) -> Value {
    let mut model = model("http://127.0.0.1:1", compat);
    model.reasoning = true;
    let mut request = request(model);
    change(&mut request);
    request::body(request)
}

#[test]
fn thinking_is_asked_for_in_the_servers_way() {
    let body = |compat: Value, level: &str| {
        let body = body_with(compat, |request| request.thinking = level.into());
        let fields = [
            "reasoning_effort",
            "reasoning",
            "enable_thinking",
            "chat_template_kwargs",
            "thinking",
            "prompt_cache_key",
        ];
        Value::Object(fields.iter().filter_map(|field| Some(((*field).to_owned(), body.get(field)?.clone()))).collect())
    };
    let format = |name: &str| json!({"thinkingFormat": name});
    let kimi = |effort: &str| json!({"thinkingFormat": "kimi", "reasoningEffortMap": {"high": effort}});
    for (compat, level, expected) in [
        (json!({}), "high", json!({"reasoning_effort": "high"})),
        (json!({}), "off", json!({})),
        (json!({"reasoningEffortMap": {"high": "max"}}), "high", json!({"reasoning_effort": "max"})),
        (json!({"supportsReasoningEffort": false}), "high", json!({})),
        (format("openrouter"), "low", json!({"reasoning": {"effort": "low"}})),
        (format("openrouter"), "off", json!({"reasoning": {"effort": "none"}})),
        (format("zai"), "low", json!({"enable_thinking": true})),
        (format("qwen"), "off", json!({"enable_thinking": false})),
        (format("qwen-chat-template"), "low", json!({"chat_template_kwargs": {"enable_thinking": true}})),
        (format("qwen-chat-template"), "off", json!({"chat_template_kwargs": {"enable_thinking": false}})),
        (kimi("max"), "high", json!({"thinking": {"type": "enabled", "effort": "max"}, "prompt_cache_key": "session"})),
        (kimi("auto"), "high", json!({"thinking": {"type": "enabled"}, "prompt_cache_key": "session"})),
        (kimi("off"), "high", json!({"thinking": {"type": "disabled"}, "prompt_cache_key": "session"})),
        (kimi("max"), "off", json!({"prompt_cache_key": "session"})),
        (format("deepseek"), "high", json!({"reasoning_effort": "high", "thinking": {"type": "enabled"}})),
        (format("deepseek"), "off", json!({"thinking": {"type": "disabled"}})),
        (format("together"), "low", json!({"reasoning_effort": "low", "reasoning": {"enabled": true}})),
        (format("together"), "off", json!({"reasoning": {"enabled": false}})),
    ] {
        assert_eq!(body(compat.clone(), level), expected, "{compat} {level}");
    }
    let plain = request::body(ProviderRequest { thinking: ThinkingLevel::High, ..request(model("", json!({}))) });
    assert_eq!(plain.get("reasoning_effort"), None);
}

#[test]
fn flags_shape_the_body() {
    let tools: Arc<[ToolDefinition]> = Arc::new([ToolDefinition {
        name: "ls".into(),
        description: "Lists.".into(),
        parameters: json!({"type": "object"}),
    }]);
    let body = body_with(json!({}), |request| request.tools = tools.clone());
    assert_eq!(body["messages"][0]["role"], "developer");
    assert_eq!(
        body["tools"],
        json!([{"type": "function", "function": {
            "name": "ls", "description": "Lists.", "parameters": {"type": "object"}, "strict": false
        }}])
    );
    let compat = json!({
        "supportsStore": false, "supportsDeveloperRole": false, "supportsUsageInStreaming": false,
        "supportsStrictMode": false, "maxTokensField": "max_tokens"
    });
    let body = body_with(compat, |request| request.tools = tools);
    assert_eq!(body["messages"][0]["role"], "system");
    assert_eq!(body["max_tokens"], 32000);
    assert_eq!(body["tools"][0]["function"].get("strict"), None);
    for field in ["store", "stream_options", "max_completion_tokens"] {
        assert_eq!(body.get(field), None, "{field}");
    }
}

#[test]
fn routing_goes_to_its_host_only() {
    let compat = json!({
        "openRouterRouting": {"only": ["a"]},
        "vercelGatewayRouting": {"order": ["b"], "x": 1},
    });
    let body = |url: &str| request::body(request(model(url, compat.clone())));
    let open_router = body("https://openrouter.ai/api/v1");
    assert_eq!(
        (open_router.get("provider"), open_router.get("providerOptions")),
        (Some(&json!({"only": ["a"]})), None)
    );
    let vercel = body("https://ai-gateway.vercel.sh/v1");
    assert_eq!(vercel["providerOptions"], json!({"gateway": {"order": ["b"]}}));
    let other = body("http://127.0.0.1:1");
    assert_eq!((other.get("provider"), other.get("providerOptions")), (None, None));
}

fn messages(compat: Value, messages: Vec<AgentMessage>) -> Value {
    let mut request = request(model("http://127.0.0.1:1", compat));
    request.system_prompt = "".into();
    request.messages = messages;
    request::body(request)["messages"].clone()
}

fn picture() -> Value {
    json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
}

fn sent_call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"a\"}"}})
}

#[test]
fn a_conversation_is_converted() {
    let detail = json!({"type": "reasoning.encrypted", "id": "a", "data": "x"});
    let signed = ToolCall { thought_signature: Some(detail.to_string()), ..call("a") };
    let opaque = ToolCall { thought_signature: Some("not json".into()), ..call("b") };
    let out = messages(
        json!({}),
        vec![
            AgentMessage::User(UserMessage { content: Content::Text("plain".into()), ..UserMessage::new(vec![], 1) }),
            assistant(vec![
                thinking("one", Some("reasoning_content")),
                thinking("two", Some("reasoning_content")),
                thinking("other", Some("opaque")),
                ContentBlock::text("so"),
                ContentBlock::text("!"),
                signed.into(),
                opaque.into(),
            ]),
            result("a", vec![ContentBlock::text("1"), ContentBlock::text("2"), image()]),
            result("b", vec![image()]),
            user(vec![image(), ContentBlock::text(" ")]),
            assistant(vec![thinking("only", Some("reasoning"))]),
            user(vec![]),
            assistant(vec![call("c").into()]),
        ],
    );
    assert_eq!(
        out,
        json!([
            {"role": "user", "content": "plain"},
            {
                "role": "assistant", "content": "so!", "reasoning_content": "one\ntwo",
                "tool_calls": [sent_call("a"), sent_call("b")], "reasoning_details": [detail]
            },
            {"role": "tool", "content": "1\n2", "tool_call_id": "a"},
            {"role": "tool", "content": "(see attached image)", "tool_call_id": "b"},
            {"role": "user", "content": [
                {"type": "text", "text": "Attached image(s) from tool result:"}, picture(), picture()
            ]},
            {"role": "user", "content": [picture()]},
            {"role": "assistant", "content": null, "tool_calls": [sent_call("c")]},
        ])
    );
}

#[test]
fn flags_shape_the_messages() {
    let compat = json!({
        "requiresToolResultName": true, "requiresAssistantAfterToolResult": true, "requiresThinkingAsText": true
    });
    let out = messages(
        compat,
        vec![
            assistant(vec![thinking("why", Some("reasoning")), ContentBlock::text("so"), call("a").into()]),
            result("a", vec![image()]),
            assistant(vec![call("b").into()]),
            result("b", vec![ContentBlock::text("r")]),
            user(vec![ContentBlock::text("u")]),
        ],
    );
    let filler = json!({"role": "assistant", "content": "Tool results received."});
    assert_eq!(
        out,
        json!([
            {"role": "assistant", "content": "why\n\nso", "tool_calls": [sent_call("a")]},
            {"role": "tool", "content": "(see attached image)", "tool_call_id": "a", "name": "read"},
            filler,
            {"role": "user", "content": [
                {"type": "text", "text": "Attached image(s) from tool result:"}, picture()
            ]},
            {"role": "assistant", "content": "", "tool_calls": [sent_call("b")]},
            {"role": "tool", "content": "r", "tool_call_id": "b", "name": "read"},
            filler,
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
        ])
    );
}

#[test]
fn a_model_without_images_is_told_of_them() {
    let mut model = model("http://127.0.0.1:1", json!({}));
    model.input = vec!["text".into()];
    let mut request = request(model);
    request.system_prompt = "".into();
    request.messages = vec![
        user(vec![image(), ContentBlock::text("t"), image()]),
        assistant(vec![call("a").into(), call("b").into()]),
        result("a", vec![image()]),
        result("b", vec![ContentBlock::text("r"), image()]),
    ];
    let omitted = "[image omitted: model does not support images]";
    let body = request::body(request);
    assert_eq!(body["tools"], json!([]));
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "text", "text": omitted}]},
            {"role": "assistant", "content": null, "tool_calls": [sent_call("a"), sent_call("b")]},
            {"role": "tool", "content": "(image omitted: model does not support images)", "tool_call_id": "a"},
            {"role": "tool", "content": "r\n[tool image omitted: model does not support images]", "tool_call_id": "b"},
        ])
    );
}

#[test]
fn answers_of_other_models_are_adapted() {
    let long = format!("call_{}|fc_{}", "x".repeat(60), "y".repeat(60));
    let foreign = |provider: &str, api: &str| {
        let content = vec![thinking("why", Some("reasoning")), call(&long).into()];
        AgentMessage::from(AssistantMessage { content, ..AssistantMessage::empty(api, provider, "other", 2) })
    };
    let body = |reasoning: bool, provider: &str, message: AgentMessage| {
        let mut model = model("http://127.0.0.1:1", json!({}));
        model.reasoning = reasoning;
        model.provider = provider.into();
        let mut request = request(model);
        request.system_prompt = "".into();
        request.messages = vec![message];
        request::body(request)["messages"][0].clone()
    };
    let id = format!("call_{}", "x".repeat(35));
    let marked = "<reformatted-pre-switch-reasoning>\nwhy\n</reformatted-pre-switch-reasoning>";
    assert_eq!(
        body(true, "custom", foreign("custom", API)),
        json!({"role": "assistant", "content": null, "reasoning": "why", "tool_calls": [sent_call(&id)]})
    );
    for message in [
        body(false, "custom", foreign("custom", API)),
        body(true, "custom", foreign("elsewhere", API)),
        body(true, "custom", foreign("custom", "openai-responses")),
    ] {
        assert_eq!(message, json!({"role": "assistant", "content": marked, "tool_calls": [sent_call(&id)]}));
    }
    let plain = |provider: &str| {
        let content = vec![call(&"z".repeat(50)).into()];
        let message = AssistantMessage { content, ..AssistantMessage::empty("x", "y", "other", 2) };
        body(false, provider, message.into())["tool_calls"][0]["id"].as_str().unwrap().len()
    };
    assert_eq!((plain("openai"), plain("custom")), (40, 50));
}

#[test]
fn prompts_of_claude_on_openrouter_are_marked_for_caching() {
    let mut model = model("https://openrouter.ai/api/v1", json!({}));
    model.id = "anthropic/claude-x".into();
    let mut request = request(model);
    let last = AssistantMessage {
        content: vec![ContentBlock::text("so"), call("a").into()],
        ..AssistantMessage::empty(API, "custom", "anthropic/claude-x", 2)
    };
    request.messages.extend([last.into(), result("a", vec![ContentBlock::text("r")])]);
    let messages = request::body(request)["messages"].clone();
    assert_eq!(messages[2]["content"], json!([{"type": "text", "text": "so", "cache_control": {"type": "ephemeral"}}]));
    assert_eq!(messages.to_string().matches("cache_control").count(), 1);
}

#[test]
fn the_catalogs_words_for_levels_are_used() {
    let efforts = |map: Value, level: &str, format: &str| {
        let mut model = model("http://x", json!({"thinkingFormat": format}));
        model.reasoning = true;
        model.extra.insert("thinkingLevelMap".into(), map);
        let body = request::body(ProviderRequest { thinking: level.into(), ..request(model) });
        (body["reasoning_effort"].clone(), body["reasoning"].clone())
    };
    let map = || json!({"off": "none", "medium": null, "high": "top"});
    assert_eq!(efforts(map(), "off", "openai"), ("none".into(), Value::Null));
    assert_eq!(efforts(map(), "medium", "openai"), ("top".into(), Value::Null));
    assert_eq!(efforts(map(), "low", "openai"), ("low".into(), Value::Null));
    assert_eq!(efforts(map(), "high", "openrouter"), (Value::Null, json!({"effort": "top"})));
    assert_eq!(efforts(json!({"off": null}), "off", "openrouter"), (Value::Null, Value::Null));
}

#[test]
fn rarer_flags() {
    let compat = json!({
        "requiresReasoningContentOnAssistantMessages": true, "sendSessionAffinityHeaders": true,
        "zaiToolStream": true, "cacheControlFormat": "anthropic"
    });
    let mut model = model("http://x", compat);
    model.reasoning = true;
    let mut request = request(model);
    request.tools = Arc::new([ToolDefinition { name: "ls".into(), description: "".into(), parameters: json!({}) }]);
    request.messages.push(assistant(vec![ContentBlock::text("so")]));
    let headers = request::post(request.clone()).unwrap().headers;
    assert_eq!(headers["x-session-affinity"], "session");
    let body = request::body(request);
    assert_eq!(body["tool_stream"], true);
    assert_eq!(
        body["messages"][2],
        json!({
            "role": "assistant", "reasoning_content": "",
            "content": [{"type": "text", "text": "so", "cache_control": {"type": "ephemeral"}}]
        })
    );
}
