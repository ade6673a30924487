//! Runs that go well: the order of events, the shapes of messages, queues.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dreb_tests::notation::{BEGIN, END, RESULT, SAY, USER, event, messages, sequence, shorts, text};
use dreb_tests::{FakeProvider, Gate, Home, Reply, Server, Tokens};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

/// The models of both APIs: model, its API, the id of the first answer, whether the cache is told of.
const APIS: [(&str, &str, &str, bool); 2] = [
    ("fake/fake-claude", "anthropic-messages", "msg_1", true),
    ("fake-openai/fake-gpt", "openai-completions", "chatcmpl-1", false),
];

/// Sends a prompt and returns all lines up to `agent_settled`, the response among them.
async fn lines(server: &mut Server, message: &str) -> Vec<Value> {
    server.send(json!({ "id": "p", "type": "prompt", "message": message })).await;
    server.until("agent_settled").await
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn updates(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["type"] == "message_update").collect()
}

#[tokio::test]
async fn a_plain_answer_has_its_events_in_order() {
    for (model, api, response_id, cache_write) in APIS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().text(["Hello", " world"]));
        let mut server = home.dreb().model(model).start();
        let lines = lines(&mut server, "say hello").await;
        let answer: &[&str] =
            &["S(assistant)", "U:text_start", "U:text_delta", "U:text_delta", "U:text_end", "E(assistant)"];
        assert_eq!(shorts(&lines), sequence(&[&["R:prompt"], BEGIN, answer, END]), "{model}");
        assert_eq!(lines[0], json!({ "id": "p", "type": "response", "command": "prompt", "success": true }));

        let (provider, id) = model.split_once('/').unwrap();
        assert_eq!(
            lines[1],
            json!({ "type": "agent_start", "model": { "provider": provider, "id": id }, "thinkingLevel": "high" })
        );
        let user = messages(&lines, "user")[0];
        assert_eq!(keys(user), ["role", "content", "timestamp"]);
        assert_eq!(user["content"], json!([{ "type": "text", "text": "say hello" }]));
        assert!(user["timestamp"].is_u64());

        let started = &lines[5]["message"];
        assert_eq!(started["content"], json!([]));
        assert_eq!(started["stopReason"], "stop");
        assert_eq!(started["usage"]["totalTokens"], 0);
        assert_eq!(started.get("durationMs"), None);

        let ended = messages(&lines, "assistant")[0];
        assert_eq!(
            keys(ended),
            [
                "role",
                "content",
                "api",
                "provider",
                "model",
                "usage",
                "stopReason",
                "timestamp",
                "responseId",
                "durationMs"
            ]
        );
        assert_eq!(ended["content"], json!([{ "type": "text", "text": "Hello world" }]));
        assert_eq!((&ended["api"], &ended["provider"], &ended["model"]), (&json!(api), &json!(provider), &json!(id)));
        assert_eq!((&ended["stopReason"], &ended["responseId"]), (&json!("stop"), &json!(response_id)));
        let written = if cache_write { 11 } else { 0 };
        let cost = [3.0 / 1e6 * 120.0, 15.0 / 1e6 * 7.0, 0.3 / 1e6 * 30.0, 3.75 / 1e6 * f64::from(written)];
        let usage = &ended["usage"];
        assert_eq!(keys(usage), ["input", "output", "cacheRead", "cacheWrite", "totalTokens", "cost"]);
        for (field, expected) in
            [("input", 120), ("output", 7), ("cacheRead", 30), ("cacheWrite", written), ("totalTokens", 157 + written)]
        {
            assert_eq!(usage[field], expected, "{field}");
        }
        for (field, expected) in ["input", "output", "cacheRead", "cacheWrite"].into_iter().zip(cost) {
            assert_eq!(usage["cost"][field].as_f64(), Some(expected), "{field}");
        }
        assert_eq!(usage["cost"]["total"].as_f64(), Some(cost[0] + cost[1] + cost[2] + cost[3]));

        let turn = event(&lines, "turn_end");
        assert_eq!((&turn["message"], &turn["toolResults"]), (ended, &json!([])));
        assert_eq!(event(&lines, "agent_end")["messages"], json!([user, ended]));
        assert_eq!(server.ok(json!({ "type": "get_messages" })).await["messages"], json!([user, ended]));
        let last = server.ok(json!({ "type": "get_last_assistant_text" })).await;
        assert_eq!(last, json!({ "text": "Hello world" }));
        let state = server.ok(json!({ "type": "get_state" })).await;
        let tokens = 157 + written;
        assert_eq!(state["contextUsage"]["tokens"], tokens);
        assert_eq!(state["contextUsage"]["percent"].as_f64(), Some(f64::from(tokens) / 200_000.0 * 100.0));
        assert_eq!((&state["isStreaming"], &state["messageCount"]), (&json!(false), &json!(2)));
        server.finish().await;
        fake.assert_done();
    }
}

