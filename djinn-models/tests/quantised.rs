//! Quantised checkpoints in Hugging Face's layout (`scripts/make_quant_checkpoints.py`): their matrices are blocks that
//! stand for what the formats' formulas give, and what is not supported is refused by name.

use djinn_models::quantised::QuantisedDir;
use djinn_models::safetensors::SafetensorsDir;
use djinn_models::{Location, Model, OpenOptions, StoredType, TensorFile, open};
use djinn_srg::{BlockFormat, DType, Encoding};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const VARIANTS: [(&str, &[BlockFormat]); 8] = [
    ("awq-g128", &[BlockFormat::INT4_G128]),
    ("awq-g64", &[BlockFormat::INT4_G32]),
    ("fp8-block", &[BlockFormat::FP8_G128, BlockFormat::FP8_G32]),
    ("fp8-channel", &[BlockFormat::FP8_G128]),
    ("fp8-tensor", &[BlockFormat::FP8_G32]),
    ("gptq-column", &[BlockFormat::INT4_G32]),
    ("gptq-g128", &[BlockFormat::INT4_G128]),
    ("gptq-v2-g32", &[BlockFormat::INT4_G32]),
];

fn directory(variant: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantised").join(variant)
}

fn read(variant: &str, file: &str) -> Vec<u8> {
    std::fs::read(directory(variant).join(file)).unwrap()
}

fn json_of(variant: &str, file: &str) -> Value {
    serde_json::from_slice(&read(variant, file)).unwrap()
}

fn open_variant(variant: &str, encodings: &'static [Encoding]) -> Model {
    let options = OpenOptions { encodings, ..OpenOptions::default() };
    open(&Location::Directory(directory(variant)), &options).unwrap()
}

#[test]
fn matrices_are_what_the_formulas_give() {
    for (variant, formats) in VARIANTS {
        let (config, weights) = (read(variant, "config.json"), read(variant, "model.safetensors"));
        let file = QuantisedDir::from_bytes(&config, weights).unwrap();
        let expected = json_of(variant, "expected.json");
        let rows = expected["rows"].as_object().unwrap();
        assert_eq!(rows.len(), 7);
        for (name, rows) in rows {
            let info = file.tensor(name).unwrap();
            let StoredType::Blocks(format) = info.stored else { panic!("{variant}: {info:?}") };
            assert!(formats.contains(&format), "{variant}: {name} in {format:?}");
            let columns = info.shape[1];
            for (row, values) in rows.as_object().unwrap() {
                let row: u64 = row.parse().unwrap();
                let elements = row * columns..(row + 1) * columns;
                let mut out = vec![0; columns as usize * 4];
                file.read(name, elements, DType::F32, &mut out).unwrap();
                let found: Vec<f32> = out.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
                let values: Vec<f32> =
                    values.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
                assert!(found == values, "{variant}: row {row} of {name}: {found:?} instead of {values:?}");
            }
        }
        // What a matrix is made of is no tensor of its own.
        let stored = SafetensorsDir::open(directory(variant)).unwrap();
        let hidden =
            ["qweight", "qzeros", "scales", "g_idx", "weight_scale", "weight_scale_inv", "input_scale"];
        let left = |name: &str| !hidden.iter().any(|suffix| name.ends_with(&format!(".{suffix}")));
        let mut left: Vec<_> = stored.tensors().filter(|t| left(&t.name)).map(|t| t.name.clone()).collect();
        if variant == "gptq-g128" {
            left.retain(|name| !name.ends_with(".bias"));
        }
        left.extend(rows.keys().cloned());
        let mut found: Vec<_> = file.tensors().map(|t| t.name.clone()).collect();
        left.sort();
        found.sort();
        left.dedup();
        assert_eq!(found, left, "{variant}");
    }
}

#[test]
fn rows_are_the_same_however_they_are_cut() {
    for (variant, formats) in VARIANTS {
        let model = open_variant(variant, &Encoding::ENCODED);
        let mut quantised = 0;
        for (_, value) in model.graph.weights().filter(|(_, value)| !value.encodings.is_plain()) {
            let [rows, columns] = value.matrix();
            let bytes = |rows| value.stored_bytes(rows) as usize;
            let Encoding::Blocks(format) = value.encodings.at(0) else { panic!("{}", value.name) };
            assert!(formats.contains(&format));
            let blocks = (columns / format.elements() * format.bytes()) as usize;
            let row = blocks.next_multiple_of(16);
            assert_eq!(bytes(0..rows), rows as usize * row);
            let mut whole = vec![0xaa; bytes(0..rows)];
            model.source.read_rows(&value.name, 0..rows, &mut whole).unwrap();
            assert!(whole.chunks(row).all(|row| row[blocks..].iter().all(|&byte| byte == 0)));
            for step in [1, 7, 50] {
                let mut out = vec![0xaa; whole.len()];
                for (index, out) in out.chunks_mut(bytes(0..step)).enumerate() {
                    let start = index as u64 * step;
                    model.source.read_rows(&value.name, start..rows.min(start + step), out).unwrap();
                }
                assert!(out == whole, "{variant}: {} in steps of {step}", value.name);
            }
            quantised += 1;
        }
        assert_eq!(quantised, 4, "{variant}");
        let decoded = open_variant(variant, &[]);
        let is_f16 = |value: &djinn_srg::Value| value.encodings.is_plain() && value.dtype() == DType::F16;
        assert!(decoded.graph.weights().all(|(_, value)| is_f16(value) || value.name == "rope.inv_freq"));
    }
}

