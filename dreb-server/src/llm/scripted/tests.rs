use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pretty_assertions::assert_eq;
use protocol_schema::message::Cost;
use protocol_schema::model::ModelCost;
use protocol_schema::{
    AgentMessage, AssistantMessage, ContentBlock, ImageContent, ThinkingLevel, ToolCall, ToolResultMessage, Usage,
    UserMessage,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::llm::{ProviderErrorKind, ToolDefinition};

struct Stage {
    folder: TempDir,
    provider: ScriptedProvider,
}

type Played = (Vec<StreamEvent>, Result<StopReason, ProviderError>);

impl Stage {
    fn new(script: &Value) -> Self {
        let stage = Self { folder: tempfile::tempdir().unwrap(), provider: ScriptedProvider::new() };
        stage.write(&script.to_string());
        stage
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("demo.json")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    fn request(&self, messages: Vec<AgentMessage>) -> ProviderRequest {
        ProviderRequest {
            model: Arc::new(model(&self.path())),
            system_prompt: "You help.".into(),
            messages,
            tools: [tool("bash")].into(),
            thinking: ThinkingLevel::High,
            max_tokens: 1000,
            api_key: None,
            session_id: None,
            thinking_budgets: BTreeMap::new(),
            thinking_display: None,
        }
    }

    async fn play(&self, request: ProviderRequest) -> Played {
        let (sender, mut receiver) = mpsc::channel(8);
        let stream = self.provider.stream(request, sender);
        let collect = async {
            let mut events = Vec::new();
            while let Some(event) = receiver.recv().await {
                events.push(event);
            }
            events
        };
        let (result, events) = tokio::join!(stream, collect);
        (events, result)
    }

    async fn say(&self, text: &str) -> Played {
        self.play(self.request(vec![user(text)])).await
    }

    /// The text of the answer, or the error.
    async fn answer(&self, text: &str) -> Result<String, String> {
        let (events, result) = self.say(text).await;
        result.map(|_| text_of(&events)).map_err(|error| error.message)
    }
}

fn text_of(events: &[StreamEvent]) -> String {
    let deltas = events.iter().filter_map(|event| match event {
        StreamEvent::TextDelta { delta, .. } => Some(delta.as_str()),
        _ => None,
    });
    deltas.collect()
}

fn usage_of(events: &[StreamEvent]) -> Vec<Usage> {
    let usages = events.iter().filter_map(|event| match event {
        StreamEvent::Usage(usage) => Some(usage.clone()),
        _ => None,
    });
    usages.collect()
}

fn tool(name: &str) -> ToolDefinition {
    ToolDefinition { name: name.into(), description: String::new(), parameters: json!({ "type": "object" }) }
}

fn user(text: &str) -> AgentMessage {
    UserMessage::new(vec![ContentBlock::text(text)], 0).into()
}

fn called(tool: &str, arguments: Value) -> AgentMessage {
    let mut answer = AssistantMessage::empty(API, PROVIDER, MODEL, 0);
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    let call = ToolCall { id: "c".into(), name: tool.into(), arguments, ..ToolCall::default() };
    answer.content.push(call.into());
    answer.into()
}

fn result(tool: &str, text: &str, is_error: bool) -> AgentMessage {
    ToolResultMessage::new("c", tool, vec![ContentBlock::text(text)], None, is_error, 0).into()
}

#[tokio::test]
async fn a_turn_streams_all_its_steps() {
    let stage = Stage::new(&json!({ "chunk": 4, "turns": [{
        "responseId": "r1",
        "usage": { "input": 10, "output": 20, "cacheRead": 5, "cacheWrite": 1, "cost": 0.25 },
        "steps": [
            { "thinking": "Hmm.", "signature": "sig" },
            { "redactedThinking": "xyz" },
            { "text": "Grüße!", "signature": "t" },
            { "toolCall": "bash", "arguments": { "b": 1, "a": 2 }, "chunk": 0 },
            { "toolCall": "bash", "id": "mine", "arguments": "{\"bro", "chunk": 3 },
            { "toolCall": "ls" },
        ],
    }]}));
    let (events, outcome) = stage.say("go").await;
    let delta = |index: usize, text: &str| StreamEvent::ToolCallDelta { index, delta: text.into() };
    let end = |index| StreamEvent::ToolCallEnd { index, arguments: None, thought_signature: None };
    let start = |index, id: &str, name: &str| StreamEvent::ToolCallStart { index, id: id.into(), name: name.into() };
    let usage = Usage {
        input: 10,
        output: 20,
        cache_read: 5,
        cache_write: 1,
        total_tokens: Some(36),
        cost: Cost { total: 0.25.into(), ..Cost::default() },
        ..Usage::default()
    };
    assert_eq!(
        events,
        [
            StreamEvent::Opened,
            StreamEvent::ResponseId("r1".into()),
            StreamEvent::ThinkingStart { index: 0, signature: None },
            StreamEvent::ThinkingDelta { index: 0, delta: "Hmm.".into() },
            StreamEvent::ThinkingEnd { index: 0, text: None, signature: Some("sig".into()) },
            StreamEvent::ThinkingRedacted { index: 1, data: "xyz".into() },
            StreamEvent::TextStart { index: 2 },
            StreamEvent::TextDelta { index: 2, delta: "Grüß".into() },
            StreamEvent::TextDelta { index: 2, delta: "e!".into() },
            StreamEvent::TextEnd { index: 2, text: None, signature: Some("t".into()) },
            start(3, "scripted_1", "bash"),
            delta(3, "{\"b\":1,\"a\":2}"),
            end(3),
            start(4, "mine", "bash"),
            delta(4, "{\"b"),
            delta(4, "ro"),
            end(4),
            start(5, "scripted_2", "ls"),
            delta(5, "{}"),
            end(5),
            StreamEvent::Usage(usage),
        ]
    );
    assert_eq!(outcome, Ok(StopReason::ToolUse));
}

#[tokio::test]
async fn turns_are_taken_in_order_whatever_the_conversation() {
    let stage = Stage::new(&json!({ "turns": [
        "One.",
        [{ "error": { "message": "Overloaded", "status": 529, "retryAfterMs": 1500 } }],
        { "steps": [{ "text": "Three." }], "stopReason": "length" },
    ]}));
    assert_eq!(stage.answer("a").await, Ok("One.".into()));
    let (events, failure) = stage.say("b").await;
    assert_eq!(events, [], "a refused request does not open");
    let kind = ProviderErrorKind::Http { status: 529, retry_after: Some(Duration::from_millis(1500)) };
    assert_eq!(failure, Err(ProviderError { message: "529 Overloaded".into(), kind }));
    // The retry of the same request goes on.
    let (events, outcome) = stage.say("b").await;
    assert_eq!((text_of(&events).as_str(), outcome), ("Three.", Ok(StopReason::Length)));
    assert_eq!(
        stage.answer("c").await,
        Err(format!(
            "The script {} is at its end: all of its turns (3) are used; the last user message is \"c\"",
            stage.path().display()
        ))
    );
}

#[tokio::test]
async fn a_script_may_repeat() {
    let stage = Stage::new(&json!({ "atEnd": "repeat", "turns": ["a", "b"] }));
    for expected in ["a", "b", "a", "b"] {
        assert_eq!(stage.answer("x").await, Ok(expected.into()));
    }
}

#[tokio::test]
async fn streams_may_break_or_fail_in_the_middle() {
    let stage = Stage::new(&json!({ "turns": [
        [{ "text": "half" }, { "drop": true }],
        [{ "drop": "gone" }],
        [{ "text": "half" }, { "error": "odd" }],
    ]}));
    let (events, outcome) = stage.say("x").await;
    assert_eq!(text_of(&events), "half");
    let dropped = |message: &str| Err(ProviderError { message: message.into(), kind: ProviderErrorKind::Dropped });
    assert_eq!(outcome, dropped("Stream ended without a stop reason"));
    let (events, outcome) = stage.say("x").await;
    assert_eq!((events, outcome), (vec![StreamEvent::Opened], dropped("gone")));
    let (events, outcome) = stage.say("x").await;
    assert_eq!((text_of(&events).as_str(), outcome), ("half", Err(ProviderError::other("odd"))));
}

#[tokio::test]
async fn replies_match_the_last_user_message() {
    let stage = Stage::new(&json!({
        "replies": [
            { "when": { "exact": "hi" }, "turns": ["Hello."] },
            { "when": { "regex": "^list (\\w+)$" }, "repeat": true, "turns": [[{ "toolCall": "ls" }], "Listed."] },
            { "when": "weather", "turns": ["Rain."] },
        ],
        "turns": ["From the turns."],
    }));
    assert_eq!(stage.answer("list src").await, Ok(String::new()));
    assert_eq!(stage.answer("hi").await, Ok("Hello.".into()));
    let messages = vec![user("list src"), called("ls", json!({})), result("ls", "hi", false)];
    let (events, _) = stage.play(stage.request(messages)).await;
    assert_eq!(text_of(&events), "Listed.", "a tool result does not change who is answered");
    assert_eq!(stage.answer("list doc").await, Ok(String::new()), "again from its first turn");
    assert_eq!(stage.answer("the weather?").await, Ok("Rain.".into()));
    assert_eq!(stage.answer("hi").await, Ok("From the turns.".into()), "used up");
    assert!(stage.answer("hi").await.is_err());

    let stage = Stage::new(&json!({ "replies": [{ "when": "x", "turns": ["y"] }] }));
    assert_eq!(
        stage.answer(&"long ".repeat(100)).await,
        Err(format!("The script {} has no reply to \"{}\"...", stage.path().display(), "long ".repeat(40)))
    );
}

#[tokio::test]
async fn expectations_fail_with_what_came_instead_and_keep_the_turn() {
    let stage = Stage::new(&json!({ "turns": [{
        "expect": {
            "lastUser": "build", "systemPrompt": { "regex": "help" }, "tools": ["bash"], "thinking": "high",
            "messages": 4,
            "toolResult": ["ok", { "tool": "bash", "isError": true, "contains": "denied" }],
        },
        "steps": [{ "text": "Good." }],
    }]}));
    let failed = |problem: &str| {
        format!("The script {} did not get what it expects (turn 1): {problem}", stage.path().display())
    };
    let history = |results: &[AgentMessage]| {
        let mut messages = vec![user("build it"), called("bash", json!({ "command": "make" }))];
        messages.extend_from_slice(results);
        messages
    };
    let good = [result("bash", "all ok", false), result("bash", "permission denied", true)];

    let error = stage.say("go").await.1.unwrap_err();
    assert_eq!(error.message, failed("no user message that contains \"build\"; the last one is \"go\""));
    assert_eq!(error.kind, ProviderErrorKind::Other);

    let bad = [good[0].clone(), result("bash", "permission denied", false)];
    let (events, outcome) = stage.play(stage.request(history(&bad))).await;
    assert_eq!(events, []);
    assert_eq!(
        outcome.unwrap_err().message,
        failed(
            "no tool result of \"bash\" with a failure that contains \"denied\"; bash gave \"all ok\"; \
             bash gave \"permission denied\""
        )
    );

    let none = [user("build a"), user("build b"), user("build c"), user("build d")];
    let outcome = stage.play(stage.request(none.to_vec())).await.1;
    assert_eq!(outcome.unwrap_err().message, failed("no tool result that contains \"ok\"; none came back"));

    let mut request = stage.request(history(&good));
    request.tools = [tool("read")].into();
    let outcome = stage.play(request).await.1;
    assert_eq!(outcome.unwrap_err().message, failed("the tool \"bash\" is not on offer"));

    let mut request = stage.request(history(&good));
    request.thinking = ThinkingLevel::Off;
    let outcome = stage.play(request).await.1;
    assert_eq!(outcome.unwrap_err().message, failed("the thinking level is off, not high"));

    let mut request = stage.request(history(&good));
    request.system_prompt = "Nothing.".into();
    let outcome = stage.play(request).await.1;
    assert_eq!(outcome.unwrap_err().message, failed("no system prompt that matches /help/"));

    let outcome = stage.play(stage.request(history(&good[..1]))).await.1;
    assert_eq!(outcome.unwrap_err().message, failed("the request has 3 messages, not 4"));

    let (events, outcome) = stage.play(stage.request(history(&good))).await;
    assert_eq!((text_of(&events).as_str(), outcome), ("Good.", Ok(StopReason::Stop)));
}

#[tokio::test]
async fn usage_is_estimated_and_priced_by_the_model() {
    let stage = Stage::new(&json!({ "turns": [
        "12345678",
        [{ "usage": { "input": 1 } }, { "text": "1234" }, { "usage": { "cost": { "input": 0.5, "output": 0.25 } } }],
    ]}));
    let messages = vec![
        // 9 of the system prompt, 3, 4 + 9 of the call, and an image.
        user("abc"),
        called("bash", json!({ "a": "b" })),
        ToolResultMessage::new("c", "bash", vec![ImageContent::new("AA==", "image/png").into()], None, false, 0).into(),
    ];
    let mut request = stage.request(messages);
    let mut priced = Model::clone(&request.model);
    priced.cost = ModelCost { input: 2.0.into(), output: 1_000_000.0.into(), ..ModelCost::default() };
    request.model = Arc::new(priced);
    let (events, _) = stage.play(request).await;
    let input = 1207;
    let input_cost = 2.0 / 1_000_000.0 * 1207.0;
    assert_eq!(
        usage_of(&events),
        [Usage {
            input,
            output: 2,
            total_tokens: Some(1209),
            cost: Cost {
                input: input_cost.into(),
                output: 2.0.into(),
                total: (input_cost + 2.0).into(),
                ..Cost::default()
            },
            ..Usage::default()
        }]
    );

    let (events, _) = stage.say("abc").await;
    let usage = usage_of(&events);
    assert_eq!(usage.len(), 2, "steps replace the usage at the end");
    assert_eq!((usage[0].input, usage[0].output, usage[0].cost.total.0), (1, 0, 0.0));
    assert_eq!((usage[1].input, usage[1].output, usage[1].cost.total.0), (3, 1, 0.75));
}

#[tokio::test(start_paused = true)]
async fn waits_and_delays_take_their_time() {
    let stage = Stage::new(&json!({ "delayMs": 10, "turns": [
        { "chunk": 1, "steps": [{ "waitMs": 1000 }, { "text": "abc" }, { "text": "ab", "delayMs": 100, "chunk": 0 }] },
    ]}));
    let begin = tokio::time::Instant::now();
    stage.say("x").await.1.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_millis(1000 + 3 * 10 + 100));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_ends_the_answer() {
    let stage = Stage::new(&json!({ "turns": [[{ "text": "a" }, { "waitMs": 60000 }, { "text": "b" }], "next"] }));
    let (sender, mut receiver) = mpsc::channel(64);
    let stream = stage.provider.stream(stage.request(vec![user("x")]), sender);
    assert!(tokio::time::timeout(Duration::from_secs(1), stream).await.is_err());
    let mut events = Vec::new();
    while let Some(event) = receiver.recv().await {
        events.push(event);
    }
    assert_eq!(text_of(&events), "a");
    assert_eq!(stage.answer("x").await, Ok("next".into()), "an aborted turn is used");
}

#[tokio::test]
async fn a_reader_that_is_gone_ends_the_answer() {
    let stage = Stage::new(&json!({ "turns": ["text"] }));
    let (sender, receiver) = mpsc::channel(1);
    drop(receiver);
    assert!(stage.provider.stream(stage.request(vec![user("x")]), sender).await.is_err());
}

#[tokio::test]
async fn ten_thousand_deltas_stream_at_once() {
    let text = "ä".repeat(10_000);
    let stage = Stage::new(&json!({ "chunk": 1, "turns": [text] }));
    let begin = Instant::now();
    let (events, _) = stage.say("x").await;
    assert_eq!(events.len(), 10_000 + 4);
    assert_eq!(text_of(&events), text);
    // Quadratic work would take minutes.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn bad_files_are_named_with_the_place_and_may_be_mended() {
    let stage = Stage::new(&json!({}));
    let path = stage.path().display().to_string();
    let not_valid = |problem: &str| Err(format!("The script {path} is not valid: {problem}"));
    for (text, problem) in [
        ("{}", "it has neither turns nor replies"),
        (
            "{\n\"turn\": []}",
            "unknown field `turn`, expected one of `description`, `chunk`, `delayMs`, `atEnd`, `turns`, `replies` at line 2 column 6",
        ),
        (
            "{\"turns\": [\n5]}",
            "invalid type: integer `5`, expected a text, a list of steps, or a turn object at line 2 column 1",
        ),
        (
            "{\"turns\": [[\n{\"text\": \"a\", \"drop\": true}]]}",
            "a step needs exactly one of `text`, `thinking`, `redactedThinking`, `toolCall`, `waitMs`, `usage`, `error` or `drop` at line 2 column 28",
        ),
        ("{\"turns\": [[{\"text\": \"a\", \"id\": \"b\"}]]}", "`id` has no meaning in this step at line 1 column 37"),
        (
            "{\"turns\": [[{\"waitMs\": 1, \"chunk\": 2}]]}",
            "`chunk` or `delayMs` has no meaning in this step at line 1 column 38",
        ),
        (
            "{\"turns\": [[{\"error\": \"a\"}, {\"text\": \"b\"}]]}",
            "nothing can follow an error or a drop at line 1 column 42",
        ),
        (
            "{\"turns\": [[{\"toolCall\": \"a\", \"arguments\": 5}]]}",
            "`arguments` must be an object or a text at line 1 column 46",
        ),
        (
            "{\"turns\": [{\"steps\": [], \"stopReason\": \"error\"}]}",
            "unknown variant `error`, expected one of `stop`, `length`, `toolUse` at line 1 column 46",
        ),
    ] {
        stage.write(text);
        assert_eq!(stage.answer("x").await, not_valid(problem), "{text}");
    }
    for (text, part) in [
        ("{\"replies\": [{\"when\": {\"regex\": \"(\"}, \"turns\": [\"a\"]}]}", "unclosed group"),
        (
            "{\"replies\": [{\"when\": {}, \"turns\": [\"a\"]}]}",
            "exactly one of `exact`, `contains` and `regex` is needed",
        ),
        ("{\"replies\": [{\"when\": \"a\", \"turns\": []}]}", "a reply needs at least one turn"),
        ("{\"turns\": [[{\"error\": {\"message\": \"a\", \"retryAfterMs\": 5}}]]}", "`retryAfterMs` needs a `status`"),
        ("{\"turns\": [[{\"drop\": false}]]}", "`drop` must be true or a message"),
        ("{\"turns\": [[{\"usage\": {\"cost\": \"much\"}}]]}", "cost: "),
    ] {
        stage.write(text);
        let error = stage.answer("x").await.unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    stage.write("// With comments,\n{ \"turns\": [ \"Mended.\", ], }");
    assert_eq!(stage.answer("x").await, Ok("Mended.".into()));
    stage.write("{ broken");
    assert!(stage.answer("x").await.unwrap_err().contains("at its end"), "a script is read once");

    std::fs::remove_file(stage.path()).unwrap();
    let fresh = Stage { provider: ScriptedProvider::new(), ..stage };
    assert_eq!(
        fresh.answer("x").await,
        Err(format!("Cannot read the script {path}: No such file or directory (os error 2)"))
    );
}

#[test]
fn a_script_is_named_by_a_path_or_an_address() {
    for (text, path) in [
        ("demo.json", "/a/demo.json"),
        ("file:demo.json", "/a/demo.json"),
        ("file:///b/c.json", "/b/c.json"),
        ("/b/c.json", "/b/c.json"),
    ] {
        assert_eq!(script_path(text, Path::new("/a")), Path::new(path));
    }
}

/// The examples of the documentation are valid scripts.
#[test]
fn the_documented_examples_are_scripts() {
    let text = include_str!("../../../../docs/scripted-provider.md");
    let mut count = 0;
    for block in text.split("```jsonc\n").skip(1) {
        let example = block.split("```").next().unwrap();
        if example.contains("\"turns\"") {
            Script::parse(example).unwrap();
            count += 1;
        }
    }
    assert!(count >= 5, "{count}");
}
