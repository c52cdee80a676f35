//! The names of a model's small files.

/// The folder of chat templates besides the default one.
pub(crate) const TEMPLATES: &str = "additional_chat_templates";

/// The files in Hugging Face's layout from which a model is opened, besides its weights and their index. A slash is
/// between a folder and a file in it.
pub const SMALL_FILES: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];
