//! Providers that fail, and what is made of it.

use std::time::Duration;

use dreb_tests::fake_provider::{GarbageServer, RefusedPort};
use dreb_tests::home::providers;
use dreb_tests::notation::{BEGIN, END, SAY, event, messages, sequence, short, shorts, text};
use dreb_tests::{FakeProvider, Home, Reply, Server};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

const ANTHROPIC: &str = "fake/fake-claude";
const OPENAI: &str = "fake-openai/fake-gpt";
/// An answer that failed before it said anything.
const FAILED: &[&str] = &["S(assistant)", "E(assistant:error)"];
/// The same run once more.
const AGAIN: &[&str] = &["auto_retry_start", "agent_start", "turn_start"];
const OVERLOADED: &str = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;

/// Retries after milliseconds instead of seconds.
fn quick(home: &Home) {
    home.settings(&json!({ "retry": { "baseDelayMs": 4 } }));
}

fn overloaded() -> Reply {
    Reply::error(529, "overloaded_error", "Overloaded")
}

/// A run that fails at once and is not tried again; returns the error.
async fn failure(model: &str, reply: Reply) -> String {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(reply);
    let mut server = home.dreb().model(model).start();
    let lines = server.run("go").await;
    let shorts = shorts(&lines);
    assert_eq!(shorts[..4], sequence(&[BEGIN]));
    assert_eq!(shorts[shorts.len() - 4..], sequence(&[&["E(assistant:error)"], END]), "{shorts:?}");
    let ends = messages(&lines, "assistant");
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0]["stopReason"], "error");
    assert_eq!(fake.requests().len(), 1, "it is asked once");
    let state = server.ok(json!({ "type": "get_state" })).await;
    assert_eq!((&state["isStreaming"], &state["isRetrying"]), (&json!(false), &json!(false)));
    // The session is not harmed, and the failed answer is not sent back.
    fake.push(Reply::say("well again"));
    let next = server.run("and now").await;
    assert_eq!(text(messages(&next, "assistant")[0]), "well again");
    assert!(!fake.request(2).await.roles().contains(&"assistant"));
    server.finish().await;
    ends[0]["errorMessage"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn refusals_are_shown_and_not_tried_again() {
    for (status, kind) in [(400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error")] {
        assert_eq!(
            failure(ANTHROPIC, Reply::error(status, kind, "no such luck")).await,
            format!(r#"{status} {{"type":"error","error":{{"type":"{kind}","message":"no such luck"}}}}"#)
        );
        assert_eq!(failure(OPENAI, Reply::error(status, kind, "no such luck")).await, format!("{status} no such luck"));
    }
    assert_eq!(failure(ANTHROPIC, Reply::http(413, "text/plain", "")).await, "413 status code (no body)");
    assert_eq!(failure(OPENAI, Reply::http(400, "text/plain", "")).await, "400 status code (no body)");
}

#[tokio::test]
async fn no_secret_is_shown() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(Reply::error(401, "authentication_error", "invalid x-api-key"));
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    let models = server.ok(json!({ "type": "get_available_models" })).await;
    let state = server.ok(json!({ "type": "get_state" })).await;
    let stored = std::fs::read_to_string(home.session_file()).unwrap();
    for shown in [json!(lines).to_string(), models.to_string(), state.to_string(), stored, server.stderr()] {
        assert!(!shown.contains(dreb_tests::home::FAKE_KEY), "{shown}");
    }
    server.finish().await;
}

#[tokio::test]
async fn odd_stop_reasons_are_errors_with_their_name() {
    assert_eq!(failure(ANTHROPIC, Reply::say("a").stop_reason("refusal")).await, "An unknown error occurred");
    assert_eq!(failure(ANTHROPIC, Reply::say("a").stop_reason("brand_new")).await, "Unhandled stop reason: brand_new");
    assert_eq!(
        failure(OPENAI, Reply::say("a").stop_reason("content_filter")).await,
        "Provider finish_reason: content_filter"
    );
    for reason in ["pause_turn", "stop_sequence", "end_turn"] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::say("a").stop_reason(reason));
        let mut server = home.dreb().start();
        let lines = server.run("go").await;
        assert_eq!(messages(&lines, "assistant")[0]["stopReason"], "stop", "{reason}");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_transient_failure_is_tried_again() {
    for (model, error) in [(ANTHROPIC, format!("529 {OVERLOADED}")), (OPENAI, "529 Overloaded".to_owned())] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        quick(&home);
        fake.script([overloaded(), Reply::say("ok")]);
        let mut server = home.dreb().model(model).start();
        let lines = server.run("go").await;
        assert_eq!(
            shorts(&lines),
            sequence(&[BEGIN, FAILED, &["turn_end", "agent_end"], AGAIN, SAY, &["auto_retry_end"], END]),
            "{model}"
        );
        let failed = messages(&lines, "assistant")[0];
        assert_eq!((&failed["errorMessage"], &failed["content"]), (&json!(error), &json!([])));
        // This API's answer begins with the request, the other's with the first bytes.
        let begun = lines.iter().find(|line| short(line) == "S(assistant)").unwrap();
        let reason = if model == ANTHROPIC { "stop" } else { "error" };
        assert_eq!(begun["message"]["stopReason"], reason, "{model}");
        assert_eq!(
            event(&lines, "auto_retry_start"),
            &json!({
                "type": "auto_retry_start",
                "attempt": 1,
                "maxAttempts": 3,
                "delayMs": 4,
                "errorMessage": error,
            })
        );
        assert_eq!(
            event(&lines, "auto_retry_end"),
            &json!({ "type": "auto_retry_end", "success": true, "attempt": 1 })
        );
        let ends: Vec<_> = lines.iter().filter(|line| line["type"] == "agent_end").collect();
        let user = messages(&lines, "user")[0];
        assert_eq!(ends[0]["messages"], json!([user, failed]));
        assert_eq!(ends[1]["messages"], json!([messages(&lines, "assistant")[1]]));
        // No hidden tries.
        assert_eq!(fake.requests().len(), 2);
        assert_eq!(fake.request(2).await.roles().last(), Some(&"user"));
        let all = server.ok(json!({ "type": "get_messages" })).await;
        assert_eq!(all["messages"], json!([user, messages(&lines, "assistant")[1]]));
        server.finish().await;
    }
}

#[tokio::test]
async fn tries_end_at_some_time() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    quick(&home);
    fake.script((0..4).map(|_| Reply::error(500, "api_error", "Internal server error")));
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    let end: &[&str] = &["turn_end", "agent_end"];
    assert_eq!(
        shorts(&lines),
        sequence(&[
            BEGIN,
            FAILED,
            end,
            AGAIN,
            FAILED,
            end,
            AGAIN,
            FAILED,
            end,
            AGAIN,
            FAILED,
            end,
            &["auto_retry_end", "agent_settled"],
        ])
    );
    let starts = lines.iter().filter(|line| line["type"] == "auto_retry_start");
    let delays: Vec<_> = starts.map(|line| (&line["attempt"], &line["delayMs"])).collect();
    assert_eq!(delays, [(&json!(1), &json!(4)), (&json!(2), &json!(8)), (&json!(3), &json!(16))]);
    let error = r#"500 {"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#;
    assert_eq!(
        event(&lines, "auto_retry_end"),
        &json!({ "type": "auto_retry_end", "success": false, "attempt": 3, "finalError": error })
    );
    // The last failure stays, the others are only in the file.
    let all = server.ok(json!({ "type": "get_messages" })).await;
    assert_eq!(all["messages"].as_array().unwrap().len(), 2);
    let stored = home.session_lines();
    assert_eq!(stored.iter().filter(|entry| entry["message"]["stopReason"] == "error").count(), 4);
    // The count begins anew.
    fake.script([overloaded(), Reply::say("ok")]);
    let lines = server.run("again").await;
    assert_eq!(event(&lines, "auto_retry_start")["attempt"], 1);
    server.finish().await;
    fake.assert_done();
}