/// Why `variant` is refused after a change of its `quantization_config`, or of its tensors' types and bytes.
fn refused(variant: &str, settings: Value, change: impl FnOnce(&mut Parts)) -> String {
    let mut config = json_of(variant, "config.json");
    let quantization = config["quantization_config"].as_object_mut().unwrap();
    quantization.extend(settings.as_object().unwrap().clone());
    let weights = read(variant, "model.safetensors");
    let stored = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let part = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    let mut parts: Parts = stored.tensors().into_iter().map(part).collect();
    change(&mut parts);
    let views = parts
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap())
        .unwrap();
    let options = OpenOptions { encodings: &Encoding::ENCODED, ..OpenOptions::default() };
    let model = match open(&Location::Directory(folder.path().to_owned()), &options) {
        Err(error) => return error.to_string(),
        Ok(model) => model,
    };
    // What no header says is found when the rows are read.
    let read = |(_, value): (_, &djinn_srg::Value)| {
        let mut out = vec![0; value.stored_bytes(0..value.matrix()[0]) as usize];
        model.source.read_rows(&value.name, 0..value.matrix()[0], &mut out).err()
    };
    let error = model.graph.weights().find_map(read).expect("it is refused");
    std::error::Error::source(&error).expect("a source").to_string()
}

type Parts = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const DOWN: &str = "model.layers.0.mlp.down_proj";

