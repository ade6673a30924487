//! Failures in words. Retry and overflow rules match on these texts, so their leading part is fixed.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{Response, Url};
use serde_json::Value;

use super::headers::Secrets;
use crate::llm::{ProviderError, ProviderErrorKind};

/// How a provider writes errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorStyle {
    /// The whole body is the message: `529 {"type":"error",...}`.
    Anthropic,
    /// `error.message` is the message: `401 Incorrect API key provided`.
    OpenAi,
}

/// Most of an error body that is read, in bytes.
const MAX_BODY: usize = 256 * 1024;
/// Most of a body that is not JSON, such as a gateway's HTML page, that is shown, in characters.
const MAX_TEXT: usize = 2000;

impl ErrorStyle {
    /// The message in a body, `None` if there is none.
    pub(super) fn message(self, body: &str) -> Option<String> {
        let body = body.trim();
        match serde_json::from_str::<Value>(&protocol_schema::mend_surrogates(body)) {
            _ if body.is_empty() => None,
            Ok(json) => Some(self.message_of(&json)),
            Err(_) => Some(shortened(body)),
        }
    }

    /// The message in an error body that is JSON.
    #[must_use]
    pub fn message_of(self, body: &Value) -> String {
        let error = match self {
            Self::Anthropic => body,
            Self::OpenAi => body.get("error").filter(|error| !error.is_null()).unwrap_or(body),
        };
        let mut message = match error.get("message") {
            Some(Value::String(message)) if !message.is_empty() => message.clone(),
            Some(Value::Object(message)) => Value::Object(message.clone()).to_string(),
            _ => error.as_str().map_or_else(|| error.to_string(), str::to_owned),
        };
        // OpenRouter passes on what the provider behind it said.
        match error.get("metadata").and_then(|metadata| metadata.get("raw")) {
            Some(Value::String(raw)) if !raw.is_empty() => {
                // Writing to a string cannot fail.
                let _ = write!(message, "\n{}", shortened(raw));
            }
            Some(raw @ Value::Object(_)) => {
                let _ = write!(message, "\n{raw}");
            }
            _ => {}
        }
        message
    }
}

/// At most [`MAX_TEXT`] characters of the text.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Reads as much of a body as is worth showing, for at most `limit`.
pub(super) async fn read_body(response: &mut Response, mut body: Vec<u8>, limit: Duration) -> String {
    let reading = async {
        while body.len() < MAX_BODY {
            match response.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                // What came before a break is still worth showing.
                Ok(None) | Err(_) => break,
            }
        }
    };
    let _ = tokio::time::timeout(limit, reading).await;
    body.truncate(MAX_BODY);
    String::from_utf8_lossy(&body).into_owned()
}

/// The failure that an error answer means.
pub(super) async fn of_response(
    mut response: Response,
    style: ErrorStyle,
    secrets: &Secrets,
    body_limit: Duration,
) -> ProviderError {
    let status = response.status();
    let retry_after = retry_after(response.headers(), SystemTime::now());
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = read_body(&mut response, Vec::new(), body_limit).await;
    let code = status.as_u16();
    let message = match (style.message(&body), location) {
        (_, Some(location)) if status.is_redirection() => {
            format!("{code} redirect to {location}; set it as the model's base URL if it is right")
        }
        (Some(message), _) => format!("{code} {message}"),
        (None, _) => format!("{code} status code (no body)"),
    };
    ProviderError { message: secrets.redact(message), kind: ProviderErrorKind::Http { status: code, retry_after } }
}

/// The wait that the provider asks for.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let seconds = |text: &str, unit: f64| Duration::try_from_secs_f64(text.parse::<f64>().ok()? * unit).ok();
    if let Some(wait) = text("retry-after-ms").and_then(|ms| seconds(ms, 0.001)) {
        return Some(wait);
    }
    let text = text("retry-after")?;
    seconds(text, 1.0).or_else(|| {
        let date = chrono::DateTime::parse_from_rfc2822(text).ok()?;
        // A date that has passed asks for no wait.
        Some(SystemTime::from(date).duration_since(now).unwrap_or_default())
    })
}

