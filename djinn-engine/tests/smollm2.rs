//! SmolLM2-135M-Instruct from GGUF against llama.cpp on the same weights: same prompt tokens, same logits,
//! same greedy text. Needs the file: `scripts/test.sh` fetches it and names it in `DJINN_SMOLLM2`.

use djinn_cpu::{CpuConfig, CpuDevice, ENCODINGS, Math};
use djinn_device::DType;
use djinn_engine::{Budget, Engine, Generate, Options, Request, Service};
use djinn_models::{ChatTemplate, Location, Message, OpenOptions, Tokenizer, open};
use serde_json::Value;
use std::ops::ControlFlow;

fn expected() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../djinn-models/tests/smollm2-expected.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("in the repository")).expect("JSON")
}

struct Loaded {
    service: Service<CpuDevice>,
    tokenizer: Tokenizer,
    chat: ChatTemplate,
}

/// The model with its matrices in elements of `dtype`; without one, as they are stored.
fn load(dtype: Option<DType>, budget: Budget) -> Loaded {
    load_on(CpuConfig::default(), dtype, budget)
}

fn load_on(device: CpuConfig, dtype: Option<DType>, budget: Budget) -> Loaded {
    let path =
        std::env::var("DJINN_SMOLLM2").expect("set DJINN_SMOLLM2 to the GGUF file; see scripts/test.sh");
    let options = OpenOptions { dtype, encodings: ENCODINGS, ..OpenOptions::default() };
    let model = open(&Location::Gguf(path.into()), &options).expect("it opens");
    let options = Options { budget, context: 256, ..Options::default() };
    let device = CpuDevice::new(device).expect("threads");
    let engine =
        Engine::load(device, model.graph, &*model.source, &options, &mut |_, _| ControlFlow::Continue(()))
            .expect("it loads");
    let tokenizer = model.tokenizer.expect("the file has one");
    let service = Service::single(engine).expect("it serves");
    Loaded { service, tokenizer, chat: model.chat.expect("the file has one") }
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|v| v.as_u64().expect("a token") as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number") as f32).collect()
}

/// The case's text and tokens are what template and tokenizer give.
fn prompt(loaded: &Loaded, case: &Value) -> Vec<u32> {
    let text = case["text"].as_str().expect("text");
    if let Some(messages) = case["messages"].as_array() {
        let field = |m: &Value, key: &str| m[key].as_str().expect("text").to_owned();
        let messages: Vec<Message> =
            messages.iter().map(|m| Message::new(field(m, "role"), field(m, "content"))).collect();
        assert_eq!(loaded.chat.render(&messages, true).expect("it renders").text, text);
    }
    let prompt = tokens(&case["prompt"]);
    assert_eq!(loaded.tokenizer.encode(text, false).expect("it encodes"), prompt, "{text}");
    prompt
}

fn continues(loaded: &mut Loaded, prompt: &[u32], answer: &Value) {
    let expected = tokens(&answer["tokens"]);
    let request = Request { prompt: prompt.to_vec(), max_tokens: expected.len(), ..Request::default() };
    let mut session = None;
    let mut keep = |_| ControlFlow::Continue(());
    let generated = loaded.service.generate(&mut session, &request, &mut keep).expect("it runs");
    loaded.service.close(session).expect("it runs");
    assert_eq!(generated.tokens, expected, "llama.cpp says {}", answer["text"]);
}

fn agrees(loaded: &mut Loaded, prompt: &[u32], logits: &Value) {
    let mut session = None;
    let request = Request { prompt: prompt.to_vec(), max_tokens: 1, ..Request::default() };
    let mut keep = |_| ControlFlow::Continue(());
    loaded.service.generate(&mut session, &request, &mut keep).expect("it runs");
    let found = loaded.service.engine().latest_logits(0).unwrap();
    loaded.service.close(session).expect("it runs");
    let wanted = floats(&logits["every_stride"]);
    let stride = logits["stride"].as_u64().expect("a number") as usize;
    let (mut error, mut norm) = (0.0, 0.0);
    for (found, wanted) in found.iter().step_by(stride).zip(&wanted) {
        error += (*found as f64 - *wanted as f64).powi(2);
        norm += (*wanted as f64).powi(2);
    }
    let distance = (error / norm).sqrt();
    assert!(wanted.len() > 500 && distance < 1e-4, "relative distance {distance:.2e}");
}

#[test]
#[ignore = "needs the model's file, which scripts/test.sh fetches"]
fn every_chat_continues_as_in_llama_cpp() {
    let expected = expected();
    let mut loaded = load(None, Budget::default());
    let first = prompt(&loaded, &expected);
    agrees(&mut loaded, &first, &expected["last_logits"]);
    continues(&mut loaded, &first, &expected["ignoring_end"]);
    for (name, case) in expected["more"].as_object().expect("chats") {
        println!("{name}");
        let prompt = prompt(&loaded, case);
        continues(&mut loaded, &prompt, &case["ignoring_end"]);
    }
}

#[test]
#[ignore = "needs the model's file, which scripts/test.sh fetches"]
fn rounded_weights_agree_as_well_and_streaming_changes_nothing() {
    let expected = expected();
    for (dtype, name) in [(Some(DType::F16), "f16"), (Some(DType::BF16), "bf16")] {
        for vram in [None, Some(150 << 20)] {
            let mut loaded = load(dtype, Budget { vram, ..Budget::default() });
            assert_eq!(loaded.service.engine().plan().placement.streamed_bytes() > 0, vram.is_some());
            let prompt = prompt(&loaded, &expected);
            agrees(&mut loaded, &prompt, &expected[name]["last_logits"]);
            continues(&mut loaded, &prompt, &expected[name]["ignoring_end"]);
        }
    }
}

/// The bits of decoded weights, in a third of their memory, also streamed.
#[test]
#[ignore = "needs the model's file, which scripts/test.sh fetches"]
fn stored_blocks_have_the_bits_of_decoded_weights() {
    let expected = expected();
    let mut all = Vec::new();
    for (dtype, vram) in [(Some(DType::F32), None), (None, None), (None, Some(70 << 20))] {
        let mut loaded = load(dtype, Budget { vram, ..Budget::default() });
        let plan = loaded.service.engine().plan();
        assert_eq!(plan.placement.streamed_bytes() > 0, vram.is_some());
        let bytes = plan.segments.resident + plan.host_weight_bytes();
        let prompt = prompt(&loaded, &expected);
        agrees(&mut loaded, &prompt, &expected["last_logits"]);
        all.push((loaded.service.logits(&prompt).expect("it runs"), bytes));
    }
    assert!(all[1].1 < 100 << 20 && all[0].1 > 5 * all[1].1, "{} and {} bytes", all[0].1, all[1].1);
    assert!(all[0].0 == all[1].0 && all[1].0 == all[2].0, "the bits of the logits");
}

/// As llama.cpp, which rounds activations as well: `scripts/int8_quality.py`, where each choice wins by more than one logit.
#[test]
#[ignore = "needs the model's file, which scripts/test.sh fetches"]
fn rounded_activations_continue_as_in_llama_cpp() {
    let device = CpuConfig { math: Math::Int8, ..CpuConfig::default() };
    let mut loaded = load_on(device, None, Budget::default());
    let prompt = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,";
    let answer = " 16, 17, 18, 19, 20, 21";
    let [prompt, tokens] =
        [prompt, answer].map(|text| loaded.tokenizer.encode(text, false).expect("it encodes"));
    continues(&mut loaded, &prompt, &serde_json::json!({ "tokens": tokens, "text": answer }));
}
