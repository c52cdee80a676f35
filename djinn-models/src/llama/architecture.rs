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
}

impl Architecture {
    pub(crate) const ALL: [Architecture; 3] =
        [Architecture::Llama, Architecture::Mistral, Architecture::Qwen2];

    /// Its name in `config.json`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Mistral => "MistralForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
        }
    }

    /// Its `model_type` in `config.json`.
    pub(crate) const fn model_type(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Mistral => "mistral",
            Architecture::Qwen2 => "qwen2",
        }
    }

    /// Positions where the configuration does not tell, as in transformers.
    pub(crate) const fn default_context(self) -> u64 {
        match self {
            Architecture::Llama => 2048,
            Architecture::Mistral => 131_072,
            Architecture::Qwen2 => 32_768,
        }
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}