#[tokio::test]
async fn each_update_shows_the_message_after_its_delta_and_no_more() {
    for (model, ..) in APIS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        // In one write, so that later pieces are there already when the first one is told.
        fake.push(Reply::new().text(["a", "b", "c"]).in_one_write());
        let mut server = home.dreb().model(model).start();
        let lines = server.run("go").await;
        let mut shown = Vec::new();
        for update in updates(&lines) {
            let event = &update["assistantMessageEvent"];
            assert_eq!(keys(update), ["type", "assistantMessageEvent", "message"]);
            assert_eq!(event["partial"], update["message"]);
            assert_eq!(event["contentIndex"], 0);
            let block = &update["message"]["content"][0];
            assert_eq!(keys(block), ["type", "text"], "no working keys");
            shown.push((event["type"].as_str().unwrap(), event["delta"].as_str(), block["text"].as_str().unwrap()));
        }
        assert_eq!(
            shown,
            [
                ("text_start", None, ""),
                ("text_delta", Some("a"), "a"),
                ("text_delta", Some("b"), "ab"),
                ("text_delta", Some("c"), "abc"),
                ("text_end", None, "abc"),
            ],
            "{model}"
        );
        let end = &updates(&lines)[4]["assistantMessageEvent"];
        assert_eq!(end["content"], "abc");
        server.finish().await;
    }
}