#[tokio::test]
async fn retries_can_be_switched_off() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.settings(&json!({ "retry": { "enabled": false } }));
    fake.push(overloaded());
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    assert_eq!(shorts(&lines), sequence(&[BEGIN, FAILED, END]));
    server.finish().await;
}

#[tokio::test]
async fn retry_after_lengthens_the_announced_delay() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    quick(&home);
    let limited = || Reply::error(429, "rate_limit_error", "Slow down");
    fake.script([limited().header("retry-after", "1"), Reply::say("ok")]);
    let mut server = home.dreb().start();
    let begun = tokio::time::Instant::now();
    let lines = server.run("go").await;
    assert_eq!(event(&lines, "auto_retry_start")["delayMs"], 1000);
    assert!(begun.elapsed() >= Duration::from_secs(1), "it is waited for");
    // A shorter wish does not shorten the delay.
    fake.script([limited().header("retry-after-ms", "1"), Reply::say("ok")]);
    let lines = server.run("go").await;
    assert_eq!(event(&lines, "auto_retry_start")["delayMs"], 4);
    server.finish().await;
}

#[tokio::test]
async fn an_excessive_retry_after_is_capped() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.settings(&json!({ "retry": { "baseDelayMs": 4, "maxDelayMs": 30 } }));
    fake.script([Reply::error(429, "rate_limit_error", "Slow down").header("retry-after", "86400"), Reply::say("ok")]);
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    assert_eq!(event(&lines, "auto_retry_start")["delayMs"], 30);
    assert_eq!(text(messages(&lines, "assistant")[1]), "ok");
    server.finish().await;
}

