//! When a failed run is tried again, and after how long.

use std::time::Duration;

use crate::settings::RetrySettings;

/// Words in an error message that mark a failure as passing. `.` stands for any one character or none.
const TRANSIENT: &[&str] = &[
    "overloaded",
    "provider.returned.error",
    "rate.limit",
    "too.many.requests",
    "429",
    "500",
    "502",
    "503",
    "504",
    "service.unavailable",
    "server.error",
    "internal.error",
    "network.error",
    "connection.error",
    "connection.refused",
    "other.side.closed",
    "fetch.failed",
    "ended.without",
    "upstream.connect",
    "reset.before.headers",
    "socket.hang.up",
    "timed.out",
    "time.out",
    "timeout",
    "terminated",
    "retry.delay",
];

/// Phrases by which providers say that the request does not fit the context window. `#` stands for
/// digits, `*` for anything.
const OVERFLOW: &[&str] = &[
    "prompt is too long",
    "input is too long for requested model",
    "exceeds the context window",
    "input token count*exceeds the maximum",
    "maximum prompt length is #",
    "reduce the length of the messages",
    "maximum context length is # tokens",
    "exceeds the limit of #",
    "exceeds the available context size",
    "greater than the context length",
    "context window exceeds limit",
    "exceeded model token limit",
    "too large for model with # maximum context length",
    "model_context_window_exceeded",
    "context length exceeded",
    "context_length_exceeded",
    "too many tokens",
    "token limit exceeded",
];

/// Whether a failure with this message may pass by itself.
#[must_use]
pub fn is_transient(message: &str) -> bool {
    let message = message.to_lowercase();
    !is_overflow(&message) && TRANSIENT.iter().any(|pattern| contains(message.as_bytes(), pattern.as_bytes()))
}

/// Whether the message says that the request does not fit the context window.
#[must_use]
pub fn is_overflow(message: &str) -> bool {
    let message = message.to_lowercase();
    let no_body = (message.starts_with("400") || message.starts_with("413")) && message.ends_with("(no body)");
    no_body || OVERFLOW.iter().any(|pattern| contains(message.as_bytes(), pattern.as_bytes()))
}

fn contains(text: &[u8], pattern: &[u8]) -> bool {
    (0..text.len()).any(|start| matches_at(&text[start..], pattern))
}

fn matches_at(text: &[u8], pattern: &[u8]) -> bool {
    match pattern.split_first() {
        None => true,
        Some((b'.', rest)) => matches_at(text, rest) || (!text.is_empty() && matches_at(&text[1..], rest)),
        Some((b'*', rest)) => contains(text, rest),
        Some((b'#', rest)) => {
            let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            digits > 0 && matches_at(&text[digits..], rest)
        }
        Some((byte, rest)) => text.first() == Some(byte) && matches_at(&text[1..], rest),
    }
}

/// The pause before retry number `attempt` (from 1). A provider's own wish lengthens it, up to the
/// limit.
#[must_use]
pub fn delay(settings: &RetrySettings, attempt: u32, asked: Option<Duration>) -> Duration {
    let own = settings.base_delay.saturating_mul(2u32.saturating_pow(attempt.saturating_sub(1)));
    let Some(asked) = asked else { return own };
    own.max(settings.max_delay.map_or(asked, |limit| asked.min(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_failures_are_known_by_their_text() {
        for text in [
            r#"529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            "429 slow down",
            "Rate-limit reached",
            "Connection error. connection refused",
            "ratelimit",
            "upstream_connect failure",
        ] {
            assert!(is_transient(text), "{text}");
        }
        for text in ["400 bad request", "401 no", "An unknown error occurred", "Unhandled stop reason: x", ""] {
            assert!(!is_transient(text), "{text}");
        }
    }

    #[test]
    fn an_overflow_is_not_transient() {
        for text in [
            "400 prompt is too long: 500 tokens",
            "input token count (503) exceeds the maximum number",
            "This model's maximum context length is 8192 tokens",
            "413 status code (no body)",
        ] {
            assert!(is_overflow(text), "{text}");
            assert!(!is_transient(text), "{text}");
        }
        assert!(!is_overflow("maximum context length is large"));
    }

    #[test]
    fn the_pause_doubles_and_a_provider_may_lengthen_it() {
        let settings = RetrySettings {
            enabled: true,
            max_retries: 3,
            base_delay: Duration::from_secs(2),
            max_delay: Some(Duration::from_secs(60)),
        };
        let delay = |attempt, asked| delay(&settings, attempt, asked);
        let delays: Vec<u64> = (1..=3).map(|attempt| delay(attempt, None).as_secs()).collect();
        assert_eq!(delays, [2, 4, 8]);
        assert_eq!(delay(1, Some(Duration::from_secs(30))).as_secs(), 30);
        assert_eq!(delay(1, Some(Duration::from_secs(300))).as_secs(), 60);
        assert_eq!(delay(3, Some(Duration::from_secs(1))).as_secs(), 8);
    }
}