#[tokio::test]
async fn thinking_comes_before_the_text_and_goes_back_with_its_signature() {
    for (model, _, _, anthropic) in APIS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.script([Reply::new().thinking(["let me", " see"], "sig-1").text(["done"]), Reply::say("again")]);
        let mut server = home.dreb().model(model).start();
        let lines = server.run("think").await;
        let answer: &[&str] = &[
            "S(assistant)",
            "U:thinking_start",
            "U:thinking_delta",
            "U:thinking_delta",
            "U:thinking_end",
            "U:text_start",
            "U:text_delta",
            "U:text_end",
            "E(assistant)",
        ];
        assert_eq!(shorts(&lines), sequence(&[BEGIN, answer, END]), "{model}");
        let signature = if anthropic { "sig-1" } else { "reasoning_content" };
        assert_eq!(
            messages(&lines, "assistant")[0]["content"],
            json!([
                { "type": "thinking", "thinking": "let me see", "thinkingSignature": signature },
                { "type": "text", "text": "done" },
            ])
        );
        let ended = updates(&lines)[3];
        assert_eq!(ended["assistantMessageEvent"]["content"], "let me see");
        server.run("more").await;
        let request = fake.request(2).await;
        let sent = request.message(-2);
        assert_eq!(sent["role"], "assistant");
        if anthropic {
            assert_eq!(
                sent["content"],
                json!([
                    { "type": "thinking", "thinking": "let me see", "signature": "sig-1" },
                    { "type": "text", "text": "done" },
                ])
            );
        } else {
            assert_eq!((&sent["content"], &sent["reasoning_content"]), (&json!("done"), &json!("let me see")));
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn hidden_thinking_is_kept_as_a_closed_block() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([Reply::new().redacted("opaque==").text(["done"]), Reply::say("again")]);
    let mut server = home.dreb().start();
    let lines = server.run("think").await;
    let answer: &[&str] = &["S(assistant)", "U:thinking_start", "U:thinking_end"];
    assert_eq!(shorts(&lines), sequence(&[BEGIN, answer, &SAY[1..], END]));
    assert_eq!(
        messages(&lines, "assistant")[0]["content"][0],
        json!({
            "type": "thinking",
            "thinking": "[Reasoning redacted]",
            "thinkingSignature": "opaque==",
            "redacted": true,
        })
    );
    server.run("more").await;
    assert_eq!(
        fake.request(2).await.message(1)["content"][0],
        json!({ "type": "redacted_thinking", "data": "opaque==" })
    );
    server.finish().await;
}

#[tokio::test]
async fn a_tool_round_runs_the_tool_and_asks_again() {
    for (model, _, _, anthropic) in APIS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        home.file("a.txt", "alpha\n");
        fake.script([
            Reply::new().text(["Reading."]).tool_call_in("call_1", "read", ["{\"path\":", "\"a.txt\"}"]),
            Reply::say("It says alpha."),
        ]);
        let mut server = home.dreb().model(model).start();
        let lines = server.run("read it").await;
        // OpenAI's first piece of a call carries arguments too, empty ones.
        let call: &[&str] = if anthropic {
            &["U:toolcall_start", "U:toolcall_delta", "U:toolcall_delta", "U:toolcall_end"]
        } else {
            &["U:toolcall_start", "U:toolcall_delta", "U:toolcall_delta", "U:toolcall_delta", "U:toolcall_end"]
        };
        assert_eq!(
            shorts(&lines),
            sequence(&[
                BEGIN,
                &SAY[..4],
                call,
                &["E(assistant)", "T+(call_1)", "T-(call_1)"],
                RESULT,
                &["turn_end", "turn_start"],
                SAY,
                END,
            ]),
            "{model}"
        );
        let answer = messages(&lines, "assistant")[0];
        assert_eq!(answer["stopReason"], "toolUse");
        assert_eq!(
            answer["content"],
            json!([
                { "type": "text", "text": "Reading." },
                { "type": "toolCall", "id": "call_1", "name": "read", "arguments": { "path": "a.txt" } },
            ])
        );
        let end = lines.iter().find(|line| line["assistantMessageEvent"]["type"] == "toolcall_end").unwrap();
        assert_eq!(end["assistantMessageEvent"]["toolCall"], answer["content"][1]);
        for update in updates(&lines).into_iter().filter(|line| line["message"]["content"][1].is_object()) {
            let block = keys(&update["message"]["content"][1]);
            assert_eq!(block, ["type", "id", "name", "arguments"], "no working keys");
        }
        assert_eq!(
            event(&lines, "tool_execution_start"),
            &json!({
                "type": "tool_execution_start",
                "toolCallId": "call_1",
                "toolName": "read",
                "args": { "path": "a.txt" },
            })
        );
        assert_eq!(
            event(&lines, "tool_execution_end"),
            &json!({
                "type": "tool_execution_end",
                "toolCallId": "call_1",
                "toolName": "read",
                "result": { "content": [{ "type": "text", "text": "alpha\n" }] },
                "isError": false,
            })
        );
        let result = messages(&lines, "toolResult")[0];
        assert_eq!(keys(result), ["role", "toolCallId", "toolName", "content", "isError", "timestamp"]);
        assert_eq!(text(result), "alpha\n");
        let turn = event(&lines, "turn_end");
        assert_eq!((&turn["message"], &turn["toolResults"]), (answer, &json!([result])));
        let all = event(&lines, "agent_end")["messages"].as_array().unwrap();
        let roles: Vec<_> = all.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "toolResult", "assistant"]);

        let request = fake.request(2).await;
        let sent = request.message(-1);
        if anthropic {
            let block = &sent["content"][0];
            assert_eq!((&sent["role"], &block["type"]), (&json!("user"), &json!("tool_result")));
            assert_eq!(
                (&block["tool_use_id"], &block["content"], &block["is_error"]),
                (&json!("call_1"), &json!("alpha\n"), &json!(false))
            );
        } else {
            assert_eq!(
                (&sent["role"], &sent["tool_call_id"], &sent["content"]),
                (&json!("tool"), &json!("call_1"), &json!("alpha\n"))
            );
        }
        server.finish().await;
        fake.assert_done();
    }
}

