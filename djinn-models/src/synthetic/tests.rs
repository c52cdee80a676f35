//! Synthetic models: shapes, reproducibility, distribution.

use super::*;
use crate::{Location, open as open_model};
use proptest::prelude::*;
use std::time::Instant;

fn model(name: &str) -> Model {
    open_model(&Location::Synthetic(name.to_owned()), &OpenOptions::default()).unwrap()
}

fn shape_of(model: &Model, weight: &str) -> ([u64; 2], DType) {
    let (_, value) = model.graph.weights().find(|(_, v)| v.name == weight).unwrap();
    (value.matrix(), value.dtype())
}

fn bytes(model: &Model, weight: &str) -> Vec<u8> {
    let ([rows, columns], dtype) = shape_of(model, weight);
    let mut out = vec![0; (rows * columns * dtype.bytes()) as usize];
    model.source.read_rows(weight, 0..rows, &mut out).unwrap();
    out
}

fn numbers(model: &Model, weight: &str) -> Vec<f64> {
    let bytes = bytes(model, weight);
    let halves = || bytes.as_chunks::<2>().0;
    match shape_of(model, weight).1 {
        DType::F16 => halves().iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
        DType::BF16 => halves().iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
    }
}

#[test]
fn known_models_have_their_published_sizes() {
    let sizes = [
        ("llama-2-7b", 6_738_415_616, DType::F16),
        ("llama-2-13b", 13_015_864_320, DType::F16),
        ("llama-2-70b", 68_976_648_192, DType::F16),
        ("llama-3-8b", 8_030_261_248, DType::BF16),
        ("llama-3.1-8b", 8_030_261_248, DType::BF16),
        ("llama-3-70b", 70_553_706_496, DType::BF16),
        ("llama-3.2-1b", 1_235_814_400, DType::BF16),
        ("mistral-7b", 7_248_023_552, DType::BF16),
        ("qwen2.5-7b", 7_615_616_512, DType::BF16),
        ("qwen3-8b", 8_190_735_360, DType::BF16),
        ("qwen3-30b-a3b", 30_532_122_624, DType::BF16),
        ("smollm2-135m", 134_515_008, DType::BF16),
        ("mixtral-8x7b", 46_702_792_704, DType::BF16),
        ("gpt2", 124_439_808, DType::F32),
        ("gpt-j-6b", 6_050_882_784, DType::F16),
        ("pythia-6.9b", 6_857_302_016, DType::F16),
        ("falcon-7b", 6_921_720_704, DType::BF16),
        ("falcon-40b", 41_303_293_952, DType::BF16),
        // Its files hold the tied head once more: 179,522,565,120.
        ("falcon-180b", 178_557_088_768, DType::BF16),
    ];
    for (name, parameters, dtype) in sizes {
        let model = model(name);
        let frequencies = model.graph.weights().find(|(_, v)| v.name == "rope.inv_freq");
        let frequencies = frequencies.map_or(0, |(_, v)| v.matrix()[0]);
        assert_eq!(model.graph.parameters() - frequencies, parameters, "{name}");
        assert_eq!(shape_of(&model, "embed.weight").1, dtype, "{name}");
    }
}

#[test]
fn opening_seventy_billion_weights_generates_none() {
    let start = Instant::now();
    model("llama-2-70b");
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds < 0.5, "{seconds} s");
}

#[test]
fn every_name_opens_and_every_weight_reads() {
    for name in names() {
        let model = model(name);
        assert_eq!(model.name, format!("synthetic:{name}"));
        for (_, value) in model.graph.weights() {
            let [rows, _] = value.matrix();
            let mut out = vec![0; value.stored_bytes(0..1) as usize];
            model.source.read_rows(&value.name, rows - 1..rows, &mut out).unwrap();
            assert!(out.iter().any(|&b| b != 0), "{name}: {}", value.name);
        }
    }
}