#[tokio::test]
async fn an_error_inside_the_stream_is_the_error_of_the_answer() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    quick(&home);
    fake.script([
        Reply::new().text_start().text_deltas(["half"]).error_event("overloaded_error", "Overloaded"),
        Reply::say("ok"),
    ]);
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    let partial: &[&str] = &["S(assistant)", "U:text_start", "U:text_delta", "E(assistant:error)"];
    assert_eq!(
        shorts(&lines),
        sequence(&[BEGIN, partial, &["turn_end", "agent_end"], AGAIN, SAY, &["auto_retry_end"], END])
    );
    let failed = messages(&lines, "assistant")[0];
    assert_eq!((failed["errorMessage"].as_str(), text(failed).as_str()), (Some(OVERLOADED), "half"));
    server.finish().await;
}

/// A run against an address that answers nothing sensible.
async fn unreachable(url: &str, cause_is: &str) {
    let home = Home::empty();
    let mut models = providers(url);
    models["providers"]["fake-openai"]["baseUrl"] = json!(format!("{url}/v1"));
    home.models(&models);
    quick(&home);
    for model in [ANTHROPIC, OPENAI] {
        let mut server = home.dreb().model(model).start();
        let lines = server.run("go").await;
        assert_eq!(lines.iter().filter(|line| line["type"] == "auto_retry_start").count(), 3);
        for failed in messages(&lines, "assistant") {
            // The words the reference has, which clients match on, and then the cause.
            assert_eq!(failed["stopReason"], "error");
            let text = failed["errorMessage"].as_str().unwrap();
            assert!(text.strip_prefix("Connection error. ").is_some_and(|cause| cause.contains(cause_is)), "{text}");
        }
        let last = messages(&lines, "assistant").pop().unwrap()["errorMessage"].clone();
        assert_eq!(
            event(&lines, "auto_retry_end"),
            &json!({ "type": "auto_retry_end", "success": false, "attempt": 3, "finalError": last })
        );
        server.finish().await;
    }
}

