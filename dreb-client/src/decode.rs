//! Reads one line of the server: what it is, and what it says.

use bytes::Bytes;
use protocol_schema::event::{
    MessageUpdate, TextDelta, TextEnd, TextStart, ThinkingDelta, ThinkingEnd, ThinkingStart, ToolCallDelta,
    ToolCallEnd, ToolCallStart,
};
use protocol_schema::{AssistantMessageEvent as Sub, Event, ToolCall, Usage, mend_surrogates};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::options::EventDetail;
use crate::pending::RequestId;

/// From this length on, in bytes, decoding is moved off the runtime's threads.
pub(crate) const LARGE: usize = 1 << 20;

/// A line of the server.
#[derive(Debug)]
pub(crate) enum Incoming {
    Response {
        id: RequestId,
        answer: Answer,
    },
    /// `bytes` is about the room the event takes.
    Event {
        event: Box<Event>,
        bytes: usize,
    },
    Malformed {
        error: String,
    },
}

/// What a response says.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Success; the raw `data`, if there is any.
    Data(Option<Bytes>),
    /// The server's error text.
    Failed(String),
    Malformed(String),
}

/// The members of a response; all raw, for an event may use the same names for other things.
#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    success: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Decodes a line that is not empty.
pub(crate) fn decode(line: &Bytes, detail: EventDetail) -> Incoming {
    let text = match std::str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => return malformed(error),
    };
    match leading_type(text) {
        Some("response") => match serde_json::from_str(text) {
            Ok(frame) => response(line, &frame),
            Err(error) => malformed(error),
        },
        Some(kind) => event(text, kind, detail),
        // Servers put a response's `id` first, and JSON allows any order.
        None => match serde_json::from_str::<Frame<'_>>(text) {
            Err(error) => malformed(error),
            Ok(frame) => match frame.kind.and_then(|kind| serde_json::from_str::<String>(kind.get()).ok()).as_deref() {
                Some("response") => response(line, &frame),
                Some(kind) => event(text, kind, detail),
                None => malformed("an object without a `type`"),
            },
        },
    }
}

/// The `type` of an object that begins with it, which nearly every line does.
fn leading_type(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("{\"type\":\"")?;
    let end = rest.find(['"', '\\'])?;
    (rest.as_bytes()[end] == b'"').then(|| &rest[..end])
}

fn malformed(error: impl ToString) -> Incoming {
    Incoming::Malformed { error: error.to_string() }
}

fn response(line: &Bytes, frame: &Frame<'_>) -> Incoming {
    let error =
        || frame.error.map(|error| serde_json::from_str(error.get()).unwrap_or_else(|_| error.get().to_owned()));
    let Some(id) = frame.id else {
        return malformed(match error() {
            Some(error) => format!("a response without an id: {error}"),
            None => "a response without an id".to_owned(),
        });
    };
    let Some(id) = serde_json::from_str::<String>(id.get()).ok().and_then(|id| RequestId::parse(&id)) else {
        return malformed("a response to no request of this client");
    };
    let answer = match frame.success.map(RawValue::get) {
        Some("true") => Answer::Data(frame.data.map(|data| line.slice_ref(data.get().as_bytes()))),
        Some("false") => Answer::Failed(error().unwrap_or_else(|| "no reason given".to_owned())),
        _ => Answer::Malformed("`success` is not a boolean".to_owned()),
    };
    Incoming::Response { id, answer }
}

fn event(text: &str, kind: &str, detail: EventDetail) -> Incoming {
    let once = |text: &str| {
        if kind == "message_update" && detail == EventDetail::Delta {
            lean_update(text).map(|(update, bytes)| (Event::MessageUpdate(update), bytes))
        } else {
            Event::from_json(text).map(|event| (event, EVENT_ROOM + text.len()))
        }
    };
    match mended(text, once) {
        Ok((event, bytes)) => Incoming::Event { event: Box::new(event), bytes },
        Err(error) => malformed(error),
    }
}

/// Reads JSON text; text that fails because of half a surrogate pair, which some servers write as
/// an escape, is read with a replacement character instead.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    mended(text, |text| serde_json::from_str(text))
}

fn mended<T>(text: &str, read: impl Fn(&str) -> Result<T, serde_json::Error>) -> Result<T, serde_json::Error> {
    read(text).or_else(|error| match mend_surrogates(text) {
        std::borrow::Cow::Owned(text) => read(&text),
        std::borrow::Cow::Borrowed(_) => Err(error),
    })
}

/// Room that an event takes beside its text, in bytes: without it, short lines would fill the memory
/// long before they fill a budget.
pub(crate) const EVENT_ROOM: usize = 512;

