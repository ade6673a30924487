//! HTTP to model providers: one shared client, a POST that is answered by an event stream, and
//! failures in the words that users and retry rules know.
//!
//! A request is sent once. Retries are the agent's, so that each is announced.

mod client;
mod failure;
mod headers;
mod stream;

pub use client::{HttpClient, HttpOptions, Post};
pub use failure::ErrorStyle;
pub use headers::{Headers, Secrets};
pub use stream::EventStream;

#[cfg(test)]
pub(crate) mod loopback;
#[cfg(test)]
mod tests;
