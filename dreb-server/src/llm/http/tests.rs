use std::time::Duration;

use reqwest::header::HeaderMap;

use super::loopback::{Answer, Server, client, open_stream, response, whole_stream};
use super::*;
use crate::llm::{ProviderError, ProviderErrorKind, Secret};

fn post(url: &str, style: ErrorStyle) -> Post {
    let mut headers = Headers::new("test");
    headers.set_key("authorization", &Secret::new("sk-secret-1")).unwrap();
    let (headers, secrets) = headers.into_parts();
    Post { url: url.into(), headers, body: b"{\"a\":1}".to_vec(), errors: style, secrets }
}

async fn failure(answer: Answer, style: ErrorStyle) -> ProviderError {
    let server = Server::start(vec![answer]).await;
    client().post(post(server.url(), style)).await.unwrap_err()
}

#[tokio::test]
async fn a_request_carries_its_headers_and_events_come_back() {
    let pieces = ["data: 1\n\ndata:".to_owned(), " 2\n\n".to_owned()];
    let server = Server::start(vec![Answer::Bytes(whole_stream(&pieces))]).await;
    let mut stream = client().post(post(&format!("{}/v1/x?y=z", server.url()), ErrorStyle::OpenAi)).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().data, "1");
    assert_eq!(stream.next().await.unwrap().unwrap().data, "2");
    assert_eq!(stream.next().await.unwrap(), None);
    let request = server.requests().remove(0);
    assert_eq!(request.path, "/v1/x?y=z");
    assert_eq!(request.header("authorization"), Some("Bearer sk-secret-1"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("user-agent"), Some(concat!("dreb/", env!("CARGO_PKG_VERSION"))));
    assert_eq!(request.body, serde_json::json!({"a": 1}));
}

#[tokio::test]
async fn error_answers_become_texts_and_waits() {
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    assert_eq!(
        failure(response(529, "retry-after: 3\r\n", body), ErrorStyle::Anthropic).await,
        ProviderError {
            message: format!("529 {body}"),
            kind: ProviderErrorKind::Http { status: 529, retry_after: Some(Duration::from_secs(3)) },
        }
    );
    let body = r#"{"error":{"message":"Rate limited"}}"#;
    assert_eq!(
        failure(response(429, "retry-after-ms: 40\r\nretry-after: 1\r\n", body), ErrorStyle::OpenAi).await,
        ProviderError {
            message: "429 Rate limited".into(),
            kind: ProviderErrorKind::Http { status: 429, retry_after: Some(Duration::from_millis(40)) },
        }
    );
    assert_eq!(failure(response(413, "", ""), ErrorStyle::OpenAi).await.message, "413 status code (no body)");
}

#[tokio::test]
async fn keys_are_cut_out_of_error_texts() {
    let body = r#"{"error":{"message":"Key sk-secret-1 is wrong (sk-secret-1)"}}"#;
    let error = failure(response(401, "", body), ErrorStyle::OpenAi).await;
    assert_eq!(error.message, "401 Key <redacted> is wrong (<redacted>)");
    let error = failure(response(401, "", body), ErrorStyle::Anthropic).await;
    assert!(!error.message.contains("sk-secret"), "{error}");
}

#[tokio::test]
async fn a_request_is_sent_once() {
    let server = Server::start(vec![response(503, "", "busy"), response(200, "", "")]).await;
    let error = client().post(post(server.url(), ErrorStyle::OpenAi)).await.unwrap_err();
    assert_eq!(error.message, "503 busy");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn redirects_are_shown_and_not_followed() {
    let error = failure(response(308, "location: https://other/v1\r\n", ""), ErrorStyle::OpenAi).await;
    assert_eq!(error.message, "308 redirect to https://other/v1; set it as the model's base URL if it is right");
}

#[tokio::test]
async fn connection_failures_name_their_cause() {
    let closed = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let error = client().post(post(&format!("http://{closed}/"), ErrorStyle::OpenAi)).await.unwrap_err();
    assert_eq!(error.message, format!("Connection error. connection refused ({closed})"));
    assert_eq!(error.kind, ProviderErrorKind::Connection);

    let error = client().post(post("http://no-such-host.invalid/", ErrorStyle::OpenAi)).await.unwrap_err();
    assert!(error.message.starts_with("Connection error. host name not found (no-such-host.invalid:80): "), "{error}");

    let server = Server::start(vec![Answer::Bytes(Vec::new())]).await;
    let error = client().post(post(server.url(), ErrorStyle::OpenAi)).await.unwrap_err();
    assert!(error.message.starts_with("Connection error. "), "{error}");
    assert!(error.message.contains(server.url().trim_start_matches("http://")), "{error}");

    for url in ["not a url", "file:///etc/passwd", "http://"] {
        let error = client().post(post(url, ErrorStyle::OpenAi)).await.unwrap_err();
        assert!(error.message.starts_with("Invalid address "), "{error}");
    }
    let error = client().post(post("ftp://user:pw@host/", ErrorStyle::OpenAi)).await.unwrap_err();
    assert!(error.message.starts_with("Invalid address ftp://host/: "), "{error}");
}

#[tokio::test]
async fn a_port_that_speaks_no_tls_is_named_as_such() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let error = client().post(post(&format!("https://{address}/"), ErrorStyle::OpenAi)).await.unwrap_err();
    assert!(error.message.starts_with(&format!("Connection error. no TLS on {address}: ")), "{error}");
    server.abort();
}

