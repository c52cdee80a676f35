//! A server on a tiny model, asked over real connections, and what it reads and writes by itself, as one program. The
//! model's 128 tokens are the bytes of ASCII.

mod aborts;
mod anthropic;
mod breakpoints;
mod calls;
mod client;
mod dashboard;
mod failures;
mod fields;
mod grammar;
mod guard;
mod hostile;
mod hostile_output;
mod kv;
mod live;
mod load;
mod many;
mod openapi;
mod plain;
mod remote;
mod responses;
mod sessions;
#[cfg(feature = "otel")]
mod spans;
mod steering;
mod store;
mod streams;
mod structured;
mod transfer;

use client::Target;
use djinn_host::{DeviceName, Setup};
use djinn_server::{BoundServer, Limits, Reload, ServedModel, Server, Serving, Stop};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use tempfile::TempDir;

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}\
                        {% if add_generation_prompt %}>{% endif %}";

/// A folder with the model.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests/checkpoints/tied-f32");
        for file in ["config.json", "generation_config.json", "model.safetensors"] {
            std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
        }
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
        std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
        Files(folder)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    pub(crate) fn load(&self, serving: &Serving) -> ServedModel {
        let setup = Setup { device: DeviceName::Cpu, threads: Some(1), ..Setup::default() };
        ServedModel::open(self.path().to_str().unwrap(), &setup, serving).unwrap()
    }
}

/// Byte-level BPE without merges. Bytes that do not print have names above U+00FF, in order (GPT-2).
fn tokenizer() -> Value {
    let hidden = |byte: u32| if byte == 127 { 0x121 } else { 0x100 + byte };
    let name =
        |byte: u32| char::from_u32(if (33..127).contains(&byte) { byte } else { hidden(byte) }).unwrap();
    let vocab: serde_json::Map<String, Value> = (0..128).map(|b| (name(b).to_string(), b.into())).collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                   "vocab": vocab, "merges": [] }
    })
}

/// A server on a thread of its own, which ends with this.
pub(crate) struct Running {
    pub(crate) target: Target,
    pub(crate) stop: Stop,
    pub(crate) reload: Reload,
    thread: Option<JoinHandle<djinn_server::Result<Option<TcpListener>>>>,
    _files: Arc<Files>,
}

impl Running {
    pub(crate) fn start(files: &Arc<Files>, server: Server) -> Self {
        Self::start_at(files, server.bind("127.0.0.1:0").unwrap(), false)
    }

    /// `renews`: it ends when its device is lost.
    pub(crate) fn start_at(files: &Arc<Files>, bound: BoundServer, renews: bool) -> Self {
        let (address, stop, reload): (SocketAddr, Stop, Reload) =
            (bound.address(), bound.stop(), bound.reload());
        let run = move || if renews { bound.run_or_renew() } else { bound.run().map(|()| None) };
        let thread = std::thread::spawn(run);
        Running {
            target: Target::new(address),
            stop,
            reload,
            thread: Some(thread),
            _files: Arc::clone(files),
        }
    }

    /// Waits until the server has ended; its listener, if another one is to go on there.
    pub(crate) fn join(mut self) -> Option<TcpListener> {
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// The server of the tests that need no other.
pub(crate) fn shared() -> &'static Target {
    static RUNNING: LazyLock<Running> = LazyLock::new(|| {
        let files = Arc::new(Files::new());
        let model = files.load(&Serving { sequences: 8, ..Serving::default() });
        Running::start(&files, Server::new().named(["tiny", "alias/of-it"], model).limits(Limits::default()))
    });
    &RUNNING.target
}

/// A chat request with one message and greedy decoding.
pub(crate) fn chat(text: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "temperature": 0, "max_tokens": 12, "ignore_eos": true,
        "messages": [{ "role": "user", "content": text }],
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// A completion request with greedy decoding.
pub(crate) fn completion(prompt: impl Into<Value>, more: Value) -> Value {
    let mut body = json!({ "model": "tiny", "temperature": 0, "max_tokens": 12, "ignore_eos": true, "prompt": prompt.into() });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}