#[tokio::test]
async fn a_request_carries_key_version_budget_and_tools() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([Reply::say("a"), Reply::say("b"), Reply::say("c")]);
    let mut server = home.dreb().start();
    server.run("one").await;
    let request = fake.request(1).await;
    assert_eq!(request.headers["x-api-key"], dreb_tests::home::FAKE_KEY);
    assert_eq!(request.headers["anthropic-version"], "2023-06-01");
    assert_eq!(request.body["model"], "fake-claude");
    assert_eq!(request.body["stream"], true);
    assert_eq!(request.body["max_tokens"], 48_384);
    assert_eq!(request.body["thinking"], json!({ "type": "enabled", "budget_tokens": 16_384 }));
    assert_eq!(request.body["system"][0]["cache_control"], json!({ "type": "ephemeral" }));
    assert_eq!(request.message(-1)["content"][0]["cache_control"], json!({ "type": "ephemeral" }));
    let tools: Vec<_> =
        request.body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(tools[..7], ["read", "bash", "edit", "write", "grep", "find", "ls"]);

    server.ok(json!({ "type": "set_thinking_level", "level": "off" })).await;
    server.run("two").await;
    let request = fake.request(2).await;
    assert_eq!((&request.body["max_tokens"], &request.body["thinking"]["type"]), (&json!(32_000), &json!("disabled")));

    server.ok(json!({ "type": "set_model", "provider": "fake-openai", "modelId": "fake-gpt" })).await;
    server.ok(json!({ "type": "set_thinking_level", "level": "low" })).await;
    server.run("three").await;
    let request = fake.request(3).await;
    assert_eq!(request.headers["authorization"], format!("Bearer {}", dreb_tests::home::FAKE_KEY));
    assert_eq!(request.body["stream_options"], json!({ "include_usage": true }));
    assert_eq!(request.body["store"], false);
    assert_eq!(request.body["max_completion_tokens"], 32_000);
    assert_eq!(request.body["reasoning_effort"], "low");
    assert_eq!(request.roles(), ["developer", "user", "assistant", "user", "assistant", "user"]);
    server.finish().await;
}

#[tokio::test]
async fn images_of_a_prompt_reach_the_provider() {
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(2, 2).write_to(&mut png, image::ImageFormat::Png).unwrap();
    let data = STANDARD.encode(png.into_inner());
    let picture = json!({ "type": "image", "data": data, "mimeType": "image/png" });
    for (model, _, _, anthropic) in APIS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::say("a square"));
        let mut server = home.dreb().model(model).start();
        server.ok(json!({ "type": "prompt", "message": "what is it", "images": [picture] })).await;
        let lines = server.until("agent_settled").await;
        let content = json!([{ "type": "text", "text": "what is it" }, picture]);
        assert_eq!(messages(&lines, "user")[0]["content"], content);
        let request = fake.request(1).await;
        let sent = &request.message(-1)["content"][1];
        if anthropic {
            let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
            assert_eq!((&sent["type"], &sent["source"]), (&json!("image"), &source));
        } else {
            assert_eq!(sent["image_url"]["url"], format!("data:image/png;base64,{data}"));
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn an_answer_may_be_empty() {
    for (model, ..) in APIS {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::new().tokens(Tokens { input: 5, output: 0, cache_read: 0, cache_write: 0 }));
        let mut server = home.dreb().model(model).start();
        let lines = server.run("").await;
        assert_eq!(shorts(&lines), sequence(&[BEGIN, &["S(assistant)", "E(assistant)"], END]));
        let answer = messages(&lines, "assistant")[0];
        assert_eq!((&answer["content"], &answer["usage"]["input"]), (&json!([]), &json!(5)));
        server.finish().await;
    }
}

