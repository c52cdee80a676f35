//! `quantization_config` of `config.json`: the method and its settings.

use super::unsupported;
use crate::open::JsonKeys;
use crate::{Error, Result};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Method {
    Int4(Int4Scheme),
    Fp8(Fp8Scheme),
}

/// Integers of 4 bits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Int4Scheme {
    pub(super) packing: Packing,
    /// Inputs that share a scale and a zero point. `None`: all.
    pub(super) group: Option<u64>,
}

/// The order of eight integers in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Neighbouring inputs in order. Zero points are stored less this number, in the order of outputs.
    Gptq { less: u8 },
    /// Neighbouring outputs, even ones first.
    Awq,
}

/// Floats of 8 bits, E4M3.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fp8Scheme {
    pub(super) name: &'static str,
    /// Outputs and inputs that share a scale. `None`: the scales' shape decides.
    pub(super) block: Option<[u64; 2]>,
}

impl Method {
    /// Its name in `quant_method`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Method::Int4(scheme) => scheme.packing.name(),
            Method::Fp8(scheme) => scheme.name,
        }
    }
}

impl Packing {
    pub(super) fn name(self) -> &'static str {
        match self {
            Packing::Gptq { .. } => "gptq",
            Packing::Awq => "awq",
        }
    }
}

/// The method; `None` if the checkpoint is not quantised.
pub(super) fn method(keys: &JsonKeys) -> Result<Option<Method>> {
    let Some(keys) = keys.object("quantization_config")? else { return Ok(None) };
    let name = keys.string("quant_method")?.unwrap_or("of an unnamed method");
    let method = match name {
        "gptq" => gptq(&keys)?,
        "awq" => awq(&keys)?,
        "fp8" => fp8(&keys)?,
        "compressed-tensors" => compressed_tensors(&keys)?,
        other => {
            let remedy = "supported: gptq, awq, fp8, compressed-tensors; or use a GGUF file";
            return Err(unsupported(format!("quantization_config {other}"), remedy));
        }
    };
    Ok(Some(method))
}

fn gptq(keys: &JsonKeys) -> Result<Method> {
    let format = keys.string("checkpoint_format")?.unwrap_or("gptq");
    let less = match format {
        "gptq" => 1,
        "gptq_v2" => 0,
        other => return Err(setting("gptq", "checkpoint_format", other, "gptq, gptq_v2")),
    };
    if keys.flag("is_marlin_format")? {
        return Err(setting("gptq", "is_marlin_format", "true", "false"));
    }
    fits("gptq", keys, "pack_dtype", "int32")?;
    if let Some(rules) = keys.object("dynamic")?.filter(|rules| !rules.is_empty()) {
        let first = rules.names().next().unwrap_or_default();
        return Err(setting("gptq", "dynamic", first, "the same settings for all modules"));
    }
    Ok(Method::Int4(Int4Scheme {
        packing: Packing::Gptq { less },
        group: four_bit_groups("gptq", keys, "bits", "group_size")?,
    }))
}

fn awq(keys: &JsonKeys) -> Result<Method> {
    fits("awq", keys, "version", "gemm")?;
    if !keys.bool("zero_point")?.unwrap_or(true) {
        return Err(setting("awq", "zero_point", "false", "true"));
    }
    // AutoAWQ's own names, and those of its `quant_config.json`.
    let [bits, group] =
        [["bits", "w_bit"], ["group_size", "q_group_size"]].map(|[new, old]| match keys.contains(old) {
            true => old,
            false => new,
        });
    Ok(Method::Int4(Int4Scheme { packing: Packing::Awq, group: four_bit_groups("awq", keys, bits, group)? }))
}

/// The size of groups of 4-bit integers.
fn four_bit_groups(method: &str, keys: &JsonKeys, bits: &str, group: &str) -> Result<Option<u64>> {
    match keys.u64(bits)? {
        Some(4) => {}
        Some(other) => return Err(setting(method, bits, &other.to_string(), "4")),
        None => return keys.need(bits, None),
    }
    if keys.value(group).and_then(serde_json::Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    match keys.need(group, keys.u64(group)?)? {
        size if size > 0 && size.is_multiple_of(32) => Ok(Some(size)),
        size => Err(setting(method, group, &size.to_string(), "multiples of 32, and -1")),
    }
}

/// DeepSeek's blocks, or what vLLM's AutoFP8 writes.
fn fp8(keys: &JsonKeys) -> Result<Method> {
    fits("fp8", keys, "fmt", "e4m3")?;
    let sizes = keys.list("weight_block_size", "two whole numbers", serde_json::Value::as_u64)?;
    let block = match sizes[..] {
        [] => None,
        [outputs, inputs] if outputs > 0 && inputs > 0 => Some([outputs, inputs]),
        _ => return Err(keys.error("weight_block_size", format!("expected two sizes, found {sizes:?}"))),
    };
    Ok(Method::Fp8(Fp8Scheme { name: "fp8", block }))
}

/// FP8 matrices by channel, block or tensor; the shapes of their scales decide.
fn compressed_tensors(keys: &JsonKeys) -> Result<Method> {
    let name = "compressed-tensors";
    fits(name, keys, "format", "float-quantized")?;
    for key in ["kv_cache_scheme", "sparsity_config", "transform_config"] {
        if keys.object(key)?.is_some_and(|object| !object.is_empty()) {
            return Err(unsupported(format!("quantization_config.{key} ({name})"), "supported: none"));
        }
    }
    let groups = keys.need("config_groups", keys.object("config_groups")?)?;
    let mut block = None;
    for group in groups.names() {
        let group = groups.need(group, groups.object(group)?)?;
        let weights = group.need("weights", group.object("weights")?)?;
        match (weights.string("type")?, weights.u64("num_bits")?) {
            (Some("float"), Some(8)) => {}
            (kind, bits) => {
                let found = format!("{} of {} bits", kind.unwrap_or("none"), bits.unwrap_or(0));
                return Err(setting(name, "config_groups.weights", &found, "float of 8 bits"));
            }
        }
        match weights.string("strategy")? {
            Some("tensor" | "channel") => {}
            Some("block") => {
                let sizes = weights.list("block_structure", "sizes", serde_json::Value::as_u64)?;
                let &[outputs, inputs] = &sizes[..] else {
                    return Err(
                        weights.error("block_structure", format!("expected two sizes, found {sizes:?}"))
                    );
                };
                let sizes = [outputs, inputs];
                if sizes.contains(&0) || block.is_some_and(|block| block != sizes) {
                    return Err(weights.error("block_structure", format!("no sizes for all: {sizes:?}")));
                }
                block = Some(sizes);
            }
            other => {
                let found = other.unwrap_or("none");
                return Err(setting(name, "strategy", found, "tensor, channel, block"));
            }
        }
    }
    Ok(Method::Fp8(Fp8Scheme { name, block }))
}

/// Refuses any value other than the supported one (in lower case). The key may be absent.
fn fits(method: &str, keys: &JsonKeys, key: &str, supported: &str) -> Result<()> {
    match keys.string(key)? {
        Some(found) if !found.eq_ignore_ascii_case(supported) => Err(setting(method, key, found, supported)),
        _ => Ok(()),
    }
}

fn setting(method: &str, key: &str, found: &str, supported: &str) -> Error {
    unsupported(format!("quantization_config.{key} {found} ({method})"), &format!("supported: {supported}"))
}
