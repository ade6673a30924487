//! Running the tool calls of one answer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt as _, StreamExt as _};
use protocol_schema::event::{Event, MessageStart, ToolExecutionEnd, ToolExecutionStart, ToolResult};
use protocol_schema::{AgentMessage, ContentBlock, Extra, ToolCall, ToolResultMessage};
use serde_json::{Map, Value};

use super::AgentSession;
use super::run::RunSettings;
use super::sink::{EventSink, ToolUpdate};
use crate::tools::{ProgressSink, ToolContext, ToolError, ToolOutput, ToolProgress};

/// How long an aborted tool may take to stop by itself before it is dropped.
const ABORT_GRACE: Duration = Duration::from_millis(1500);

/// What the tool calls of one answer came to.
#[derive(Debug, Default)]
pub(super) struct Executed {
    /// Results in the order the model sees them: calls refused at once, then the others in call order.
    pub(super) results: Vec<ToolResultMessage>,
    /// Whether a tool ends the turn without another answer.
    pub(super) end_turn: bool,
}

impl AgentSession {
    /// Runs the calls, all at the same time, and tells and stores their results in call order.
    pub(super) async fn execute(&self, run: &RunSettings, calls: Vec<ToolCall>) -> Executed {
        let mut executed = Executed::default();
        let mut running = FuturesOrdered::new();
        for call in calls {
            self.tell(Event::ToolExecutionStart(ToolExecutionStart {
                kind: Default::default(),
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                args: call.arguments.clone(),
                extra: Extra::new(),
            }))
            .await;
            match self.prepare(run, &call).await {
                Ok(work) => running.push_back(async move { (call, work.await) }),
                Err(error) => self.finish_call(call, Err(error), &mut executed).await,
            }
        }
        while let Some((call, outcome)) = running.next().await {
            self.finish_call(call, outcome, &mut executed).await;
        }
        executed
    }

    /// Looks the tool up and checks the arguments; the result is the work, not begun.
    async fn prepare(
        &self,
        run: &RunSettings,
        call: &ToolCall,
    ) -> Result<BoxFuture<'static, Result<ToolOutput, ToolError>>, ToolError> {
        let Some(tool) = run.tools.iter().find(|tool| tool.tool.definition().name == call.name).cloned() else {
            return Err(ToolError::new(format!("Tool {} not found", call.name)));
        };
        let arguments = tool.check(&call.name, &call.arguments).map_err(ToolError)?;
        let context = ToolContext {
            cwd: self.cwd().to_path_buf(),
            cancel: run.cancel.clone(),
            progress: Arc::new(Progress {
                sink: self.sink_handle(),
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                args: call.arguments.clone(),
            }),
            settings: Arc::clone(&run.tool_settings),
        };
        let cancel = run.cancel.clone();
        let name = call.name.clone();
        Ok(async move {
            let work = AssertUnwindSafe(tool.tool.execute(arguments, context)).catch_unwind();
            tokio::select! {
                biased;
                outcome = work => outcome.unwrap_or_else(|_| {
                    Err(ToolError::new(format!("Tool {name} failed unexpectedly. This is a fault of the server; its log has more.")))
                }),
                () = async {
                    cancel.cancelled().await;
                    tokio::time::sleep(ABORT_GRACE).await;
                } => Err(ToolError::new("Operation aborted")),
            }
        }
        .boxed())
    }

    async fn finish_call(&self, call: ToolCall, outcome: Result<ToolOutput, ToolError>, executed: &mut Executed) {
        let is_error = outcome.is_err();
        let output = outcome.unwrap_or_else(|error| ToolOutput {
            content: vec![ContentBlock::text(error.0)],
            details: Some(Value::Object(Map::new())),
            end_turn: false,
        });
        executed.end_turn |= output.end_turn;
        let result = ToolResult {
            content: output.content.clone(),
            details: output.details.clone(),
            end_turn: output.end_turn.then_some(true),
            extra: Extra::new(),
        };
        self.tell(Event::ToolExecutionEnd(ToolExecutionEnd {
            kind: Default::default(),
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            result,
            is_error,
            extra: Extra::new(),
        }))
        .await;
        let message =
            ToolResultMessage::new(call.id, call.name, output.content, output.details, is_error, super::now_ms());
        self.tell(Event::MessageStart(MessageStart {
            kind: Default::default(),
            message: AgentMessage::ToolResult(message.clone()),
            extra: Extra::new(),
        }))
        .await;
        self.finish_message(AgentMessage::ToolResult(message.clone())).await;
        executed.results.push(message);
    }
}

/// Progress of one call on its way to the client.
struct Progress {
    sink: Arc<dyn EventSink>,
    tool_call_id: String,
    tool_name: String,
    args: Map<String, Value>,
}

impl ProgressSink for Progress {
    fn report(&self, progress: ToolProgress) -> BoxFuture<'_, ()> {
        async move {
            self.sink.ready().await;
            self.sink.emit_tool_update(&ToolUpdate {
                tool_call_id: &self.tool_call_id,
                tool_name: &self.tool_name,
                args: &self.args,
                progress: &progress,
            });
        }
        .boxed()
    }
}