#[tokio::test]
async fn a_refused_connection_is_a_connection_error() {
    let refused = RefusedPort::take();
    unreachable(&refused.url(), "connection refused").await;
}

#[tokio::test]
async fn a_failed_tls_handshake_is_a_connection_error() {
    let garbage = GarbageServer::start().await;
    unreachable(&garbage.tls_url(), "no TLS on").await;
}

#[tokio::test]
async fn a_dropped_stream_is_asked_for_again_within_the_turn() {
    let cases = [
        (ANTHROPIC, "Stream ended without message_delta — connection likely dropped"),
        (OPENAI, "Stream ended without finish_reason — connection likely dropped"),
    ];
    let half = || Reply::new().text_start().text_deltas(["half"]);
    let drops: [fn(Reply) -> Reply; 4] = [
        Reply::drop_connection,
        Reply::reset_connection,
        |reply| reply.without_stop(),
        |reply| reply.raw("not a chunk size\r\n").drop_connection(),
    ];
    for (model, error) in cases {
        for drop in drops {
            let fake = FakeProvider::start().await;
            let home = Home::new(&fake);
            fake.script([drop(half()), Reply::say("whole")]);
            let mut server = home.dreb().model(model).start();
            let lines = server.run("go").await;
            let dropped: &[&str] = &["S(assistant)", "U:text_start", "U:text_delta", "stream_retry"];
            assert_eq!(shorts(&lines), sequence(&[BEGIN, dropped, SAY, END]), "{model}");
            let retry = event(&lines, "stream_retry");
            assert_eq!(
                (&retry["attempt"], &retry["maxAttempts"], &retry["error"]),
                (&json!(1), &json!(3), &json!(error))
            );
            let partial = &retry["discardedPartial"];
            assert_eq!((&partial["role"], &partial["stopReason"]), (&json!("assistant"), &json!("error")));
            assert_eq!((&partial["errorMessage"], text(partial)), (&json!(error), "half".to_owned()));
            assert_eq!(text(messages(&lines, "assistant")[0]), "whole");
            // Nothing of the drop is stored.
            let stored = home.session_lines();
            assert_eq!(stored.iter().filter(|entry| entry["message"]["role"] == "assistant").count(), 1);
            assert_eq!(fake.request(1).await.body["messages"], fake.request(2).await.body["messages"]);
            server.finish().await;
        }
    }
}

#[tokio::test]
async fn last_words_may_be_missing() {
    for model in [ANTHROPIC, OPENAI] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.push(Reply::say("whole").without_end());
        let mut server = home.dreb().model(model).start();
        let lines = server.run("go").await;
        assert_eq!(shorts(&lines), sequence(&[BEGIN, SAY, END]), "{model}");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_stream_that_always_drops_is_given_up() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    quick(&home);
    fake.script((0..4).map(|_| Reply::new().text_start().text_deltas(["half"]).drop_connection()));
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    let dropped: &[&str] = &["S(assistant)", "U:text_start", "U:text_delta"];
    let retry: &[&str] = &["stream_retry"];
    assert_eq!(
        shorts(&lines),
        sequence(&[BEGIN, dropped, retry, dropped, retry, dropped, retry, dropped, &["E(assistant:error)"], END,])
    );
    let failed = messages(&lines, "assistant")[0];
    assert_eq!(failed["errorMessage"], "Stream dropped repeatedly — connection likely unstable");
    assert_eq!(text(failed), "half");
    server.finish().await;
    fake.assert_done();
}

