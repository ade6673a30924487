//! The shared client.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use rustls::client::danger::ServerCertVerifier;
use tokio::sync::OnceCell;

use super::failure::{self, ErrorStyle};
use super::headers::Secrets;
use super::stream::EventStream;
use crate::llm::ProviderError;

/// Limits of the client.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// How long making a connection may take, name lookup and TLS included.
    pub connect_timeout: Duration,
    /// How long the head of the answer may take from the start of the request. Providers queue and
    /// think before the first byte, so it is long. The stream after it may pause without limit; TCP
    /// keepalive finds a peer that is gone.
    pub first_byte_timeout: Duration,
    /// How long a stream may stay open once the provider has said that the answer is over.
    pub trailer_timeout: Duration,
    /// Whether the proxies of the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`) are used.
    pub proxies: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            first_byte_timeout: Duration::from_secs(600),
            trailer_timeout: Duration::from_secs(10),
            proxies: true,
        }
    }
}

/// A client that all providers share; clones are the same client. It is built at the first request.
#[derive(Debug, Clone, Default)]
pub struct HttpClient {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    options: HttpOptions,
    client: OnceCell<reqwest::Client>,
}

/// A POST of JSON.
#[derive(Debug)]
pub struct Post {
    /// The whole address.
    pub url: String,
    /// Headers besides `content-type` and `user-agent`; the latter may be among them.
    pub headers: HeaderMap,
    /// The JSON text.
    pub body: Vec<u8>,
    /// How the provider writes errors.
    pub errors: ErrorStyle,
    /// What must not stand in an error text.
    pub secrets: Secrets,
}

impl HttpClient {
    /// A client with these limits.
    #[must_use]
    pub fn new(options: HttpOptions) -> Self {
        Self { inner: Arc::new(Inner { options, client: OnceCell::new() }) }
    }

    /// Sends the request and waits for the head of the answer.
    ///
    /// # Errors
    ///
    /// The address is no URL, no connection was made, no answer came in time, or the provider
    /// answered with an error or with something that is no stream.
    pub async fn post(&self, post: Post) -> Result<EventStream, ProviderError> {
        let Post { url, mut headers, body, errors, secrets } = post;
        let url =
            parse_url(&url).map_err(|shown| {
                ProviderError::other(secrets.redact(format!(
                    "Invalid address {shown}: the model's base URL must start with http:// or https://"
                )))
            })?;
        let peer = failure::peer(&url);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let options = &self.inner.options;
        let sending = self.client().await?.post(url).headers(headers).body(body).send();
        let response = match tokio::time::timeout(options.first_byte_timeout, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let mut error = failure::of_connection(&error, &peer, options.connect_timeout);
                error.message = secrets.redact(error.message);
                return Err(error);
            }
            Err(_) => {
                return Err(ProviderError::other(format!(
                    "Request timed out. {peer} did not answer within {} s",
                    options.first_byte_timeout.as_secs_f64()
                )));
            }
        };
        if !response.status().is_success() {
            return Err(failure::of_response(response, errors, &secrets, options.trailer_timeout).await);
        }
        EventStream::new(response, peer, errors, secrets, options.trailer_timeout)
    }

    async fn client(&self) -> Result<&reqwest::Client, ProviderError> {
        let inner = &self.inner;
        inner
            .client
            .get_or_try_init(|| async {
                let options = inner.options.clone();
                // Reads the certificates of the system from the disk.
                tokio::task::spawn_blocking(move || build(&options))
                    .await
                    .map_err(|error| error.to_string())
                    .and_then(|built| built.map_err(|error| failure::chain(&*error)))
                    .map_err(|cause| ProviderError::other(format!("Could not set up the HTTP client: {cause}")))
            })
            .await
    }
}

/// The address, or what of a wrong one can be shown: not the password in it.
fn parse_url(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(url),
        Ok(mut url) => {
            // Both fail only for addresses that cannot have the part.
            let _ = url.set_password(None);
            let _ = url.set_username("");
            Err(url.into())
        }
        Err(_) => Err(text.rsplit('@').next().unwrap_or_default().to_owned()),
    }
}

fn build(options: &HttpOptions) -> Result<reqwest::Client, Box<dyn std::error::Error + Send + Sync>> {
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls()?)
        .user_agent(concat!("dreb/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.connect_timeout)
        .tcp_keepalive(Duration::from_secs(30))
        .tcp_keepalive_interval(Duration::from_secs(15))
        .tcp_keepalive_retries(4)
        // A redirect would carry keys in headers of the provider's own to another host.
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never());
    if !options.proxies {
        builder = builder.no_proxy();
    }
    Ok(builder.build()?)
}

fn tls() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let mut config = match rustls_platform_verifier::Verifier::new(provider) {
        Ok(verifier) => {
            let verifier: Arc<dyn ServerCertVerifier> = Arc::new(verifier);
            config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
        // A bare container: a model on plain HTTP still works, and HTTPS fails with a clear cause.
        Err(error) => {
            tracing::warn!(%error, "no trusted certificates found on this system; HTTPS will fail");
            config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
