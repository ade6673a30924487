//! The `scripted` provider: answers from a JSON file, so that programs that embed the agent can be
//! tested offline and for nothing. The format is described in `docs/scripted-provider.md`.

mod format;
mod play;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use protocol_schema::{Model, StopReason};
use tokio::sync::{OnceCell, mpsc};

use self::format::Script;
use self::play::Player;
use super::{Provider, ProviderError, ProviderRequest, StreamEvent};

/// Name of the API.
pub const API: &str = "scripted";
/// Name of the provider. No other may have the API, so that no script passes for a real model.
pub const PROVIDER: &str = "scripted";
/// Id of the model that a script gets by itself.
pub const MODEL: &str = "scripted";
/// Environment variable that names a script.
pub const VARIABLE: &str = "DREB_SCRIPT";

/// The model that replays the script at `path`.
#[must_use]
pub fn model(path: &Path) -> Model {
    Model {
        id: MODEL.to_owned(),
        name: "Scripted".to_owned(),
        api: API.to_owned(),
        provider: PROVIDER.to_owned(),
        base_url: path.to_string_lossy().into_owned(),
        reasoning: true,
        input: vec!["text".to_owned(), "image".to_owned()],
        context_window: 200_000,
        max_tokens: 32_000,
        ..Model::default()
    }
}

/// The file that a base address names: a path or a `file:` address, relative to `folder`.
#[must_use]
pub fn script_path(base_url: &str, folder: &Path) -> PathBuf {
    let path = base_url.strip_prefix("file://").or_else(|| base_url.strip_prefix("file:")).unwrap_or(base_url);
    folder.join(path)
}

/// The wire API that replays scripts. A script is read at its first request and kept; its place
/// moves on with every request of the process.
#[derive(Clone, Default)]
pub struct ScriptedProvider {
    players: Arc<Mutex<HashMap<String, Arc<OnceCell<Player>>>>>,
}

impl fmt::Debug for ScriptedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedProvider").finish_non_exhaustive()
    }
}

impl ScriptedProvider {
    /// A provider that has read nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn cell(&self, path: &str) -> Arc<OnceCell<Player>> {
        let mut players = self.players.lock().unwrap_or_else(PoisonError::into_inner);
        players.entry(path.to_owned()).or_default().clone()
    }
}

impl Provider for ScriptedProvider {
    fn api(&self) -> &'static str {
        API
    }

    fn stream(
        &self,
        request: ProviderRequest,
        events: mpsc::Sender<StreamEvent>,
    ) -> BoxFuture<'static, Result<StopReason, ProviderError>> {
        let cell = self.cell(&request.model.base_url);
        Box::pin(async move {
            // A failure is not kept: the file may be mended while the server runs.
            let player = cell.get_or_try_init(|| load(request.model.base_url.clone())).await?;
            player.play(&request, &events).await
        })
    }
}

async fn load(path: String) -> Result<Player, ProviderError> {
    let read = tokio::task::spawn_blocking(move || {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("Cannot read the script {path}: {error}"))?;
        let script = Script::parse(&text).map_err(|error| format!("The script {path} is not valid: {error}"))?;
        Ok::<_, String>(Player::new(path, script))
    });
    match read.await {
        Ok(player) => player.map_err(ProviderError::other),
        Err(error) => Err(ProviderError::other(format!("Cannot read the script: {error}"))),
    }
}

#[cfg(test)]
mod tests;