#[test]
fn the_seed_and_the_name_decide_the_bytes() {
    let weight = "blocks.1.attn.out.weight";
    let [a, b] = ["tiny?seed=1", "tiny?seed=2"].map(model);
    assert_eq!(bytes(&a, weight), bytes(&model("tiny?seed=1"), weight));
    assert_ne!(bytes(&a, weight), bytes(&b, weight));
    assert_ne!(bytes(&a, weight), bytes(&a, "blocks.0.attn.out.weight"));
    assert_eq!(bytes(&model("tiny"), weight), bytes(&model("tiny?seed=0"), weight));
}

#[test]
fn blocks_are_mixed_as_llama_cpp_does_and_stand_for_the_same_deviation() {
    let shape = "tiny?layers=8&hidden=256&intermediate=512&vocab=300&heads=4&encoding=q4_k_m";
    let kept = OpenOptions { encodings: &Encoding::ENCODED, ..OpenOptions::default() };
    let [stored, decoded] = [kept, OpenOptions::default()]
        .map(|options| open_model(&Location::Synthetic(shape.to_owned()), &options).unwrap());
    let formats = |name: &str| -> Vec<_> {
        let (_, value) = stored.graph.weights().find(|(_, value)| value.name == name).unwrap();
        value.encodings.runs(0..value.matrix()[0]).map(|(_, encoding)| encoding.name()).collect()
    };
    for (layer, more) in [true, false, false, true, false, false, true, true].into_iter().enumerate() {
        let down = if more { "Q6_K" } else { "Q4_K" };
        assert_eq!(formats(&format!("blocks.{layer}.mlp.down.weight")), [down], "{layer}");
        let qkv = formats(&format!("blocks.{layer}.attn.qkv.weight"));
        assert_eq!(qkv.last(), Some(&down), "{layer}: {qkv:?}");
    }
    assert_eq!([formats("unembed.weight"), formats("embed.weight")], [["Q6_K"], ["Q4_K"]]);
    let weight = "blocks.0.attn.qkv.weight";
    let halves = bytes(&decoded, weight);
    let values: Vec<f32> =
        halves.as_chunks().0.iter().map(|&bits| bf16::from_le_bytes(bits).to_f32()).collect();
    let deviation = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
    let expected = 1.25 / 16.0;
    assert!((deviation / expected - 1.0).abs() < 0.1, "{deviation} instead of {expected}");
    // The same blocks, decoded. Rows of Q6_K are padded.
    for (weight, format, row_bytes) in
        [(weight, BlockFormat::Q4_K, 144), ("unembed.weight", BlockFormat::Q6_K, 224)]
    {
        let values = numbers(&decoded, weight);
        let mut blocks = vec![0xaa; 2 * row_bytes];
        stored.source.read_rows(weight, 1..3, &mut blocks).unwrap();
        for (blocks, values) in blocks.chunks(row_bytes).zip(values[256..].chunks(256)) {
            let (blocks, padding) = blocks.split_at(format.bytes() as usize);
            let mut row = [0.0; 256];
            format.decode(blocks, &mut row);
            assert_eq!(row.map(|x| bf16::from_f32(x).to_f64()), values);
            assert!(padding.iter().all(|&byte| byte == 0));
        }
    }
}

proptest! {
    #[test]
    fn rows_are_the_same_however_they_are_cut(
        dtype in prop::sample::select(vec!["f32", "f16", "bf16"]),
        // 30 columns, so that rows start within a counter's four elements.
        weight in prop::sample::select(vec!["embed.weight", "blocks.0.mlp.gate_up.bias", "ln_final.weight"]),
        mut cuts in prop::collection::vec(0u64..=30, 1..6),
    ) {
        let model = model(&format!("tiny-bias?hidden=30&heads=3&kv_heads=1&intermediate=15&vocab=30&dtype={dtype}"));
        let whole = bytes(&model, weight);
        let ([rows, columns], dtype) = shape_of(&model, weight);
        prop_assert_eq!(rows, 30);
        cuts.extend([0, rows]);
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        for pair in cuts.windows(2) {
            let mut piece = vec![0; ((pair[1] - pair[0]) * columns * dtype.bytes()) as usize];
            model.source.read_rows(weight, pair[0]..pair[1], &mut piece).unwrap();
            pieces.extend(piece);
        }
        prop_assert_eq!(pieces, whole);
    }
}