#[test]
fn settings_that_are_not_supported_are_refused_by_name() {
    let groups = |weights: Value| json!({"config_groups": {"group_0": {"weights": weights}}});
    let cases = [
        ("awq-g64", json!({"quant_method": "bitsandbytes"}), "quantization_config bitsandbytes"),
        ("awq-g64", json!({"bits": 8}), "quantization_config.bits 8 (awq)"),
        ("awq-g64", json!({"version": "gemv"}), "quantization_config.version gemv (awq)"),
        ("awq-g64", json!({"zero_point": false}), "quantization_config.zero_point false (awq)"),
        ("awq-g64", json!({"group_size": 48}), "quantization_config.group_size 48 (awq)"),
        ("gptq-column", json!({"bits": 3}), "quantization_config.bits 3 (gptq)"),
        ("gptq-column", json!({"group_size": 0}), "quantization_config.group_size 0 (gptq)"),
        ("gptq-column", json!({"group_size": null}), "quantization_config.group_size"),
        ("gptq-column", json!({"checkpoint_format": "marlin"}), "checkpoint_format marlin (gptq)"),
        ("gptq-column", json!({"is_marlin_format": true}), "is_marlin_format true (gptq)"),
        ("gptq-column", json!({"dynamic": {"-:.*down.*": {}}}), "dynamic -:.*down.* (gptq)"),
        (
            "gptq-column",
            json!({"group_size": 32}),
            "tensor model.layers.0.mlp.down_proj.qzeros has shape [1, 8]",
        ),
        ("fp8-tensor", json!({"fmt": "e5m2"}), "quantization_config.fmt e5m2 (fp8)"),
        ("fp8-block", json!({"weight_block_size": [64, 64]}), "weight_scale_inv has shape [1, 2]"),
        ("fp8-block", json!({"weight_block_size": [128, 48]}), "weight_scale_inv"),
        ("fp8-block", json!({"weight_block_size": [128]}), "weight_block_size"),
        ("fp8-channel", json!({"format": "pack-quantized"}), "format pack-quantized (compressed-tensors)"),
        ("fp8-channel", json!({"kv_cache_scheme": {"num_bits": 8}}), "kv_cache_scheme (compressed-tensors)"),
        (
            "fp8-channel",
            groups(json!({"num_bits": 4, "type": "int", "strategy": "group"})),
            "config_groups.weights int of 4 bits (compressed-tensors)",
        ),
        (
            "fp8-channel",
            groups(json!({"num_bits": 8, "type": "float", "strategy": "token"})),
            "quantization_config.strategy token (compressed-tensors)",
        ),
    ];
    for (variant, settings, part) in cases {
        let text = refused(variant, settings.clone(), |_| ());
        assert!(text.contains(part) && !text.contains('\n'), "{variant} with {settings}: {text}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let of = |kind: &str| format!("{DOWN}.{kind}");
    let put = |parts: &mut Parts, kind: &str, at: usize, bytes: &[u8]| {
        parts.get_mut(&format!("{DOWN}.{kind}")).unwrap().2[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let check = |variant, text: String, named: &str| {
        assert!(text.contains(named) && !text.contains('\n'), "{variant}: {text}");
    };
    let none = || json!({});
    // Inputs 3 and 200 of other groups: GPTQ's order by activation.
    let text = refused("gptq-g128", none(), |parts| put(parts, "g_idx", 12, &1u32.to_le_bytes()));
    check(
        "gptq-g128",
        text,
        "desc_act (gptq): tensor model.layers.0.mlp.down_proj.g_idx has input 3 in group 1",
    );
    let text = refused("gptq-g128", none(), |parts| drop(parts.remove(&of("scales"))));
    check("gptq-g128", text, "no tensor model.layers.0.mlp.down_proj.scales, which gptq needs");
    let text = refused("gptq-g128", none(), |parts| parts.get_mut(&of("qweight")).unwrap().0 = Dtype::F32);
    check("gptq-g128", text, "type F32 of tensor model.layers.0.mlp.down_proj.qweight");
    // A bias that is more than zeros belongs to another model.
    let text = refused("gptq-g128", none(), |parts| put(parts, "bias", 2, &[0, 60]));
    check("gptq-g128", text, "tensor model.layers.0.mlp.down_proj.bias, which is no part of");
    // It is read when the file is opened: not one of another shape.
    let bias = |shape: Vec<usize>| {
        let bytes = vec![0; shape.iter().product::<usize>() * 2];
        refused("gptq-g128", none(), |parts| drop(parts.insert(of("bias"), (Dtype::F16, shape, bytes))))
    };
    check("gptq-g128", bias(vec![1 << 20]), "down_proj.bias has shape [1048576]");
    check("gptq-g128", bias(vec![1, 64]), "down_proj.bias has shape [1, 64]");
    // A matrix without outputs has no bytes, however many inputs it has.
    let text = refused("gptq-g128", none(), |parts| {
        parts.insert(of("qweight"), (Dtype::I32, vec![1 << 28, 0], Vec::new()));
    });
    check("gptq-g128", text, "down_proj.qweight (gptq) is not supported; supported: two dimensions");
    let text = refused("gptq-g128", none(), |parts| put(parts, "scales", 2, &[0, 0x7c]));
    check("gptq-g128", text, "the scale inf of group 0 in tensor model.layers.0.mlp.down_proj.scales");
    // An f32 between two f16.
    let text = refused("gptq-v2-g32", none(), |parts| put(parts, "scales", 0, &0.100_001f32.to_le_bytes()));
    check("gptq-v2-g32", text, "the scale 0.100001 of group 0 in tensor");
    let text = refused("awq-g64", none(), |parts| {
        let weight = parts["model.norm.weight"].clone();
        parts.insert(of("weight"), weight);
    });
    check("awq-g64", text, "down_proj.weight beside model.layers.0.mlp.down_proj.qweight");
    let text = refused("fp8-block", none(), |parts| drop(parts.remove(&of("weight_scale_inv"))));
    check("fp8-block", text, "no tensor model.layers.0.mlp.down_proj.weight_scale_inv, which fp8 needs");
    let text = refused("fp8-tensor", none(), |parts| put(parts, "weight", 97, &[0xff]));
    check("fp8-tensor", text, "NaN in row 1 of tensor model.layers.0.mlp.down_proj.weight");
    let text = refused("fp8-tensor", none(), |parts| put(parts, "weight_scale", 0, &f32::NAN.to_le_bytes()));
    check("fp8-tensor", text, "the scale NaN in tensor model.layers.0.mlp.down_proj.weight_scale");
}

#[test]
fn families_that_store_matrices_transposed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let gpt2 = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/gpt2-f16");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(gpt2.join("config.json")).unwrap()).unwrap();
    config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    for file in std::fs::read_dir(&gpt2).unwrap().map(|file| file.unwrap()) {
        let name = file.file_name();
        if name != "config.json" {
            std::fs::copy(file.path(), folder.path().join(name)).unwrap();
        }
    }
    let error = open(&Location::Directory(folder.path().to_owned()), &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("quantization_config gptq of GPT2LMHeadModel"), "{error}");
}