/// Holds the first answer, so that the run can be looked at.
async fn held(fake: &FakeProvider, server: &mut Server) -> Gate {
    let gate = Gate::new();
    fake.push(Reply::new().text_start().text_deltas(["one"]).gate(&gate).end_block());
    server.prompt("start").await;
    gate.reached().await;
    gate
}

const FIRST: &[&str] = SAY;

#[tokio::test]
async fn steering_is_delivered_one_message_a_turn() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    let gate = held(&fake, &mut server).await;
    fake.script([Reply::say("two"), Reply::say("three")]);
    server.ok(json!({ "type": "steer", "message": "s1" })).await;
    server.ok(json!({ "type": "steer", "message": "s2" })).await;
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["isStreaming"], &state["pendingMessageCount"]), (&json!(true), &json!(2)));
    assert_eq!(
        server.ok(json!({ "type": "get_pending_messages" })).await,
        json!({
            "steering": ["s1", "s2"],
            "followUp": [],
            "steeringMessages": [{ "text": "s1" }, { "text": "s2" }],
            "followUpMessages": [],
        })
    );
    gate.release();
    let lines = server.until("agent_settled").await;
    let next: &[&str] = &["turn_start"];
    assert_eq!(
        shorts(&lines),
        sequence(&[BEGIN, FIRST, &["turn_end"], USER, next, SAY, &["turn_end"], USER, next, SAY, END])
    );
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "s1", "s2"]);
    assert_eq!(server.ok(json!({ "type": "get_state" })).await["pendingMessageCount"], 0);
    server.finish().await;
    fake.assert_done();
}

#[tokio::test]
async fn steering_in_mode_all_is_delivered_at_once() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "set_steering_mode", "mode": "all" })).await;
    let gate = held(&fake, &mut server).await;
    fake.push(Reply::say("two"));
    server.ok(json!({ "type": "steer", "message": "s1" })).await;
    server.ok(json!({ "type": "steer", "message": "s2" })).await;
    gate.release();
    let lines = server.until("agent_settled").await;
    let next: &[&str] = &["turn_start"];
    assert_eq!(shorts(&lines), sequence(&[BEGIN, FIRST, &["turn_end"], USER, USER, next, SAY, END]));
    assert_eq!(fake.request(2).await.roles(), ["user", "assistant", "user", "user"]);
    server.finish().await;
}

#[tokio::test]
async fn follow_ups_wait_until_the_agent_would_stop() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    let mut server = home.dreb().start();
    let gate = Gate::new();
    fake.script([
        Reply::new().gate(&gate).tool_call("c1", "read", &json!({ "path": "a.txt" })),
        Reply::say("after the tool"),
        Reply::say("after f1"),
        Reply::say("after f2"),
    ]);
    server.prompt("start").await;
    gate.reached().await;
    for (kind, message) in [("follow_up", "f1"), ("follow_up", "f2")] {
        server.ok(json!({ "type": kind, "message": message })).await;
    }
    gate.release();
    let lines = server.until("agent_settled").await;
    let call: &[&str] =
        &["S(assistant)", "U:toolcall_start", "U:toolcall_delta", "U:toolcall_end", "E(assistant)", "T+(c1)", "T-(c1)"];
    let next: &[&str] = &["turn_start"];
    let turn: &[&str] = &["turn_end"];
    assert_eq!(
        shorts(&lines),
        sequence(&[BEGIN, call, RESULT, turn, next, SAY, turn, USER, next, SAY, turn, USER, next, SAY, END])
    );
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "f1", "f2"]);
    server.finish().await;
}

