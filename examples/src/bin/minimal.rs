//! Asks about the project in the current folder and prints the answer while it streams.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use dreb_client::protocol::Event;
use dreb_client::{RpcClient, RpcClientOptions};

fn main() -> ExitCode {
    // The client starts this same program once more; there, this line becomes the server.
    dreb_client::bundled::init();
    match ask("What is this project about? Answer in three sentences.") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn ask(question: &str) -> Result<(), Box<dyn Error>> {
    let options = RpcClientOptions::new().bundled().tools(["read", "grep", "find", "ls"]);
    let client = RpcClient::start(options).await?;
    let mut events = client.events();
    let printer = tokio::spawn(async move {
        let mut out = io::stdout();
        while let Some(event) = events.next().await {
            if let Some(text) = event.event().and_then(Event::text_delta) {
                write!(out, "{text}")?;
                out.flush()?;
            }
        }
        writeln!(out)
    });
    let outcome = client.prompt_and_wait(question).await?;
    client.shutdown().await;
    printer.await??;
    match outcome.error_message() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