#[tokio::test]
async fn an_answer_cut_by_its_limit_is_asked_for_with_a_larger_one() {
    for (model, field) in [("fake/fake-mini", "max_tokens"), ("fake-openai/fake-gpt-mini", "max_completion_tokens")] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        fake.script([Reply::say("cut").cut_by_length(), Reply::say("whole")]);
        let mut server = home.dreb().model(model).start();
        let lines = server.run("go").await;
        assert_eq!(shorts(&lines), sequence(&[BEGIN, &SAY[..4], &["length_retry"], SAY, END]), "{model}");
        let retry = event(&lines, "length_retry");
        assert_eq!((&retry["attempt"], &retry["maxAttempts"]), (&json!(1), &json!(2)));
        assert_eq!((&retry["previousMaxTokens"], &retry["nextMaxTokens"]), (&json!(32_000), &json!(64_000)));
        assert_eq!(text(&retry["discardedPartial"]), "cut");
        assert_eq!(text(messages(&lines, "assistant")[0]), "whole");
        assert_eq!(fake.request(1).await.body[field], 32_000);
        assert_eq!(fake.request(2).await.body[field], 64_000);
        server.finish().await;
    }
}

#[tokio::test]
async fn an_answer_that_never_fits_is_an_error() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    // At the model's limit of 64000 there is nothing to double.
    fake.script([Reply::say("cut").cut_by_length(), Reply::say("cut too").cut_by_length()]);
    let mut server = home.dreb().model("fake/fake-mini").start();
    let lines = server.run("go").await;
    let failed = messages(&lines, "assistant")[0];
    assert_eq!(
        failed["errorMessage"],
        "Response truncated at token limit after 2 attempts — output exceeded the model's maximum token budget"
    );
    assert_eq!((text(failed).as_str(), &failed["usage"]["output"]), ("cut too", &json!(7)));
    server.finish().await;
    fake.assert_done();
}

/// Runs one reply through the server and returns its lines.
async fn through(model: &str, reply: Reply) -> Vec<Value> {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    fake.push(reply);
    let mut server = home.dreb().model(model).start();
    let lines = server.run("go").await;
    finish(server).await;
    lines
}

async fn finish(server: Server) {
    server.finish().await;
}

#[tokio::test]
async fn packets_may_be_cut_anywhere() {
    let whole = "déjà vu \u{1f600} \u{2028} \"quoted\" \\ end";
    for model in [ANTHROPIC, OPENAI] {
        for shape in [Reply::byte_by_byte as fn(Reply) -> Reply, Reply::in_one_write] {
            let reply = Reply::new().text([whole, whole]).tool_call("c1", "ls", &json!({ "path": "/nowhere" }));
            let fake = FakeProvider::start().await;
            let home = Home::new(&fake);
            fake.script([shape(reply), Reply::say("done")]);
            let mut server = home.dreb().model(model).start();
            let lines = server.run("go").await;
            let answer = messages(&lines, "assistant")[0];
            assert_eq!(text(answer), format!("{whole}{whole}"), "{model}");
            assert_eq!(answer["content"][1]["arguments"], json!({ "path": "/nowhere" }));
            server.finish().await;
        }
    }
}

#[tokio::test]
async fn event_streams_are_read_by_their_standard() {
    // Comments, unknown events, other fields, CR LF and data in several lines.
    let odd = concat!(
        ": comment\n\n",
        "event: news\ndata: {\"type\":\"news\",\"x\":1}\n\n",
        "id: 7\nretry: 100\nevent: content_block_delta\r\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\r\n",
        "data: \"delta\":{\"type\":\"text_delta\",\"text\":\"b\"}}\r\n\r\n",
    );
    let reply = Reply::new().text_start().text_deltas(["a"]).ping().sse(odd).text_deltas(["c"]).end_block();
    let lines = through(ANTHROPIC, reply).await;
    assert_eq!(text(messages(&lines, "assistant")[0]), "abc");
    let odd = concat!(
        ": OPENROUTER PROCESSING\n\n",
        "data:{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\r\n",
        "data: \"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":null}]}\r\n\r\n",
    );
    let reply = Reply::new().text_start().text_deltas(["a"]).sse(odd).text_deltas(["c"]).end_block();
    let lines = through(OPENAI, reply).await;
    assert_eq!(text(messages(&lines, "assistant")[0]), "abc");
}

