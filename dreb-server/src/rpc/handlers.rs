//! One arm a command.

use std::sync::Arc;

use protocol_schema::envelope::{RequestError, RequestFrame, ResponseOut};
use protocol_schema::queue::{ClearPendingMessages, GetPendingMessages};
use protocol_schema::session::{LastAssistantText, Version};
use protocol_schema::shell::AbortBash;
use protocol_schema::{
    Ack, AgentMessage, CAPABILITY_EVENT_DETAIL_DELTA, Extra, PROTOCOL_VERSION, Request, ResponseData,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::output::Output;
use super::sink::write_json;
use crate::agent::{AgentSession, CommandError};

/// Carries a command out and answers it with exactly one line.
pub(super) async fn handle(session: &AgentSession, output: &Output, frame: RequestFrame) {
    let RequestFrame { id, request } = frame;
    let reply = Reply { output, id: id.as_deref(), command: request.name() };
    match request {
        Request::Prompt(command) => match session.prompt(command).await {
            Ok(started) => {
                reply.success(Ack {});
                // The run's events come behind the answer.
                drop(started);
            }
            Err(error) => reply.failure(&error),
        },
        Request::Steer(command) => {
            session.steer(command);
            reply.success(Ack {});
        }
        Request::FollowUp(command) => {
            session.follow_up(command);
            reply.success(Ack {});
        }
        Request::Abort(_) => {
            session.abort().await;
            reply.success(Ack {});
        }
        Request::GetState(_) => reply.success(session.snapshot()),
        Request::GetMessages(_) => reply.data(MessagesOut { messages: &session.messages() }),
        Request::SetModel(command) => reply.result(session.set_model(command).await),
        Request::GetAvailableModels(_) => {
            reply.success(protocol_schema::model::AvailableModels { models: session.available_models().await });
        }
        Request::SetThinkingLevel(command) => reply.ack(session.set_thinking_level(command).await),
        Request::SetSteeringMode(command) => reply.ack(session.set_steering_mode(command).await),
        Request::SetFollowUpMode(command) => reply.ack(session.set_follow_up_mode(command).await),
        Request::GetPendingMessages(GetPendingMessages {}) => reply.success(session.pending_messages()),
        Request::ClearPendingMessages(ClearPendingMessages {}) => reply.success(session.clear_pending_messages()),
        Request::Bash(command) => reply.result(session.bash(command).await),
        Request::AbortBash(AbortBash {}) => {
            session.abort_bash();
            reply.success(Ack {});
        }
        Request::GetLastAssistantText(_) => {
            reply.success(LastAssistantText { text: session.last_assistant_text() });
        }
        Request::GetVersion(_) => reply.success(Version {
            version: crate::VERSION.to_owned(),
            protocol_version: Some(PROTOCOL_VERSION),
            capabilities: Some(vec![CAPABILITY_EVENT_DETAIL_DELTA.to_owned()]),
            extra: Extra::new(),
        }),
    }
}

/// Answers a line that is no command.
pub(super) fn refuse(output: &Output, error: &RequestError) {
    // An answer to a dialog that is not open, as one that has timed out, is dropped without a word.
    if error.command() == "extension_ui_response" {
        return;
    }
    let text = match error {
        RequestError::Fields { .. } => format!("Command failed: {error}"),
        _ => error.to_string(),
    };
    output.line(|out| write_json(out, &ResponseOut::failure(error.id(), error.command(), &text)));
}

/// Answers a `bash` command that is one too many.
pub(super) fn refuse_shell(output: &Output, frame: &RequestFrame) {
    let error = CommandError::Failed("Too many bash commands are waiting".to_owned());
    Reply { output, id: frame.id.as_deref(), command: frame.request.name() }.failure(&error);
}

/// Answers a line that could not even be read.
pub(super) fn refuse_unreadable(output: &Output, why: &str) {
    let text = format!("Failed to parse command: {why}");
    output.line(|out| write_json(out, &ResponseOut::failure(None, "parse", &text)));
}

/// `get_messages` without a copy of the conversation.
#[derive(Serialize)]
struct MessagesOut<'a> {
    messages: &'a [Arc<AgentMessage>],
}

/// Where the answer to one command goes.
struct Reply<'a> {
    output: &'a Output,
    id: Option<&'a RawValue>,
    command: &'static str,
}

impl Reply<'_> {
    fn success<T: ResponseData>(&self, data: T) {
        self.output.line(|out| write_json(out, &ResponseOut::success(self.id, self.command, data)));
    }

    /// Like [`success`](Self::success) for data that is borrowed.
    fn data(&self, data: impl Serialize) {
        let response = ResponseOut {
            id: self.id,
            kind: "response",
            command: self.command,
            success: true,
            data: Some(data),
            error: None,
        };
        self.output.line(|out| write_json(out, &response));
    }

    fn failure(&self, error: &CommandError) {
        let text = error.to_string();
        self.output.line(|out| write_json(out, &ResponseOut::failure(self.id, self.command, &text)));
    }

    fn result<T: ResponseData>(&self, result: Result<T, CommandError>) {
        match result {
            Ok(data) => self.success(data),
            Err(error) => self.failure(&error),
        }
    }

    fn ack(&self, result: Result<(), CommandError>) {
        self.result(result.map(|()| Ack {}));
    }
}
