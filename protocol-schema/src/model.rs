//! Models and thinking levels, and the commands about them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::content::Extra;
use crate::number::Number;
use crate::registry::ResponseData;

/// Prices in dollars per million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelCost {
    /// Input tokens.
    pub input: Number,
    /// Output tokens.
    pub output: Number,
    /// Tokens read from the provider's cache.
    pub cache_read: Number,
    /// Tokens written to the provider's cache.
    pub cache_write: Number,
}

/// A model an agent can use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Identifier within the provider.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The wire API, for example `anthropic-messages`.
    pub api: String,
    /// The provider's name.
    pub provider: String,
    /// Base of the API's addresses.
    pub base_url: String,
    /// Whether it can think before it answers.
    pub reasoning: bool,
    /// Kinds of input: `text`, `image`.
    pub input: Vec<String>,
    /// What it costs.
    pub cost: ModelCost,
    /// Size of the context window in tokens.
    pub context_window: u64,
    /// Largest answer in tokens.
    pub max_tokens: u64,
    /// Extra HTTP headers; values that may be secret are masked on the wire. Absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Map<String, Value>>,
    /// `api-key` or `bearer`. Absent means the API's usual way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_mode: Option<String>,
    /// Identifier sent to the provider instead of `id`. Absent when they are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_model_id: Option<String>,
    /// Deviations of an API that claims compatibility. Absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compat: Option<Value>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A provider and a model id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ModelRef {
    /// The provider's name.
    pub provider: String,
    /// The model's id.
    pub id: String,
}

/// A model in the scope that `cycle_model` walks through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScopedModel {
    /// The provider's name.
    pub provider: String,
    /// The model's id.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Whether it can think.
    pub reasoning: bool,
    /// Level that applies when it is chosen. Absent when the scope names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_level: Option<ThinkingLevel>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

open_words! {
    /// How much a model thinks before it answers.
    pub enum ThinkingLevel {
        /// Not at all.
        Off = "off",
        /// As little as possible.
        Minimal = "minimal",
        /// Little.
        Low = "low",
        /// Some.
        Medium = "medium",
        /// Much.
        High = "high",
        /// As much as possible; only some model families.
        Xhigh = "xhigh",
    }
}

/// Switches to another model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetModel {
    /// The provider's name.
    pub provider: String,
    /// The model's id.
    pub model_id: String,
}

impl ResponseData for Model {}

/// Lists the models whose provider has credentials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GetAvailableModels {}

/// Answer to `get_available_models`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AvailableModels {
    /// The models.
    pub models: Vec<Model>,
}

impl ResponseData for AvailableModels {}

/// Sets the thinking level; the server clamps it to what the model can do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SetThinkingLevel {
    /// The level.
    pub level: ThinkingLevel,
}
