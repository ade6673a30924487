//! What the model gets to see besides the conversation, and what of the conversation it gets to see.
//!
//! * [`context_files`] finds the instruction files of user and project;
//! * [`project_state`] asks git where the project stands;
//! * [`mod@system_prompt`] puts the system prompt together;
//! * [`convert`] turns stored messages into those a provider takes;
//! * [`estimate`] says how full the context window is.

pub mod context_files;
pub mod convert;
pub mod estimate;
pub mod project_state;
mod prompt_source;
pub mod system_prompt;

pub use context_files::{ContextFile, ContextFiles};
pub use convert::{ConvertOptions, to_llm_messages};
pub use estimate::context_usage;
pub use project_state::ProjectState;
pub use prompt_source::{PromptOptions, PromptSource};
pub use system_prompt::{PromptParts, PromptSources, ToolLine, system_prompt};
