//! Playing a script.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol_schema::message::Cost;
use protocol_schema::{AgentMessage, Content, ContentBlock, StopReason, ToolResultMessage, Usage};
use tokio::sync::mpsc;

use super::format::{AtEnd, Expect, ResultMatch, Script, ScriptedError, Step, StepPace, Turn, UsageNumbers};
use crate::llm::{ProviderError, ProviderErrorKind, ProviderRequest, StreamEvent};

/// Characters per delta unless the script says otherwise.
const DEFAULT_CHUNK: usize = 16;

/// Bytes that count as one token in estimates.
const BYTES_PER_TOKEN: usize = 4;

/// Tokens that an image counts in estimates.
const IMAGE_TOKENS: usize = 1200;

/// Longest piece of a request that an error quotes, in characters.
const QUOTE: usize = 200;

/// A script and how far it is.
#[derive(Debug)]
pub(super) struct Player {
    path: String,
    script: Script,
    place: Mutex<Place>,
    calls: AtomicU64,
}

/// How many turns are used.
#[derive(Debug)]
struct Place {
    turns: usize,
    replies: Vec<usize>,
}

/// Which list a turn comes from.
#[derive(Debug, Clone, Copy)]
enum List {
    Turns,
    Reply(usize),
}

impl Player {
    pub(super) fn new(path: String, script: Script) -> Self {
        let place = Mutex::new(Place { turns: 0, replies: vec![0; script.replies.len()] });
        Self { path, script, place, calls: AtomicU64::new(0) }
    }

    /// Answers a request with the turn that is due.
    pub(super) async fn play(
        &self,
        request: &ProviderRequest,
        events: &mpsc::Sender<StreamEvent>,
    ) -> Result<StopReason, ProviderError> {
        let turn = self.take_turn(request).map_err(ProviderError::other)?;
        let stage = Stage {
            events,
            chunk: turn.chunk.or(self.script.chunk).unwrap_or(DEFAULT_CHUNK),
            delay_ms: turn.delay_ms.or(self.script.delay_ms).unwrap_or(0),
        };
        let opens = !matches!(turn.steps.first(), Some(Step::Error(_)));
        if opens {
            stage.send(StreamEvent::Opened).await?;
            if let Some(id) = &turn.response_id {
                stage.send(StreamEvent::ResponseId(id.clone())).await?;
            }
        }
        let mut index = 0;
        let mut length = 0;
        let mut calls_tools = false;
        for step in &turn.steps {
            match step {
                Step::Text { text, signature, pace } => {
                    stage.send(StreamEvent::TextStart { index }).await?;
                    stage.deltas(text, *pace, |delta| StreamEvent::TextDelta { index, delta }).await?;
                    stage.send(StreamEvent::TextEnd { index, text: None, signature: signature.clone() }).await?;
                    length += text.len();
                    index += 1;
                }
                Step::Thinking { text, signature, pace } => {
                    stage.send(StreamEvent::ThinkingStart { index, signature: None }).await?;
                    stage.deltas(text, *pace, |delta| StreamEvent::ThinkingDelta { index, delta }).await?;
                    stage.send(StreamEvent::ThinkingEnd { index, text: None, signature: signature.clone() }).await?;
                    length += text.len();
                    index += 1;
                }
                Step::RedactedThinking(data) => {
                    stage.send(StreamEvent::ThinkingRedacted { index, data: data.clone() }).await?;
                    length += data.len();
                    index += 1;
                }
                Step::ToolCall { name, arguments, id, pace } => {
                    let id = id.clone().unwrap_or_else(|| self.call_id());
                    stage.send(StreamEvent::ToolCallStart { index, id, name: name.clone() }).await?;
                    stage.deltas(arguments, *pace, |delta| StreamEvent::ToolCallDelta { index, delta }).await?;
                    let end = StreamEvent::ToolCallEnd { index, arguments: None, thought_signature: None };
                    stage.send(end).await?;
                    length += name.len() + arguments.len();
                    calls_tools = true;
                    index += 1;
                }
                Step::Wait(milliseconds) => tokio::time::sleep(Duration::from_millis(*milliseconds)).await,
                Step::Usage(numbers) => {
                    stage.send(StreamEvent::Usage(usage(request, numbers, length))).await?;
                }
                Step::Error(error) => return Err(failure(error)),
                Step::Drop(message) => {
                    return Err(ProviderError { message: message.clone(), kind: ProviderErrorKind::Dropped });
                }
            }
        }
        let said_usage = turn.steps.iter().any(|step| matches!(step, Step::Usage(_)));
        if !said_usage || turn.usage != UsageNumbers::default() {
            stage.send(StreamEvent::Usage(usage(request, &turn.usage, length))).await?;
        }
        let reason = if calls_tools { StopReason::ToolUse } else { StopReason::Stop };
        Ok(turn.stop_reason.clone().unwrap_or(reason))
    }

