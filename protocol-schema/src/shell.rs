//! Shell commands of the client.

use serde::{Deserialize, Serialize};

use crate::content::Extra;
use crate::registry::ResponseData;

/// Runs a shell command and adds its output to the context of the next prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Bash {
    /// The command line.
    pub command: String,
}

/// Answer to `bash`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BashResult {
    /// Standard output and standard error as they came.
    pub output: String,
    /// Exit status. Absent when the command was aborted or killed by a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether it was aborted.
    pub cancelled: bool,
    /// Whether `output` is only the end of the whole output.
    pub truncated: bool,
    /// File that holds the whole output. Absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_output_path: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

impl ResponseData for BashResult {}

/// Aborts every running `bash` command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AbortBash {}