#[tokio::test]
async fn follow_ups_in_mode_all_are_delivered_at_once() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "set_follow_up_mode", "mode": "all" })).await;
    let gate = held(&fake, &mut server).await;
    fake.script([Reply::say("two"), Reply::say("three")]);
    for (kind, message) in [("follow_up", "f1"), ("steer", "s1"), ("follow_up", "f2")] {
        server.ok(json!({ "type": kind, "message": message })).await;
    }
    gate.release();
    let lines = server.until("agent_settled").await;
    let next: &[&str] = &["turn_start"];
    let turn: &[&str] = &["turn_end"];
    assert_eq!(shorts(&lines), sequence(&[BEGIN, FIRST, turn, USER, next, SAY, turn, USER, USER, next, SAY, END]));
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "s1", "f1", "f2"]);
    server.finish().await;
    fake.assert_done();
}

#[tokio::test]
async fn messages_queued_while_idle_wait_for_the_next_prompt() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.script([Reply::say("one"), Reply::say("two")]);
    let mut server = home.dreb().start();
    server.ok(json!({ "type": "steer", "message": "s" })).await;
    server.ok(json!({ "type": "follow_up", "message": "f" })).await;
    assert_eq!(server.ok(json!({ "type": "get_state" })).await["pendingMessageCount"], 2);
    assert_eq!(fake.requests().len(), 0);
    let lines = server.run("p").await;
    assert_eq!(shorts(&lines), sequence(&[BEGIN, USER, SAY, &["turn_end"], USER, &["turn_start"], SAY, END]));
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["p", "s", "f"]);
    server.finish().await;
}

#[tokio::test]
async fn cleared_messages_are_returned_and_not_delivered() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::say("one"));
    let mut server = home.dreb().start();
    let picture = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
    server.ok(json!({ "type": "steer", "message": "s", "images": [picture] })).await;
    server.ok(json!({ "type": "follow_up", "message": "f" })).await;
    assert_eq!(
        server.ok(json!({ "type": "clear_pending_messages" })).await,
        json!({
            "steering": ["s"],
            "followUp": ["f"],
            "steeringMessages": [{ "text": "s", "images": [picture] }],
            "followUpMessages": [{ "text": "f" }],
        })
    );
    let lines = server.run("p").await;
    assert_eq!(shorts(&lines), sequence(&[BEGIN, SAY, END]));
    server.finish().await;
}

#[tokio::test]
async fn a_prompt_to_a_busy_agent_fails_once_unless_it_says_how_to_queue() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    let gate = held(&fake, &mut server).await;
    fake.script([Reply::say("two"), Reply::say("three")]);
    let refused = server.request(json!({ "id": "busy", "type": "prompt", "message": "no" })).await;
    assert_eq!(
        refused,
        json!({
            "id": "busy",
            "type": "response",
            "command": "prompt",
            "success": false,
            "error": "Agent is already processing. Specify streamingBehavior ('steer' or 'followUp') to queue the message.",
        })
    );
    for (behaviour, message) in [("followUp", "f"), ("steer", "s")] {
        server.ok(json!({ "type": "prompt", "message": message, "streamingBehavior": behaviour })).await;
    }
    gate.release();
    let lines = server.until("agent_settled").await;
    // No second answer to the refused prompt, and no message of it.
    assert!(lines.iter().all(|line| line["type"] != "response"), "{:?}", shorts(&lines));
    let users: Vec<_> = messages(&lines, "user").into_iter().map(text).collect();
    assert_eq!(users, ["start", "s", "f"]);
    server.finish().await;
}

