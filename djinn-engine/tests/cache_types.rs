//! Keys and values in each element type: what rounding them costs, and that it is all that they change.

use djinn_cpu::{CpuConfig, CpuDevice, SimConfig, SimDevice};
use djinn_device::{DType, Ops};
use djinn_engine::{Engine, Error, Options};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;

fn load<D: Ops>(device: D, family: &str, kv_dtype: DType, prefill_rows: u32) -> Result<Engine<D>, Error> {
    let model = open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
    let options =
        Options { context: 64, prefill_rows, logit_rows: prefill_rows, kv_dtype, ..Options::default() };
    Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| ControlFlow::Continue(()))
}

fn logits(family: &str, kv_dtype: DType, prefill_rows: u32) -> Vec<f32> {
    let device = CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads");
    let mut engine = load(device, family, kv_dtype, prefill_rows).expect("it loads");
    let tokens: Vec<u32> = (0..50).map(|i| (i * 37 + 11) % 256).collect();
    engine.logits(&mut engine.free_pages(), &tokens).expect("sound weights")
}

#[test]
fn logits_are_within_what_each_type_rounds() {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    for family in ["tiny-gqa", "tiny-window", "tiny-gpt2", "tiny-falcon"] {
        let exact = logits(family, DType::F32, 16);
        // What rounding to 11 and 8 significant bits, and to a step of the greatest size over 127, changes at most: twice
        // that, and a hundredth at least.
        for (dtype, rounding) in
            [(DType::F16, 2_f64.powi(-11)), (DType::BF16, 2_f64.powi(-8)), (DType::Int8, 1.0 / 127.0)]
        {
            let got = logits(family, dtype, 16);
            let difference = got.iter().zip(&exact).map(|(&a, &b)| f64::from(a) - f64::from(b));
            let error = norm(&mut { difference }) / norm(&mut exact.iter().map(|&x| x.into()));
            assert!((rounding / 100.0..2.0 * rounding).contains(&error), "{family}, {dtype}: {error:.2e}");
        }
    }
}

#[test]
fn int8_rounds_each_row_by_itself() {
    let bits =
        |rows| -> Vec<u32> { logits("tiny-gqa", DType::Int8, rows).into_iter().map(f32::to_bits).collect() };
    let whole = bits(64);
    assert!(bits(1) == whole && bits(7) == whole);
}

#[test]
fn other_types_are_refused() {
    let sim =
        |int8_cache| SimDevice::new(SimConfig { int8_cache, ..SimConfig::default() }).expect("a simulator");
    let error =
        load(sim(true), "tiny-gqa", DType::U32, 16).map(drop).expect_err("no type of keys and values");
    assert!(error.to_string().contains("f32, f16, bf16 or int8"), "{error}");
    load(sim(true), "tiny-gqa", DType::Int8, 16).map(drop).expect("it loads");
    let error = load(sim(false), "tiny-gqa", DType::Int8, 16).map(drop).expect_err("a device without");
    assert!(matches!(error, Error::CacheType { dtype: DType::Int8, .. }), "{error}");
}

#[test]
fn heads_that_the_device_cannot_compute_are_refused_before_anything_is_loaded() {
    let sim = |most_head_dim| {
        SimDevice::new(SimConfig { most_head_dim, ..SimConfig::default() }).expect("a simulator")
    };
    load(sim(16), "tiny-gqa", DType::F32, 16).map(drop).expect("it loads");
    let error = load(sim(15), "tiny-gqa", DType::F32, 16).map(drop).expect_err("heads of 16 elements");
    assert!(matches!(error, Error::HeadDim { head_dim: 16, most: 15, .. }), "{error}");
}