/// Host and port of an address, without the user name and password it may carry.
pub(super) fn peer(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The failure that a request without an answer means.
pub(super) fn of_connection(error: &reqwest::Error, peer: &str, connect_timeout: Duration) -> ProviderError {
    let cause = if error.is_timeout() {
        format!("no connection to {peer} within {} s", connect_timeout.as_secs_f64())
    } else {
        cause(error, peer)
    };
    ProviderError { message: format!("Connection error. {cause}"), kind: ProviderErrorKind::Connection }
}

fn cause(error: &reqwest::Error, peer: &str) -> String {
    let mut last = error.to_string();
    let mut by_name = false;
    for part in Chain(error.source()) {
        if let Some(tls) = part.downcast_ref::<rustls::Error>() {
            return match tls {
                rustls::Error::InvalidCertificate(_) => format!(
                    "certificate problem with {peer}: {tls}; check the address, the clock and the certificates of this system"
                ),
                rustls::Error::InvalidMessage(_) => {
                    format!("no TLS on {peer}: {tls}; an address without TLS begins with http://")
                }
                _ => format!("TLS failure with {peer}: {tls}"),
            };
        }
        if let Some(error) = part.downcast_ref::<io::Error>() {
            match error.kind() {
                io::ErrorKind::ConnectionRefused => return format!("connection refused ({peer})"),
                io::ErrorKind::ConnectionReset => return format!("connection reset ({peer})"),
                io::ErrorKind::HostUnreachable => return format!("host unreachable ({peer})"),
                io::ErrorKind::NetworkUnreachable => return format!("network unreachable ({peer})"),
                io::ErrorKind::TimedOut => return format!("connection timed out ({peer})"),
                _ => {}
            }
        }
        last = part.to_string();
        by_name |= last.contains("dns error");
    }
    if by_name { format!("host name not found ({peer}): {last}") } else { format!("{last} ({peer})") }
}

/// An error and what it stands on, as one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    Chain(Some(error)).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Walks an error's sources. An `io::Error` hands out the source of what it wraps, not the thing
/// itself, so it is looked into.
struct Chain<'a>(Option<&'a (dyn Error + 'static)>);

impl<'a> Iterator for Chain<'a> {
    type Item = &'a (dyn Error + 'static);

    fn next(&mut self) -> Option<Self::Item> {
        let this = self.0?;
        self.0 = match this.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => this.source(),
        };
        Some(this)
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn bodies_become_messages_in_each_style() {
        let anthropic = r#"{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}"#;
        for (style, body, expected) in [
            (
                ErrorStyle::Anthropic,
                anthropic,
                Some(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
            ),
            (ErrorStyle::Anthropic, "upstream down\n", Some("upstream down")),
            (ErrorStyle::Anthropic, " ", None),
            (ErrorStyle::OpenAi, anthropic, Some("Overloaded")),
            (ErrorStyle::OpenAi, r#"{"error":{"message":"bad key","code":"x"}}"#, Some("bad key")),
            (ErrorStyle::OpenAi, r#"{"error":{"code":"x"}}"#, Some(r#"{"code":"x"}"#)),
            (ErrorStyle::OpenAi, r#"{"error":"model not found"}"#, Some("model not found")),
            (ErrorStyle::OpenAi, r#"{"message":"top"}"#, Some("top")),
            (ErrorStyle::OpenAi, r#"{"detail":"Not Found"}"#, Some(r#"{"detail":"Not Found"}"#)),
            (
                ErrorStyle::OpenAi,
                r#"{"error":{"message":"Provider returned error","metadata":{"raw":"too long"}}}"#,
                Some("Provider returned error\ntoo long"),
            ),
            (ErrorStyle::OpenAi, "<html>", Some("<html>")),
            (ErrorStyle::OpenAi, "", None),
        ] {
            assert_eq!(style.message(body).as_deref(), expected, "{body}");
        }
        assert_eq!(shortened(&"é".repeat(MAX_TEXT + 1)).chars().count(), MAX_TEXT + 1);
    }

    #[test]
    fn waits_are_read_in_every_form() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_470);
        for (name, value, expected) in [
            ("retry-after", "7", Some(Duration::from_secs(7))),
            ("retry-after", "1.5", Some(Duration::from_millis(1500))),
            ("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT", Some(Duration::from_secs(10))),
            ("retry-after", "Wed, 21 Oct 2015 07:27:00 GMT", Some(Duration::ZERO)),
            ("retry-after", "soon", None),
            ("retry-after", "-1", None),
            ("retry-after", "1e300", None),
            ("retry-after-ms", "250", Some(Duration::from_millis(250))),
            ("x", "1", None),
        ] {
            let headers: HeaderMap = [(name.parse().unwrap(), HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(retry_after(&headers, now), expected, "{name}: {value}");
        }
        let mut both = HeaderMap::new();
        both.insert("retry-after", HeaderValue::from_static("9"));
        both.insert("retry-after-ms", HeaderValue::from_static("20"));
        assert_eq!(retry_after(&both, now), Some(Duration::from_millis(20)));
    }
}
