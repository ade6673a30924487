//! The tools of a session, with their argument checks.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::context::ToolLine;
use crate::llm::ToolDefinition;
use crate::tools::Tool;
use crate::tools::validate::Validator;

/// A tool and the check of its arguments, which is prepared at its first call.
#[derive(Debug, Clone)]
pub(super) struct CheckedTool {
    pub(super) tool: Arc<dyn Tool>,
    validator: Arc<OnceLock<Validator>>,
}

impl CheckedTool {
    pub(super) fn new(tool: Arc<dyn Tool>) -> Self {
        Self { tool, validator: Arc::default() }
    }

    /// The arguments as the tool gets them, coerced to its schema where they can be.
    pub(super) fn check(&self, name: &str, arguments: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        self.validator.get_or_init(|| Validator::new(&self.tool.definition().parameters)).check(name, arguments)
    }
}

/// What the model is told about the tools.
pub(super) fn definitions(tools: &[CheckedTool]) -> Arc<[ToolDefinition]> {
    tools.iter().map(|tool| tool.tool.definition().clone()).collect()
}

/// What the system prompt says about the tools.
pub(super) fn prompt_lines(tools: &[CheckedTool]) -> Vec<ToolLine> {
    let line = |tool: &CheckedTool| ToolLine {
        name: tool.tool.definition().name.clone(),
        snippet: tool.tool.snippet().map(str::to_owned),
        guidelines: tool.tool.guidelines().iter().map(|bullet| (*bullet).to_owned()).collect(),
    };
    tools.iter().map(line).collect()
}
