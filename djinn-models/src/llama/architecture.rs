//! The members of the family: what their configurations say, and leave unsaid.

/// A model whose blocks are Llama's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// Touvron et al. 2023, and Llama 3.
    Llama,
    /// Jiang et al. 2023: Llama with grouped queries and, in its first version, a sliding window.
    Mistral,
    /// Yang et al. 2024: Llama with biases on the projections of queries, keys and values.
    Qwen2,
    /// Yang et al. 2025: Llama with a norm of each query and key head.
    Qwen3,
}

impl Architecture {
    pub(crate) const ALL: [Architecture; 4] =
        [Architecture::Llama, Architecture::Mistral, Architecture::Qwen2, Architecture::Qwen3];

    /// Its name in `config.json`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Mistral => "MistralForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Its `model_type` in `config.json`.
    pub(crate) const fn model_type(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Mistral => "mistral",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        }
    }

    /// Positions where the configuration does not tell, as in transformers.
    pub(crate) const fn default_context(self) -> u64 {
        match self {
            Architecture::Llama => 2048,
            Architecture::Mistral => 131_072,
            Architecture::Qwen2 | Architecture::Qwen3 => 32_768,
        }
    }

    /// Whether each query and key head is normed before its rotation.
    pub(crate) const fn norms_heads(self) -> bool {
        matches!(self, Architecture::Qwen3)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}