/// Reads an update without its copies of the whole message: those are skipped, not decoded. The
/// second value is about how many bytes the result takes.
fn lean_update(text: &str) -> Result<(MessageUpdate, usize), serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Update<'a> {
        #[serde(borrow)]
        assistant_message_event: &'a RawValue,
        #[serde(borrow, default)]
        message: Option<&'a RawValue>,
        #[serde(default)]
        usage: Option<Usage>,
    }
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        usage: Option<Usage>,
    }
    let update: Update<'_> = serde_json::from_str(text)?;
    let usage = match (update.usage, update.message) {
        (None, Some(message)) => serde_json::from_str::<Message>(message.get())?.usage,
        (usage, _) => usage,
    };
    let (assistant_message_event, length) = lean_sub_event(update.assistant_message_event.get())?;
    let update = MessageUpdate { kind: Default::default(), assistant_message_event, message: None, usage };
    Ok((update, EVENT_ROOM + length))
}

fn lean_sub_event(text: &str) -> Result<(Sub, usize), serde_json::Error> {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "type")]
        kind: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Delta {
        content_index: usize,
        delta: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct End {
        content_index: usize,
        content: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Start<'a> {
        content_index: usize,
        #[serde(default)]
        id: Option<String>,
        #[serde(default)]
        tool_name: Option<String>,
        #[serde(borrow, default)]
        partial: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct CallEnd {
        content_index: usize,
        tool_call: ToolCall,
    }
    let whole;
    let kind = match leading_type(text) {
        Some(kind) => kind,
        None => {
            whole = serde_json::from_str::<Kind>(text)?.kind;
            &whole
        }
    };
    macro_rules! delta {
        ($event:ident, $variant:ident) => {{
            let Delta { content_index, delta } = serde_json::from_str(text)?;
            let length = delta.len();
            (Sub::$variant($event { kind: Default::default(), content_index, delta, partial: None }), length)
        }};
    }
    macro_rules! end {
        ($event:ident, $variant:ident) => {{
            let End { content_index, content } = serde_json::from_str(text)?;
            let length = content.len();
            (Sub::$variant($event { kind: Default::default(), content_index, content, partial: None }), length)
        }};
    }
    macro_rules! start {
        ($event:ident, $variant:ident) => {{
            let Start { content_index, .. } = serde_json::from_str(text)?;
            (Sub::$variant($event { kind: Default::default(), content_index, partial: None }), 0)
        }};
    }
    Ok(match kind {
        "text_delta" => delta!(TextDelta, TextDelta),
        "thinking_delta" => delta!(ThinkingDelta, ThinkingDelta),
        "toolcall_delta" => delta!(ToolCallDelta, ToolCallDelta),
        "text_end" => end!(TextEnd, TextEnd),
        "thinking_end" => end!(ThinkingEnd, ThinkingEnd),
        "text_start" => start!(TextStart, TextStart),
        "thinking_start" => start!(ThinkingStart, ThinkingStart),
        "toolcall_start" => {
            let Start { content_index, mut id, mut tool_name, partial } = serde_json::from_str(text)?;
            if let (None, Some(partial)) = (&id, partial)
                && let Some((call_id, name)) = call_in(partial.get(), content_index)
            {
                id = Some(call_id);
                tool_name = Some(name);
            }
            let kind = Default::default();
            (Sub::ToolCallStart(ToolCallStart { kind, content_index, id, tool_name, partial: None }), 0)
        }
        "toolcall_end" => {
            let CallEnd { content_index, tool_call } = serde_json::from_str(text)?;
            (
                Sub::ToolCallEnd(ToolCallEnd { kind: Default::default(), content_index, tool_call, partial: None }),
                text.len(),
            )
        }
        _ => (Sub::from_json(text)?, text.len()),
    })
}

/// Id and name of the call in one block of a message.
fn call_in(message: &str, index: usize) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        content: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Call {
        id: String,
        name: String,
    }
    let message: Message<'_> = serde_json::from_str(message).ok()?;
    let call: Call = serde_json::from_str(message.content.get(index)?.get()).ok()?;
    Some((call.id, call.name))
}

