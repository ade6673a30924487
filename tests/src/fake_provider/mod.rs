//! A model provider that says what a test tells it to, over real HTTP on a loopback port.
//!
//! It answers `POST /v1/messages` as the Anthropic Messages API does and
//! `POST /v1/chat/completions` as the OpenAI Chat Completions API does. Each request takes the next
//! [`Reply`] of the script, whichever API it speaks. Every request is kept for the test to look at.
//!
//! ```no_run
//! # async fn example() {
//! use dreb_tests::{FakeProvider, Reply};
//!
//! let fake = FakeProvider::start().await;
//! fake.push(Reply::new().text(["Hel", "lo"]));
//! let request = fake.request(1).await;
//! assert_eq!(request.body["stream"], true);
//! # }
//! ```

mod anthropic;
mod broken;
mod connection;
mod openai;
mod reply;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub use broken::{GarbageServer, RefusedPort};
pub use reply::{Reply, Tokens};

use crate::sync::within;

/// A wire API the fake speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `anthropic-messages`.
    Anthropic,
    /// `openai-completions`.
    OpenAi,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which request it was, from 1.
    pub number: usize,
    /// The API, by its path.
    pub api: Api,
    /// Headers; names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Value,
}

impl Request {
    /// Roles of the messages in it, in order.
    #[must_use]
    pub fn roles(&self) -> Vec<&str> {
        let messages = self.body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        messages.iter().filter_map(|message| message["role"].as_str()).collect()
    }

    /// The message at `index`; a negative index counts from the end.
    ///
    /// # Panics
    ///
    /// There is no such message.
    #[must_use]
    pub fn message(&self, index: isize) -> &Value {
        let messages = self.body["messages"].as_array().expect("a request has messages");
        let at = if index < 0 { messages.len().checked_add_signed(index) } else { usize::try_from(index).ok() };
        at.and_then(|at| messages.get(at)).expect("there is such a message")
    }
}

/// The server. It ends, with all its connections, when it is dropped.
#[derive(Debug)]
pub struct FakeProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Ticks whenever `state` has changed.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    script: VecDeque<Reply>,
    requests: Vec<Request>,
    /// Numbers of the requests whose connection the client has closed.
    closed: Vec<usize>,
    /// Numbers of the requests that found the script empty.
    unscripted: Vec<usize>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a request and takes the reply for it.
    fn take(&self, api: Api, headers: BTreeMap<String, String>, body: Value) -> (Request, Reply) {
        let mut state = self.lock();
        let request = Request { number: state.requests.len() + 1, api, headers, body };
        state.requests.push(request.clone());
        let reply = state.script.pop_front().unwrap_or_else(|| {
            state.unscripted.push(request.number);
            // A status that nobody retries, so that the test ends soon.
            Reply::error(400, "invalid_request_error", "the script has no reply for this request")
        });
        drop(state);
        self.changed.send_replace(());
        (request, reply)
    }

    fn closed(&self, requests: &[usize]) {
        self.lock().closed.extend_from_slice(requests);
        self.changed.send_replace(());
    }
}

impl FakeProvider {
    /// Starts listening on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// No port can be had.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// `http://127.0.0.1:<port>`, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a reply to the end of the script.
    pub fn push(&self, reply: Reply) {
        self.shared.lock().script.push_back(reply);
    }

    /// Adds replies to the end of the script.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.lock().script.extend(replies);
    }

    /// Forgets the replies nobody asked for yet.
    pub fn clear(&self) {
        self.shared.lock().script.clear();
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// Waits for the request with this number, counted from 1.
    ///
    /// # Panics
    ///
    /// It did not come in time.
    pub async fn request(&self, number: usize) -> Request {
        self.wait(&format!("request {number}"), |state| state.requests.get(number - 1).cloned()).await
    }

    /// Waits until the client has closed the connection of the request with this number.
    ///
    /// # Panics
    ///
    /// It was not closed in time.
    pub async fn closed(&self, number: usize) {
        self.wait(&format!("the connection of request {number} to close"), |state| {
            state.closed.contains(&number).then_some(())
        })
        .await;
    }

    /// Checks that the script was used up and that no request came without a reply.
    ///
    /// # Panics
    ///
    /// One of the two is not so.
    pub fn assert_done(&self) {
        let state = self.shared.lock();
        assert!(state.unscripted.is_empty(), "requests without a reply: {:?}", state.unscripted);
        assert!(state.script.is_empty(), "replies nobody asked for: {:?}", state.script);
    }

    async fn wait<T>(&self, what: &str, mut probe: impl FnMut(&State) -> Option<T>) -> T {
        let mut changed = self.shared.changed.subscribe();
        within(what, async {
            loop {
                if let Some(value) = probe(&self.shared.lock()) {
                    return value;
                }
                // The sender lives in `self`.
                let _ = changed.changed().await;
            }
        })
        .await
    }
}

impl Drop for FakeProvider {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection::serve(stream, Arc::clone(&shared)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
