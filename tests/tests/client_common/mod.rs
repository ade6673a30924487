//! What the suites that drive the server through `RpcClient` have in common.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::time::Duration;

use dreb_client::{ClientEvent, Events, RpcClient, RpcClientOptions, ServerEvent};
use dreb_tests::{FakeProvider, Home, binary, poll_until, process, within};

/// Options for the binary under test in this home, with nothing of the test's own environment.
pub(crate) fn options(home: &Home) -> RpcClientOptions {
    in_home(RpcClientOptions::new().binary(binary::dreb()), home)
}

/// The same without a word on where the server comes from.
pub(crate) fn in_home(options: RpcClientOptions, home: &Home) -> RpcClientOptions {
    let options = options.cwd(home.cwd()).env_clear();
    home.environment().into_iter().fold(options, |options, (name, value)| options.env(name, value))
}

pub(crate) async fn start(options: RpcClientOptions) -> RpcClient {
    within("a client to start", RpcClient::start(options)).await.unwrap()
}

/// A provider, a home that points at it, and a client there.
pub(crate) async fn fixture() -> (FakeProvider, Home, RpcClient) {
    let fake = FakeProvider::start().await;
    let home = Home::new(&fake);
    let client = start(options(&home)).await;
    (fake, home, client)
}

/// The next event of the server.
pub(crate) async fn next(events: &mut Events) -> ServerEvent {
    match within("an event", events.next()).await {
        Some(ClientEvent::Event(event)) => event,
        other => panic!("{other:?}"),
    }
}

/// All events up to the first of this type, it included.
pub(crate) async fn until(events: &mut Events, kind: &str) -> Vec<ServerEvent> {
    let mut seen = Vec::new();
    loop {
        let event = next(events).await;
        let last = event.kind() == kind;
        seen.push(event);
        if last {
            return seen;
        }
    }
}

/// Waits until nothing lives in this home any more.
pub(crate) async fn empty(home: &Home, limit: Duration) {
    let path = home.path();
    poll_until("the last process to end", limit, || process::living_in(&path).is_empty().then_some(())).await;
}

/// Ends a test in good order: the server ends by itself, without an error, and leaves nobody behind.
pub(crate) async fn finish(client: RpcClient, home: &Home) {
    let notice = within("the shutdown", client.shutdown()).await;
    assert_eq!((notice.code(), notice.was_requested()), (Some(0), true), "{notice}");
    assert!(process::living_in(&home.path()).is_empty());
}
