//! The system prompt of one session: its parts are loaded once, the text is made for each run.

use std::sync::Arc;
use std::time::Duration;

use protocol_schema::Model;
use protocol_schema::model::ModelRef;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use super::context_files::ContextFiles;
use super::project_state::ProjectState;
use super::system_prompt::{PromptParts, PromptSources, ToolLine, system_prompt, today};
use crate::environment::Paths;

/// Loading begins this long after start-up, which has the machine for itself until then.
const PREFETCH_DELAY: Duration = Duration::from_millis(50);

/// What the prompt depends on besides files.
#[derive(Debug, Clone)]
pub struct PromptOptions {
    /// Where files are looked for.
    pub paths: Paths,
    /// `--system-prompt`: text or the path of a file.
    pub system_prompt: Option<String>,
    /// `--append-system-prompt`: text or the path of a file.
    pub append_system_prompt: Option<String>,
    /// The user interface, as in `--ui`.
    pub ui: String,
}

/// Source of the session's system prompt.
#[derive(Debug)]
pub struct PromptSource {
    options: PromptOptions,
    loaded: Arc<OnceCell<Loaded>>,
    prefetch: JoinHandle<()>,
}

#[derive(Debug)]
struct Loaded {
    sources: PromptSources,
    context_files: ContextFiles,
    project_state: Option<ProjectState>,
}

impl PromptSource {
    /// Begins to load in the background. Must be called within a runtime.
    #[must_use]
    pub fn new(options: PromptOptions) -> Self {
        let loaded = Arc::new(OnceCell::new());
        let (cell, wanted) = (Arc::clone(&loaded), options.clone());
        let prefetch = tokio::spawn(async move {
            tokio::time::sleep(PREFETCH_DELAY).await;
            cell.get_or_init(|| load(&wanted)).await;
        });
        Self { options, loaded, prefetch }
    }

    /// The prompt for a run with this model and these tools. Cancel-safe.
    pub async fn build(&self, tools: Vec<ToolLine>, model: &Model) -> String {
        let loaded = self.loaded.get_or_init(|| load(&self.options)).await;
        system_prompt(&PromptParts {
            custom: loaded.sources.custom.clone(),
            append: loaded.sources.append.clone(),
            tools,
            context_files: loaded.context_files.files.clone(),
            sections: Vec::new(),
            project_state: loaded.project_state.clone(),
            is_root: nix::unistd::geteuid().is_root(),
            date: today(),
            cwd: self.options.paths.cwd.clone(),
            ui: self.options.ui.clone(),
            model: Some(ModelRef { provider: model.provider.clone(), id: model.id.clone() }),
        })
    }
}

impl Drop for PromptSource {
    fn drop(&mut self) {
        self.prefetch.abort();
    }
}

async fn load(options: &PromptOptions) -> Loaded {
    let (sources, context_files, project_state) = tokio::join!(
        PromptSources::load(&options.paths, options.system_prompt.clone(), options.append_system_prompt.clone()),
        ContextFiles::load(&options.paths),
        ProjectState::gather(&options.paths.cwd),
    );
    for warning in sources.warnings.iter().chain(&context_files.warnings) {
        tracing::warn!("{warning}");
    }
    Loaded { sources, context_files, project_state }
}
