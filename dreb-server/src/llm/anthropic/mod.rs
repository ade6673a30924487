//! The API `anthropic-messages`, as Anthropic and others speak it.

mod request;
mod stream;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use protocol_schema::StopReason;
use serde_json::Value;
use tokio::sync::mpsc;

use super::cache_retention::CacheRetention;
use super::http::{EventStream, HttpClient};
use super::sink::Sink;
use super::sse::Event;
use super::{Provider, ProviderError, ProviderRequest, StreamEvent};
use stream::Reader;

/// Name of the API.
pub const API: &str = "anthropic-messages";

/// The API `anthropic-messages`.
#[derive(Debug, Clone)]
pub struct AnthropicMessages {
    http: HttpClient,
    retention: CacheRetention,
}

impl AnthropicMessages {
    /// A provider that sends with this client.
    #[must_use]
    pub fn new(http: HttpClient, retention: CacheRetention) -> Self {
        Self { http, retention }
    }
}

impl Provider for AnthropicMessages {
    fn api(&self) -> &'static str {
        API
    }

    fn stream(
        &self,
        request: ProviderRequest,
        events: mpsc::Sender<StreamEvent>,
    ) -> BoxFuture<'static, Result<StopReason, ProviderError>> {
        let Self { http, retention } = self.clone();
        async move {
            let prices = request.model.cost;
            let post = request::post(request, retention)?;
            let mut sink = Sink::new(events);
            // Before the answer: the client shows that the model has been asked.
            sink.send([StreamEvent::Opened]).await?;
            let mut stream = http.post(post).await?;
            let mut reader = Reader::new(prices);
            while let Some(event) = stream.next().await? {
                let Some(body) = body(&event, &stream)? else { continue };
                let pieces = reader.take(body).map_err(|error| stream.malformed(&event, &error))?;
                sink.send(pieces).await?;
                if reader.is_stopped() {
                    break;
                }
                if reader.has_stop_reason() {
                    stream.expect_end();
                }
            }
            sink.send(reader.close()).await?;
            reader.stop_reason()
        }
        .boxed()
    }
}

/// The JSON of an event, `None` if it has none. An error of the provider is the failure of the request.
fn body(event: &Event, stream: &EventStream) -> Result<Option<Value>, ProviderError> {
    let data = event.data.trim();
    if event.name == "error" {
        return Err(stream.error(data));
    }
    // Some gateways end the stream as OpenAI's API does.
    if data.is_empty() || data == "[DONE]" {
        return Ok(None);
    }
    let body: Value = serde_json::from_str(&protocol_schema::mend_surrogates(data))
        .map_err(|error| stream.malformed(event, &error))?;
    match body.get("type").and_then(Value::as_str) {
        Some("error") => Err(stream.error(data)),
        Some(_) => Ok(Some(body)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