#[tokio::test]
async fn a_malformed_chunk_does_not_end_the_server() {
    for (model, junk) in [
        (ANTHROPIC, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"del\n\n"),
        (OPENAI, "data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"ind\n\n"),
    ] {
        let fake = FakeProvider::start().await;
        let home = Home::new(&fake);
        home.settings(&json!({ "retry": { "enabled": false } }));
        fake.push(Reply::new().text_start().text_deltas(["a"]).sse(junk).text_deltas(["b"]).end_block());
        let mut server = home.dreb().model(model).start();
        let lines = server.run("go").await;
        // One answer that either lacks the chunk or names the fault, and holds what came before it.
        let ends = messages(&lines, "assistant");
        assert_eq!(ends.len(), 1);
        match ends[0]["stopReason"].as_str() {
            Some("stop") => assert_eq!(text(ends[0]), "ab"),
            Some("error") => {
                assert_eq!(text(ends[0]), "a");
                assert!(ends[0]["errorMessage"].as_str().is_some_and(|error| !error.is_empty()));
            }
            other => panic!("{other:?}"),
        }
        fake.push(Reply::say("well again"));
        let lines = server.run("next").await;
        assert_eq!(text(messages(&lines, "assistant")[0]), "well again");
        server.finish().await;
    }
}

#[tokio::test]
async fn interleaved_calls_and_calls_without_ids_keep_their_arguments() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("a.txt", "alpha");
    home.file("b.txt", "beta");
    let chunk = |calls: Value| {
        let choice = json!({ "index": 0, "delta": { "tool_calls": calls }, "finish_reason": null });
        format!("data: {}\n\n", json!({ "id": "chatcmpl-1", "choices": [choice] }))
    };
    let begin =
        |index: u32| json!({ "index": index, "type": "function", "function": { "name": "read", "arguments": "" } });
    let more = |index: u32, text: &str| json!({ "index": index, "function": { "arguments": text } });
    let interleaved = [
        chunk(json!([begin(0)])),
        chunk(json!([begin(1)])),
        chunk(json!([more(0, "{\"path\":")])),
        chunk(json!([more(1, "{\"path\":"), more(0, "\"a.txt\"}")])),
        chunk(json!([more(1, "\"b.txt\"}")])),
    ];
    fake.script([Reply::new().sse(interleaved.concat()).stop_reason("tool_calls"), Reply::say("done")]);
    let mut server = home.dreb().model(OPENAI).start();
    let lines = server.run("go").await;
    let results: Vec<_> = messages(&lines, "toolResult").into_iter().map(text).collect();
    assert_eq!(results, ["alpha", "beta"]);
    let calls = messages(&lines, "assistant")[0]["content"].as_array().unwrap();
    let ids: Vec<_> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(ids[0] != ids[1] && ids.iter().all(|id| !id.is_empty()), "{ids:?}");
    let request = fake.request(2).await;
    let sent = request.body["messages"].as_array().unwrap();
    let answered: Vec<_> = sent.iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!((&answered[0]["tool_call_id"], &answered[0]["content"]), (&json!(ids[0]), &json!("alpha")));
    assert_eq!((&answered[1]["tool_call_id"], &answered[1]["content"]), (&json!(ids[1]), &json!("beta")));
    server.finish().await;
}

#[tokio::test]
async fn arguments_that_were_cut_off_are_completed() {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    home.file("tru", "cut");
    fake.script([Reply::new().tool_call_in("c1", "read", ["{\"path\": \"tru"]), Reply::say("done")]);
    let mut server = home.dreb().start();
    let lines = server.run("go").await;
    assert_eq!(event(&lines, "tool_execution_start")["args"], json!({ "path": "tru" }));
    assert_eq!(text(messages(&lines, "toolResult")[0]), "cut");
    server.finish().await;
}