/// Mean, standard deviation and kurtosis.
fn moments(numbers: &[f64]) -> (f64, f64, f64) {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    let central = |power: i32| numbers.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / n;
    let variance = central(2);
    (mean, variance.sqrt(), central(4) / (variance * variance))
}

#[test]
fn matrices_are_normal_and_never_zero() {
    for dtype in ["f32", "f16", "bf16"] {
        // Wide enough for the deviation of large models: 1.25 / sqrt(4096) < 0.02.
        let model = model(&format!("tiny?hidden=4096&vocab=128&dtype={dtype}"));
        let numbers = numbers(&model, "embed.weight");
        assert!(numbers.iter().all(|&x| x != 0.0 && x.is_finite()));
        let (mean, deviation, kurtosis) = moments(&numbers);
        let n = numbers.len() as f64;
        // Five standard errors of each estimate.
        assert!(mean.abs() < 5.0 * 0.02 / n.sqrt(), "{dtype}: mean {mean}");
        assert!((deviation / 0.02 - 1.0).abs() < 5.0 / (2.0 * n).sqrt() + 1e-3, "{dtype}: sd {deviation}");
        assert!((kurtosis - 3.0).abs() < 5.0 * (24.0 / n).sqrt() + 1e-2, "{dtype}: kurtosis {kurtosis}");
        for (bound, share) in [(0.5, 0.382_925), (1.0, 0.682_689), (2.0, 0.954_500), (3.0, 0.997_300)] {
            let inside = numbers.iter().filter(|x| x.abs() < bound * 0.02).count() as f64 / n;
            assert!((inside - share).abs() < 3e-3, "{dtype}: {inside} within {bound} sd, expected {share}");
        }
    }
}

#[test]
fn elements_are_not_correlated() {
    let model = model("tiny?hidden=4096&vocab=128&dtype=f32");
    let numbers = numbers(&model, "embed.weight");
    for lag in [1, 2, 3, 4, 5, 64, 4096] {
        let pairs = numbers.iter().zip(&numbers[lag..]);
        let n = numbers.len() - lag;
        let correlation = pairs.map(|(a, b)| a * b).sum::<f64>() / (n as f64 * 0.0004);
        assert!(correlation.abs() < 5.0 / (n as f64).sqrt(), "lag {lag}: {correlation}");
    }
}

#[test]
fn norms_are_near_one_and_small_models_have_larger_weights() {
    let model = model("tiny");
    let (mean, deviation, _) = moments(&numbers(&model, "ln_final.weight"));
    assert!((mean - 1.0).abs() < 0.05 && (0.02..0.1).contains(&deviation), "{mean} {deviation}");
    let (_, deviation, _) = moments(&numbers(&model, "blocks.0.mlp.gate_up.weight"));
    assert!((deviation / (1.25 / 8.0) - 1.0).abs() < 0.05, "{deviation}");
}

#[test]
fn quantiles_match_the_normal_distribution() {
    let table = Table::new(1.0, DType::F32);
    let Table::Full(bits) = table else { panic!("f32 has whole quantiles") };
    let z = |i: usize| f32::from_bits(bits[i]);
    // By an independent implementation of the inverse distribution function.
    let known = [(0, 1.912_405_6e-5), (1 << 14, 0.674_513_76), (32766, 4.076_206_5), (32767, 4.324_919)];
    for (index, wanted) in known {
        assert!((z(index) / wanted - 1.0).abs() < 1e-5, "{index}: {} for {wanted}", z(index));
    }
    assert!((1..32768).all(|i| z(i) > z(i - 1)));
}