#[tokio::test]
async fn an_answer_that_never_begins_times_out() {
    let server = Server::start(vec![Answer::Hold(Vec::new())]).await;
    let options =
        HttpOptions { proxies: false, first_byte_timeout: Duration::from_millis(50), ..HttpOptions::default() };
    let error = HttpClient::new(options).post(post(server.url(), ErrorStyle::OpenAi)).await.unwrap_err();
    let peer = server.url().trim_start_matches("http://");
    assert_eq!(error.message, format!("Request timed out. {peer} did not answer within 0.05 s"));
}

#[tokio::test]
async fn a_broken_stream_ends_and_one_that_stays_open_after_its_end_too() {
    let pieces = ["data: 1\n\n".to_owned()];
    let server = Server::start(vec![Answer::Bytes(open_stream(&pieces)), Answer::Hold(open_stream(&pieces))]).await;
    let http = client();
    for _ in 0..2 {
        let mut stream = http.post(post(server.url(), ErrorStyle::OpenAi)).await.unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap().data, "1");
        stream.expect_end();
        assert_eq!(stream.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn what_is_no_stream_is_an_error() {
    let json = "content-type: application/json; charset=utf-8\r\n";
    let server = Server::start(vec![
        response(200, json, r#"{"error":{"message":"sk-secret-1 is out of credit"}}"#),
        response(200, json, r#"{"choices":[]}"#),
        response(200, "content-type: text/html\r\n", "<html>"),
        response(200, json, "data: 1\n\n"),
    ])
    .await;
    let peer = server.url().trim_start_matches("http://").to_owned();
    let http = client();
    let open = || http.post(post(server.url(), ErrorStyle::OpenAi));
    assert_eq!(open().await.unwrap().next().await.unwrap_err().message, "<redacted> is out of credit");
    assert_eq!(
        open().await.unwrap().next().await.unwrap_err().message,
        format!("Unexpected answer of {peer}: JSON in place of an event stream: {{\"choices\":[]}}")
    );
    assert_eq!(
        open().await.unwrap_err().message,
        format!("Unexpected answer of {peer}: a web page in place of an event stream; check the model's base URL")
    );
    assert_eq!(open().await.unwrap().next().await.unwrap().unwrap().data, "1");
}

#[test]
fn headers_of_the_model_win_and_their_secrets_are_known() {
    let model: protocol_schema::Model = protocol_schema::Model {
        headers: serde_json::from_str(r#"{"User-Agent":"mine","x-api-key":"key-2","X-Team":"team","n":5,"z":null}"#)
            .ok(),
        ..Default::default()
    };
    let mut headers = Headers::new("p");
    headers.set("user-agent", "ours").unwrap();
    headers.add_model(&model).unwrap();
    let (map, secrets): (HeaderMap, Secrets) = headers.into_parts();
    assert_eq!(map["user-agent"], "mine");
    assert_eq!(map["n"], "5");
    assert_eq!(map.len(), 4);
    assert!(map["x-api-key"].is_sensitive());
    assert_eq!(secrets.redact("key-2 of team"), "<redacted> of team");
    assert_eq!(format!("{secrets:?}"), "Secrets(1)");
}

#[test]
fn headers_that_cannot_be_sent_are_named_without_their_value() {
    let mut headers = Headers::new("p");
    let error = headers.set("x-a", "line\nbreak").unwrap_err();
    assert_eq!(error.message, "Header \"x-a\" of provider p cannot be sent: invalid characters");
    let error = headers.set_key("x-api-key", &Secret::new("ab\u{1}cd")).unwrap_err();
    assert_eq!(error.message, "The API key for provider p has characters that cannot be sent");
}

/// A certificate for `localhost` and 127.0.0.1 that nobody trusts, and its key, both DER in base64.
const SELF_SIGNED: &str = concat!(
    "MIIBnDCCAUGgAwIBAgIUQElxhry+nLH3hL6GpktH2PgRDoEwCgYIKoZIzj0EAwIwFDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2",
    "MTIwMTA0NDcxNloYDzIxMjYxMTA3MDQ0NzE2WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC",
    "AAReGzIKti+fmkVBb8sLpRpSFAQy2Er0YPioTS13qMG8K6Sk6cBLGzDITiQtpsWedctKGct8ySqNQO+VcZkQvVxho28wbTAdBgNV",
    "HQ4EFgQUFxixa7zA5CaPV24ESUgkZkHWzlwwHwYDVR0jBBgwFoAUFxixa7zA5CaPV24ESUgkZkHWzlwwDwYDVR0TAQH/BAUwAwEB",
    "/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZIzj0EAwIDSQAwRgIhAIVrDWN0t1yeERYsiD7SnjbslQznBlnZ/E7C",
    "2cBRx2x6AiEAl42hbSdA0Sh8cKyf52qDl9fwpZNvaCEbKYncc4/U528=",
);
const SELF_SIGNED_KEY: &str = concat!(
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQghKW7kiPdPZkIqoOpdX+DFMThuXncoDX0kpai+NU00vOhRANCAARe",
    "GzIKti+fmkVBb8sLpRpSFAQy2Er0YPioTS13qMG8K6Sk6cBLGzDITiQtpsWedctKGct8ySqNQO+VcZkQvVxh",
);

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_named_as_such() {
    use base64::Engine as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let der = |text: &str| base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let key = PrivateKeyDer::try_from(der(SELF_SIGNED_KEY)).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(der(SELF_SIGNED))], key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::task::spawn_blocking(move || {
        let mut connection = rustls::ServerConnection::new(std::sync::Arc::new(config)).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        connection.complete_io(&mut stream).unwrap_err()
    });
    let error = client().post(post(&format!("https://{address}/"), ErrorStyle::OpenAi)).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Connection);
    assert!(
        error
            .message
            .starts_with(&format!("Connection error. certificate problem with {address}: invalid peer certificate: ")),
        "{error}"
    );
    server.await.unwrap();
}
