//! The dispatcher: lines in, commands on their lanes, and the order of the end.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use protocol_schema::envelope::RequestFrame;
use protocol_schema::{Lane, Request};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::handlers;
use super::input::Input;
use super::output::{HARD_LIMIT, Output};
use crate::agent::AgentSession;

/// Commands that may be under way or wait for their turn; beyond that no lines are read. Each of them
/// is through in a moment.
const MAX_PENDING: usize = 1024;
/// `bash` commands that may be under way or wait for their turn; beyond that they are refused. They can
/// last for ever, and aborts and the end of input must get through all the same.
const MAX_SHELLS: usize = 16 * 1024;
/// How long commands that were read may take to be answered after the end of input.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// Why serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client closed its end of standard input.
    EndOfInput,
    /// `stop` was cancelled.
    Stopped,
    /// Nobody reads standard output any more.
    ReaderGone,
}

/// Commands under way.
struct Pending<'a> {
    session: &'a AgentSession,
    output: &'a Output,
    /// Commands that take effect one after the other; the first is under way.
    ordered: VecDeque<BoxFuture<'a, ()>>,
    immediate: FuturesUnordered<BoxFuture<'a, ()>>,
    /// Those of the immediate commands that run a shell.
    shells: FuturesUnordered<BoxFuture<'a, ()>>,
}

/// Serves a client until its input ends, `stop` is cancelled or its output is gone; then answers what
/// was read, ends the session in order and writes what is left.
pub async fn serve(
    session: &AgentSession,
    mut input: mpsc::Receiver<Input>,
    output: &Output,
    stop: &CancellationToken,
) -> Ended {
    let mut pending = Pending {
        session,
        output,
        ordered: VecDeque::new(),
        immediate: FuturesUnordered::new(),
        shells: FuturesUnordered::new(),
    };
    let ended = loop {
        let has_room = output.is_below(HARD_LIMIT);
        let takes_lines = has_room && pending.len() - pending.shells.len() < MAX_PENDING;
        tokio::select! {
            biased;
            () = stop.cancelled() => break Ended::Stopped,
            () = output.broken() => break Ended::ReaderGone,
            () = pending.advance(), if pending.len() > 0 => {}
            () = output.below(HARD_LIMIT), if !has_room => {}
            line = input.recv(), if takes_lines => match line {
                Some(line) => pending.take(line),
                None => break Ended::EndOfInput,
            },
        }
    };
    tracing::debug!(?ended, "closing");
    pending.finish().await;
    let _ = tokio::time::timeout(DRAIN_WAIT, output.finish()).await;
    ended
}

impl<'a> Pending<'a> {
    fn len(&self) -> usize {
        self.ordered.len() + self.immediate.len() + self.shells.len()
    }

    /// Begins a command. What it does before it first waits happens here and now, so that lines take
    /// effect in the order of their arrival where nothing keeps them waiting.
    fn take(&mut self, line: Input) {
        let frame = match line {
            Input::Line(line) => match RequestFrame::decode(&line) {
                Ok(frame) => frame,
                Err(error) => return handlers::refuse(self.output, &error),
            },
            Input::NotUtf8 => return handlers::refuse_unreadable(self.output, "the line is not valid UTF-8"),
            Input::TooLong { cap } => {
                let why = format!("the line is longer than {cap} bytes");
                return handlers::refuse_unreadable(self.output, &why);
            }
        };
        let lane = frame.request.lane();
        let is_shell = matches!(frame.request, Request::Bash(_));
        if is_shell && self.shells.len() >= MAX_SHELLS {
            return handlers::refuse_shell(self.output, &frame);
        }
        tracing::trace!(command = frame.request.name(), "command");
        let (session, output) = (self.session, self.output);
        let mut work = async move { handlers::handle(session, output, frame).await }.boxed();
        match lane {
            Lane::Immediate => {
                if (&mut work).now_or_never().is_none() {
                    if is_shell { &self.shells } else { &self.immediate }.push(work);
                }
            }
            Lane::Ordered => {
                if !self.ordered.is_empty() || (&mut work).now_or_never().is_none() {
                    self.ordered.push_back(work);
                }
            }
        }
    }

    /// Waits until one command is through. Cancel-safe.
    async fn advance(&mut self) {
        let Self { ordered, immediate, shells, .. } = self;
        tokio::select! {
            () = async {
                match ordered.front_mut() {
                    Some(work) => work.await,
                    None => std::future::pending().await,
                }
            } => {
                ordered.pop_front();
            }
            Some(()) = immediate.next() => {}
            Some(()) = shells.next() => {}
        }
    }

    /// Answers what was read and ends the session.
    async fn finish(mut self) {
        let drained = tokio::time::timeout(DRAIN_WAIT, async {
            while !self.ordered.is_empty() {
                self.advance().await;
            }
        });
        if drained.await.is_err() {
            tracing::warn!("commands were left unanswered");
        }
        let session = self.session;
        let answers = async {
            while self.len() > 0 {
                self.advance().await;
            }
        };
        let _ = tokio::time::timeout(DRAIN_WAIT, async { tokio::join!(session.stop(), answers) }).await;
        // Last, for commands that were cut off still leave their entries.
        let _ = tokio::time::timeout(DRAIN_WAIT, session.close()).await;
    }
}
