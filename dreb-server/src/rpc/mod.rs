//! RPC mode: JSON lines over standard input and output. The one module that knows stdio.

mod handlers;
pub mod input;
pub mod output;
mod serve;
mod sink;
pub mod stdio;

pub use self::serve::{Ended, serve};
pub use self::sink::{EventDetail, LineSink};
