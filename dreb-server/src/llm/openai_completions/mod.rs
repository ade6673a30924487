//! The API `openai-completions`: chat completions, as OpenAI and the many that follow it speak it.

mod compat;
mod messages;
mod request;
mod stream;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use protocol_schema::StopReason;
use serde_json::Value;
use tokio::sync::mpsc;

use super::http::HttpClient;
use super::sink::Sink;
use super::{Provider, ProviderError, ProviderRequest, StreamEvent};
use stream::Reader;

/// Name of the API.
pub const API: &str = "openai-completions";

/// The API `openai-completions`.
#[derive(Debug, Clone)]
pub struct OpenAiCompletions {
    http: HttpClient,
}

impl OpenAiCompletions {
    /// A provider that sends with this client.
    #[must_use]
    pub fn new(http: HttpClient) -> Self {
        Self { http }
    }
}

impl Provider for OpenAiCompletions {
    fn api(&self) -> &'static str {
        API
    }

    fn stream(
        &self,
        request: ProviderRequest,
        events: mpsc::Sender<StreamEvent>,
    ) -> BoxFuture<'static, Result<StopReason, ProviderError>> {
        let http = self.http.clone();
        async move {
            let prices = request.model.cost;
            let mut stream = http.post(request::post(request)?).await?;
            let mut sink = Sink::new(events);
            let mut reader = Reader::new(prices);
            let mut is_open = false;
            while let Some(event) = stream.next().await? {
                if !std::mem::replace(&mut is_open, true) {
                    sink.send([StreamEvent::Opened]).await?;
                }
                let data = event.data.trim();
                if data == "[DONE]" {
                    break;
                }
                if event.name == "error" {
                    return Err(stream.error(data));
                }
                if data.is_empty() {
                    continue;
                }
                let chunk: Value = serde_json::from_str(&protocol_schema::mend_surrogates(data))
                    .map_err(|error| stream.malformed(&event, &error))?;
                if chunk.get("error").is_some_and(|error| !error.is_null()) {
                    return Err(stream.error(data));
                }
                sink.send(reader.take(&chunk)).await?;
                if reader.has_finish_reason() {
                    stream.expect_end();
                }
            }
            if reader.has_finish_reason() {
                sink.send(reader.close()).await?;
            }
            reader.stop_reason()
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