/// The message in an update, if it carries one.
pub(crate) fn whole_message(line: &Bytes) -> Option<protocol_schema::AssistantMessage> {
    #[derive(Deserialize)]
    struct Update {
        message: protocol_schema::AssistantMessage,
    }
    from_json::<Update>(std::str::from_utf8(line).ok()?).ok().map(|update| update.message)
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Incoming {
        decode(&Bytes::copy_from_slice(text.as_bytes()), EventDetail::Delta)
    }

    fn error(text: &str) -> String {
        match read(text) {
            Incoming::Malformed { error } => error,
            other => panic!("{other:?}"),
        }
    }

    fn read_event(text: &str, detail: EventDetail) -> Event {
        match decode(&Bytes::copy_from_slice(text.as_bytes()), detail) {
            Incoming::Event { event, .. } => *event,
            other => panic!("{other:?}"),
        }
    }

    fn answer(text: &str) -> (String, Answer) {
        match read(text) {
            Incoming::Response { id, answer } => (id.to_string(), answer),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn responses_are_read_with_the_type_anywhere() {
        for text in [
            r#"{"id":"req-3","type":"response","command":"c","success":true,"data":{"a":1}}"#,
            r#"{"type":"response","id":"req-3","command":"c","success":true,"data":{"a":1}}"#,
            r#"{"data":{"a":1},"success":true,"command":"c","id":"req-3","type":"response"}"#,
        ] {
            let (id, answer) = answer(text);
            assert_eq!(id, "req-3");
            assert!(matches!(answer, Answer::Data(Some(data)) if data == r#"{"a":1}"#), "{text}");
        }
        assert!(matches!(answer(r#"{"id":"req-1","type":"response","success":true}"#).1, Answer::Data(None)));
        let failed = answer(r#"{"id":"req-1","type":"response","success":false,"error":"no \"key\""}"#).1;
        assert!(matches!(failed, Answer::Failed(text) if text == "no \"key\""));
        let failed = answer(r#"{"id":"req-1","type":"response","success":false,"error":{"code":5}}"#).1;
        assert!(matches!(failed, Answer::Failed(text) if text == r#"{"code":5}"#));
        let odd = answer(r#"{"id":"req-1","type":"response","success":"yes"}"#).1;
        assert!(matches!(odd, Answer::Malformed(text) if text == "`success` is not a boolean"));
    }

    #[test]
    fn what_is_no_message_is_reported() {
        assert_eq!(
            error(r#"{"type":"response","command":"parse","success":false,"error":"Failed"}"#),
            "a response without an id: Failed"
        );
        for id in ["5", "\"other\"", "{}"] {
            let text = format!(r#"{{"id":{id},"type":"response","success":true}}"#);
            assert_eq!(error(&text), "a response to no request of this client");
        }
        for text in ["{}", r#"{"type":5}"#, r#"{"type":null}"#] {
            assert_eq!(error(text), "an object without a `type`", "{text}");
        }
        for text in ["42", "null", "[]", "Welcome!", r#"{"type":"agent_end","mess"#, r#"{"type":"agent_end"}"#] {
            assert!(!error(text).is_empty());
        }
        let bytes = Bytes::from_static(b"{\"type\":\"x\xff\"}");
        assert!(matches!(decode(&bytes, EventDetail::Delta), Incoming::Malformed { .. }));
    }

    #[test]
    fn unknown_events_are_kept_whole() {
        let text = r#"{"type":"extension_ui_request","id":"u1","method":"confirm","success":3}"#;
        let event = read_event(text, EventDetail::Delta);
        assert_eq!(serde_json::to_string(&event).unwrap(), text);
        let late = r#"{"id":"u1","success":{},"type":"some_new_thing"}"#;
        assert_eq!(serde_json::to_string(&read_event(late, EventDetail::Delta)).unwrap(), late);
    }

    #[test]
    fn full_updates_and_delta_updates_come_out_alike() {
        let usage = json!({"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}});
        let call = json!({"type": "toolCall", "id": "call_1", "name": "read", "arguments": {}});
        let message = json!({"role": "assistant", "content": [call], "api": "a", "provider": "p", "model": "m",
            "usage": usage, "stopReason": "stop", "timestamp": 1});
        for sub in [
            json!({"type": "text_start", "contentIndex": 0}),
            json!({"type": "text_delta", "contentIndex": 0, "delta": "x"}),
            json!({"type": "text_end", "contentIndex": 0, "content": "x"}),
            json!({"type": "thinking_start", "contentIndex": 0}),
            json!({"type": "thinking_delta", "contentIndex": 0, "delta": "x"}),
            json!({"type": "thinking_end", "contentIndex": 0, "content": "x"}),
            json!({"type": "toolcall_start", "contentIndex": 0, "id": "call_1", "toolName": "read"}),
            json!({"type": "toolcall_delta", "contentIndex": 0, "delta": "{"}),
            json!({"type": "toolcall_end", "contentIndex": 0, "toolCall": call}),
            json!({"type": "something_new", "contentIndex": 0}),
        ] {
            let delta = json!({"type": "message_update", "assistantMessageEvent": sub, "usage": usage});
            let mut sub = sub;
            if sub["type"] != "something_new" {
                sub["partial"] = message.clone();
            }
            sub.as_object_mut().unwrap().shift_remove("id");
            sub.as_object_mut().unwrap().shift_remove("toolName");
            let full = json!({"type": "message_update", "message": message, "assistantMessageEvent": sub});
            let expected = Event::from_json(&delta.to_string()).unwrap();
            assert_eq!(read_event(&delta.to_string(), EventDetail::Delta), expected);
            assert_eq!(read_event(&full.to_string(), EventDetail::Delta), expected);
            let kept = read_event(&full.to_string(), EventDetail::Full);
            assert_eq!(kept, Event::from_json(&full.to_string()).unwrap());
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_replaced() {
        let text = r#"{"type":"message_update","assistantMessageEvent":{"type":"text_delta","contentIndex":0,"delta":"a\ud83d"}}"#;
        assert_eq!(read_event(text, EventDetail::Delta).text_delta(), Some("a\u{fffd}"));
        assert_eq!(from_json::<String>(r#""\ude00b""#).unwrap(), "\u{fffd}b");
    }
}
