//! Options that people know from llama.cpp, vLLM and transformers, and what stands for them here.

/// Each with its names and what to do instead.
const FOREIGN: &[(&[&str], &str)] = &[
    (
        &["-ngl", "--n-gpu-layers", "--gpu-layers", "--gpu-memory-utilization", "--device-map"],
        "Djinn places weights by bytes: --vram is the device memory that it may use",
    ),
    (&["--n-cpu-moe", "--cpu-moe", "-ncmoe", "--cpu-offload-gb"], "see --vram and --cpu-share"),
    (
        &["--tensor-parallel-size", "--pipeline-parallel-size", "--tensor-split"],
        "a model runs on one GPU; weights beyond --vram stream from host memory",
    ),
    (&["-m", "--model", "--hf-repo"], "the model is an argument without a flag"),
    (&["-p", "--prompt"], "the prompt is an argument without a flag"),
    (&["-t"], "see --threads"),
    (
        &["--quantization", "--load-in-4bit", "--load-in-8bit"],
        "weights run as they are stored; see --encoding",
    ),
    (&["--dtype"], "weights run as they are stored; see --encoding, and --kv-dtype for the KV cache"),
    (&["--served-model-name"], "see --alias"),
    (&["--enable-prefix-caching", "--cache-prompt", "--cache-reuse"], "common prefixes are always shared"),
    (&["--flash-attn", "--enable-chunked-prefill", "--cont-batching"], "it is always so"),
];

/// What stands for an option of another program; `None` for names of none.
pub(super) fn remedy(option: &str) -> Option<&'static str> {
    FOREIGN.iter().find(|(names, _)| names.contains(&option)).map(|(_, remedy)| *remedy)
}