    fn call_id(&self) -> String {
        format!("scripted_{}", self.calls.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The turn for this request; the place moves on only if the request is what the turn expects.
    fn take_turn(&self, request: &ProviderRequest) -> Result<&Turn, String> {
        let last_user = last_user(&request.messages);
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let (list, turns, used) = self.due(&place, &last_user)?;
        let number = used % turns.len();
        let turn = &turns[number];
        if let Some(expect) = &turn.expect {
            check(expect, request, &last_user).map_err(|problem| {
                let name = match list {
                    List::Turns => format!("turn {}", number + 1),
                    List::Reply(reply) => format!("reply {}, turn {}", reply + 1, number + 1),
                };
                format!("The script {} did not get what it expects ({name}): {problem}", self.path)
            })?;
        }
        match list {
            List::Turns => place.turns += 1,
            List::Reply(reply) => place.replies[reply] += 1,
        }
        Ok(turn)
    }

    fn due(&self, place: &Place, last_user: &str) -> Result<(List, &[Turn], usize), String> {
        for (number, reply) in self.script.replies.iter().enumerate() {
            let used = place.replies[number];
            if (reply.repeat || used < reply.turns.len()) && reply.when.matches(last_user) {
                return Ok((List::Reply(number), &reply.turns, used));
            }
        }
        let turns = &self.script.turns;
        if turns.is_empty() {
            return Err(format!("The script {} has no reply to {}", self.path, quoted(last_user)));
        }
        if place.turns >= turns.len() && self.script.at_end == AtEnd::Error {
            return Err(format!(
                "The script {} is at its end: all of its turns ({}) are used; the last user message is {}",
                self.path,
                turns.len(),
                quoted(last_user)
            ));
        }
        Ok((List::Turns, turns, place.turns))
    }
}

/// Where a turn's events go, and how fast.
struct Stage<'a> {
    events: &'a mpsc::Sender<StreamEvent>,
    chunk: usize,
    delay_ms: u64,
}

impl Stage<'_> {
    async fn send(&self, event: StreamEvent) -> Result<(), ProviderError> {
        let closed = |_| ProviderError::other("nobody reads the scripted answer any more");
        self.events.send(event).await.map_err(closed)
    }

    async fn deltas(
        &self,
        text: &str,
        pace: StepPace,
        event: impl Fn(String) -> StreamEvent,
    ) -> Result<(), ProviderError> {
        let chunk = pace.chunk.unwrap_or(self.chunk);
        let delay = Duration::from_millis(pace.delay_ms.unwrap_or(self.delay_ms));
        let mut rest = text;
        while !rest.is_empty() {
            let length = match chunk {
                0 => rest.len(),
                _ => rest.char_indices().nth(chunk).map_or(rest.len(), |(at, _)| at),
            };
            let (delta, after) = rest.split_at(length);
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            self.send(event(delta.to_owned())).await?;
            rest = after;
        }
        Ok(())
    }
}

fn failure(error: &ScriptedError) -> ProviderError {
    let kind = error.status.map_or(ProviderErrorKind::Other, |status| ProviderErrorKind::Http {
        status,
        retry_after: error.retry_after_ms.map(Duration::from_millis),
    });
    ProviderError { message: error.message.clone(), kind }
}

/// The script's numbers; what it leaves out is estimated from the lengths of the texts, and priced
/// by the model.
fn usage(request: &ProviderRequest, numbers: &UsageNumbers, length: usize) -> Usage {
    let input = numbers.input.unwrap_or_else(|| estimated_input(request));
    let output = numbers.output.unwrap_or_else(|| tokens(length));
    let cache_read = numbers.cache_read.unwrap_or(0);
    let cache_write = numbers.cache_write.unwrap_or(0);
    let cost = match &numbers.cost {
        Some(cost) => cost.0,
        None => {
            let prices = &request.model.cost;
            let dollars = |price: f64, tokens: u64| price / 1_000_000.0 * tokens as f64;
            let parts = [
                dollars(prices.input.0, input),
                dollars(prices.output.0, output),
                dollars(prices.cache_read.0, cache_read),
                dollars(prices.cache_write.0, cache_write),
            ];
            let [input, output, cache_read, cache_write] = parts.map(Into::into);
            Cost { input, output, cache_read, cache_write, total: parts.iter().sum::<f64>().into() }
        }
    };
    let total_tokens = Some(input.saturating_add(output).saturating_add(cache_read).saturating_add(cache_write));
    Usage { input, output, cache_read, cache_write, total_tokens, cost, ..Usage::default() }
}

