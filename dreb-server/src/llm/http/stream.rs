//! An answer as a stream of events.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tokio::time::Instant;

use super::failure::{ErrorStyle, read_body, shortened};
use super::headers::Secrets;
use crate::llm::ProviderError;
use crate::llm::sse::{Event, Parser};

/// The events of an answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    parser: Parser,
    peer: String,
    errors: ErrorStyle,
    secrets: Secrets,
    /// The media type says JSON; some servers say so and stream all the same.
    maybe_json: bool,
    trailer_timeout: Duration,
    deadline: Option<Instant>,
}

impl EventStream {
    pub(super) fn new(
        response: Response,
        peer: String,
        errors: ErrorStyle,
        secrets: Secrets,
        trailer_timeout: Duration,
    ) -> Result<Self, ProviderError> {
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if media_type == "text/html" {
            return Err(ProviderError::other(format!(
                "Unexpected answer of {peer}: a web page in place of an event stream; check the model's base URL"
            )));
        }
        let maybe_json = media_type == "application/json";
        Ok(Self {
            response,
            parser: Parser::default(),
            peer,
            errors,
            secrets,
            maybe_json,
            trailer_timeout,
            deadline: None,
        })
    }

    /// The next event; `None` at the end, also when the connection broke: whether the answer was
    /// complete is for the caller to judge.
    ///
    /// # Errors
    ///
    /// The bytes are no event stream, or an event is too large.
    pub async fn next(&mut self) -> Result<Option<Event>, ProviderError> {
        loop {
            if let Some(event) = self.parser.next_event() {
                return Ok(Some(event));
            }
            let chunk = match self.deadline {
                None => self.response.chunk().await,
                Some(deadline) => match tokio::time::timeout_at(deadline, self.response.chunk()).await {
                    Ok(chunk) => chunk,
                    Err(_) => return Ok(None),
                },
            };
            let chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(None),
                Err(error) => {
                    let error = error.without_url();
                    tracing::debug!(peer = self.peer, cause = super::failure::chain(&error), "stream broke off");
                    return Ok(None);
                }
            };
            if self.maybe_json && !chunk.trim_ascii_start().is_empty() {
                self.maybe_json = false;
                if chunk.trim_ascii_start().starts_with(b"{") {
                    return Err(self.json_in_place_of_a_stream(chunk.to_vec()).await);
                }
            }
            self.parser
                .feed(&chunk)
                .map_err(|error| ProviderError::other(format!("Malformed stream of {}: {error}", self.peer)))?;
        }
    }

    /// Says that the answer is over, so that what may still come is waited for a short time only.
    pub fn expect_end(&mut self) {
        self.deadline.get_or_insert_with(|| Instant::now() + self.trailer_timeout);
    }

    /// The failure that an error body inside the stream means.
    #[must_use]
    pub fn error(&self, body: &str) -> ProviderError {
        let message = self.errors.message(body).unwrap_or_else(|| "An unknown error occurred".to_owned());
        ProviderError::other(self.secrets.redact(message))
    }

    /// The failure that an unreadable event means.
    #[must_use]
    pub fn malformed(&self, event: &Event, error: &serde_json::Error) -> ProviderError {
        ProviderError::other(self.secrets.redact(format!(
            "Malformed stream of {}: {error} in {}",
            self.peer,
            shortened(&event.data)
        )))
    }

    async fn json_in_place_of_a_stream(&mut self, start: Vec<u8>) -> ProviderError {
        let body = read_body(&mut self.response, start, self.trailer_timeout).await;
        let is_error = serde_json::from_str::<serde_json::Value>(&body).is_ok_and(|json| json.get("error").is_some());
        if is_error {
            return self.error(&body);
        }
        ProviderError::other(self.secrets.redact(format!(
            "Unexpected answer of {}: JSON in place of an event stream: {}",
            self.peer,
            shortened(&body)
        )))
    }
}