#[tokio::test]
async fn a_model_set_in_mid_run_counts_from_the_next_run_on() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    let gate = Gate::new();
    fake.script([
        Reply::new().gate(&gate).tool_call("c1", "read", &json!({ "path": "a.txt" })),
        Reply::say("two"),
        Reply::say("three"),
    ]);
    let mut server = home.dreb().start();
    server.prompt("start").await;
    gate.reached().await;
    let model = server.ok(json!({ "type": "set_model", "provider": "fake", "modelId": "fake-mini" })).await;
    assert_eq!(model["id"], "fake-mini");
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["model"]["id"], &state["thinkingLevel"]), (&json!("fake-mini"), &json!("off")));
    gate.release();
    let lines = server.until("agent_settled").await;
    let models: Vec<_> = messages(&lines, "assistant").into_iter().map(|message| &message["model"]).collect();
    assert_eq!(models, ["fake-claude", "fake-claude"]);
    assert_eq!(fake.request(2).await.body["model"], "fake-claude");
    let lines = server.run("next").await;
    assert_eq!(
        lines[0],
        json!({
            "type": "agent_start",
            "model": { "provider": "fake", "id": "fake-mini" },
            "thinkingLevel": "off",
        })
    );
    assert_eq!(fake.request(3).await.body["model"], "fake-mini");
    assert_eq!(
        server.fails(json!({ "type": "set_model", "provider": "fake", "modelId": "none" })).await,
        "Model not found: fake/none"
    );
    server.finish().await;
}

#[tokio::test]
async fn commands_sent_back_to_back_take_effect_in_order() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::say("one"));
    let mut server = home.dreb().start();
    let commands = [
        json!({ "id": 1, "type": "set_model", "provider": "fake-openai", "modelId": "fake-gpt" }),
        json!({ "id": 2, "type": "set_thinking_level", "level": "minimal" }),
        json!({ "id": 3, "type": "prompt", "message": "go" }),
    ];
    let together: String = commands.iter().map(|command| format!("{command}\n")).collect();
    server.send_raw(together).await;
    let lines = server.until("agent_settled").await;
    let start = event(&lines, "agent_start");
    assert_eq!((&start["model"]["id"], &start["thinkingLevel"]), (&json!("fake-gpt"), &json!("minimal")));
    let answered: Vec<_> =
        lines.iter().filter(|line| line["type"] == "response").map(|line| (&line["id"], &line["success"])).collect();
    let good = json!(true);
    assert_eq!(answered, [(&json!(1), &good), (&json!(2), &good), (&json!(3), &good)]);
    server.finish().await;
}

#[tokio::test]
async fn reads_answer_in_mid_run_and_do_not_show_the_open_message() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let mut server = home.dreb().start();
    assert_eq!(server.ok(json!({ "type": "get_last_assistant_text" })).await, json!({ "text": null }));
    let gate = held(&fake, &mut server).await;
    let messages = server.ok(json!({ "type": "get_messages" })).await;
    assert_eq!(messages["messages"].as_array().unwrap().len(), 1);
    assert_eq!(server.ok(json!({ "type": "get_last_assistant_text" })).await, json!({ "text": null }));
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["isStreaming"], &state["messageCount"]), (&json!(true), &json!(1)));
    // A shell command runs beside the run; its message joins at the next prompt.
    let shell = server.ok(json!({ "type": "bash", "command": "echo hi" })).await;
    assert_eq!(shell["output"], "hi\n");
    let messages = server.ok(json!({ "type": "get_messages" })).await;
    assert_eq!(messages["messages"].as_array().unwrap().len(), 1);
    gate.release();
    server.until("agent_settled").await;
    fake.push(Reply::say("two"));
    server.run("next").await;
    let messages = server.ok(json!({ "type": "get_messages" })).await;
    let roles: Vec<_> =
        messages["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "bashExecution", "user", "assistant"]);
    assert_eq!(fake.request(2).await.message(2)["content"][0]["text"], "Ran `echo hi`\n```\nhi\n\n```");
    server.finish().await;
}