#[test]
fn names_that_mean_nothing_are_refused() {
    let fails = |name: &str, options: &OpenOptions| {
        open_model(&Location::Synthetic(name.to_owned()), options).unwrap_err().to_string()
    };
    let cases = [
        ("llama-9", "tiny-gqa"),
        ("", "known shapes"),
        ("tiny?colour=red", "colour"),
        ("tiny?layers=many", "`many`"),
        ("tiny?layers", "layers"),
        ("tiny?layers=0", "num_hidden_layers"),
        ("tiny?layers=-1", "`-1`"),
        ("tiny?dtype=int8", "`int8`"),
        ("tiny?tied=maybe", "`maybe`"),
        ("tiny?heads=3", "num_attention_heads"),
        ("tiny?experts=4", "no such choice"),
        ("tiny?window=16", "no such choice"),
        ("tiny-gpt2?bias=true", "no such choice"),
        ("tiny-mixtral?experts=4&chosen=5", "num_experts_per_tok"),
        ("falcon-7b?kv_heads=2", "no such choice"),
        ("tiny-gpt-neox?kv_heads=2", "no such choice"),
        ("tiny?distinct=0", "`0`"),
        ("tiny?distinct=3", "1 to 2 layers"),
        ("tiny?seed=99999999999999999999", "seed"),
        ("tiny?hidden=18446744073709551615", "hidden_size"),
    ];
    for (name, named) in cases {
        let message = fails(name, &OpenOptions::default());
        assert!(message.contains(named) && message.lines().count() == 1, "{name}: {message}");
    }
    let message = fails("tiny?dtype=f32", &OpenOptions { dtype: Some(DType::F16), ..OpenOptions::default() });
    assert!(message.contains("dtype f16"), "{message}");
}

#[test]
fn options_choose_the_dtype() {
    let open = |name: &str, dtype| {
        let location = Location::Synthetic(name.to_owned());
        shape_of(
            &open_model(&location, &OpenOptions { dtype, ..OpenOptions::default() }).unwrap(),
            "unembed.weight",
        )
        .1
    };
    assert_eq!(open("tiny", None), DType::BF16);
    assert_eq!(open("tiny", Some(DType::F32)), DType::F32);
    assert_eq!(open("tiny?dtype=f16", None), DType::F16);
    assert_eq!(open("tiny?dtype=f16", Some(DType::F16)), DType::F16);
}

#[test]
fn a_synthetic_model_talks() {
    let model = model("tiny");
    let (tokenizer, chat) = (model.tokenizer.unwrap(), model.chat.unwrap());
    let conversation = crate::Conversation::from_json(
        r#"{"messages": [{"role": "user", "content": "Hi<|im_end|>"},
                         {"role": "assistant", "content": "", "tool_calls": [
                             {"function": {"name": "look", "arguments": {"at": 1}}}]},
                         {"role": "tool", "content": "ok"}],
            "tools": [{"name": "look"}]}"#,
    );
    let rendered = chat.render_conversation(&conversation.unwrap(), true).unwrap();
    assert_eq!(
        rendered.text,
        "<|im_start|>system\nTo call a function, write <tool_call>{\"name\": NAME, \"arguments\": OBJECT}</tool_call>. \
         The functions:\n{\"name\": \"look\"}\n<|im_end|>\n<|im_start|>user\nHi<|im_end|><|im_end|>\n\
         <|im_start|>assistant\n<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 1}}</tool_call>\n<|im_end|>\n\
         <|im_start|>tool\nok<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = tokenizer.encode_rendered(&rendered.text, &rendered.literal).unwrap();
    // The user's own name of a token is text.
    let ends = ids.iter().filter(|&&id| Some(id) == tokenizer.eot()).count();
    assert_eq!((ends, rendered.text.matches("<|im_end|>").count()), (4, 5));
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), rendered.text);
    let silent = self::model("tiny?vocab=255");
    assert!(silent.tokenizer.is_none() && silent.chat.is_none());
}

/// Each node costs the same, whatever comes before it.
#[test]
fn the_most_layers_open() {
    let name = "tiny?layers=10000&distinct=1&hidden=32&heads=2&kv_heads=2&intermediate=32&vocab=8";
    let model = crate::open(&Location::Synthetic(name.to_owned()), &OpenOptions::default()).unwrap();
    assert!(model.graph.hook("blocks.9999.hook_out").is_some());
}