fn tokens(length: usize) -> u64 {
    length.div_ceil(BYTES_PER_TOKEN) as u64
}

fn estimated_input(request: &ProviderRequest) -> u64 {
    let blocks = |blocks: &[ContentBlock]| blocks.iter().map(block_length).sum();
    let messages = request.messages.iter().map(|message| match message {
        AgentMessage::User(user) => match &user.content {
            Content::Text(text) => text.len(),
            Content::Blocks(content) => blocks(content),
        },
        AgentMessage::Assistant(answer) => blocks(&answer.content),
        AgentMessage::ToolResult(result) => blocks(&result.content),
        _ => 0,
    });
    tokens(request.system_prompt.len() + messages.sum::<usize>())
}

fn block_length(block: &ContentBlock) -> usize {
    match block {
        ContentBlock::Text(text) => text.text.len(),
        ContentBlock::Thinking(thinking) => thinking.thinking.len(),
        ContentBlock::Image(_) => IMAGE_TOKENS * BYTES_PER_TOKEN,
        ContentBlock::ToolCall(call) => {
            let mut length = Length(call.name.len());
            // The writer never fails.
            let _ = serde_json::to_writer(&mut length, &call.arguments);
            length.0
        }
        _ => 0,
    }
}

/// Counts what is written.
struct Length(usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn last_user(messages: &[AgentMessage]) -> String {
    let last = messages.iter().rev().find_map(|message| match message {
        AgentMessage::User(user) => Some(user.content.joined_text("\n")),
        _ => None,
    });
    last.unwrap_or_default()
}

fn check(expect: &Expect, request: &ProviderRequest, last_user: &str) -> Result<(), String> {
    if let Some(wish) = &expect.last_user
        && !wish.matches(last_user)
    {
        return Err(format!("no user message that {wish}; the last one is {}", quoted(last_user)));
    }
    if let Some(wish) = &expect.system_prompt
        && !wish.matches(&request.system_prompt)
    {
        return Err(format!("no system prompt that {wish}"));
    }
    if let Some(missing) = expect.tools.iter().find(|name| !request.tools.iter().any(|tool| tool.name == **name)) {
        return Err(format!("the tool {missing:?} is not on offer"));
    }
    if let Some(level) = &expect.thinking
        && *level != request.thinking
    {
        return Err(format!("the thinking level is {}, not {level}", request.thinking));
    }
    if let Some(count) = expect.messages
        && count != request.messages.len()
    {
        return Err(format!("the request has {} messages, not {count}", request.messages.len()));
    }
    let results: Vec<&ToolResultMessage> = request
        .messages
        .iter()
        .rev()
        .take_while(|message| !matches!(message, AgentMessage::Assistant(_)))
        .filter_map(|message| match message {
            AgentMessage::ToolResult(result) => Some(result),
            _ => None,
        })
        .collect();
    for wish in &expect.tool_result {
        if !results.iter().any(|result| is_match(wish, result)) {
            return Err(no_result(wish, &results));
        }
    }
    Ok(())
}

fn text_of(result: &ToolResultMessage) -> String {
    let texts = result.content.iter().filter_map(ContentBlock::as_text);
    texts.collect::<Vec<_>>().join("\n")
}

fn is_match(wish: &ResultMatch, result: &ToolResultMessage) -> bool {
    wish.tool.as_ref().is_none_or(|tool| *tool == result.tool_name)
        && wish.is_error.is_none_or(|is_error| is_error == result.is_error)
        && wish.text.as_ref().is_none_or(|text| text.matches(&text_of(result)))
}

fn no_result(wish: &ResultMatch, results: &[&ToolResultMessage]) -> String {
    let mut text = "no tool result".to_owned();
    // Writing to a string never fails.
    if let Some(tool) = &wish.tool {
        let _ = write!(text, " of {tool:?}");
    }
    match wish.is_error {
        Some(true) => text.push_str(" with a failure"),
        Some(false) => text.push_str(" with success"),
        None => {}
    }
    if let Some(wish) = &wish.text {
        let _ = write!(text, " that {wish}");
    }
    if results.is_empty() {
        text.push_str("; none came back");
    }
    for result in results.iter().rev() {
        let outcome = if result.is_error { "failed with" } else { "gave" };
        let _ = write!(text, "; {} {outcome} {}", result.tool_name, quoted(&text_of(result)));
    }
    text
}

/// The beginning of a text in quotes.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTE) {
        Some((at, _)) => format!("{:?}...", &text[..at]),
        None => format!("{text:?}"),
    }
}
