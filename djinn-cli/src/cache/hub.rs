//! A model from the Hugging Face hub: its list of files, then each file, checked.

use super::Progress;
use super::manifest::{Item, Manifest, copy_hashed};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::time::Duration;
use ureq::Agent;

/// Files of a model besides its weights.
const PLAIN: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
];
/// Longest list of files that is read, in bytes.
const MAX_LIST: u64 = 16 << 20;
/// A file that comes more slowly than this, in bytes per second, counts as stalled.
const SLOWEST: u64 = 50_000;

/// A file as the hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    path: String,
    bytes: u64,
    sha256: Option<String>,
}

/// Downloads the model `id` to `new`.
pub(super) fn fetch(
    endpoint: &str,
    name: &str,
    id: &str,
    new: &Path,
    progress: &dyn Fn(Progress),
) -> Result<Manifest> {
    let agent: Agent = Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .build()
        .into();
    progress(Progress::Step(format!("asking {endpoint} for {id}")));
    let url = format!("{endpoint}/api/models/{id}/revision/main?blobs=true");
    let mut response = get(&agent, &url, Duration::from_secs(60))?;
    let text =
        response.body_mut().with_config().limit(MAX_LIST).read_to_vec().context("the hub's list of files")?;
    let list: Value = serde_json::from_slice(&text).context("the hub's list of files")?;
    let commit = list["sha"].as_str().filter(|sha| sha.bytes().all(|b| b.is_ascii_hexdigit()));
    let commit = commit.context("the hub's answer names no commit")?;
    let mut files = Vec::new();
    for listed in choose(&list)? {
        progress(Progress::Step(format!("downloading {}", listed.path)));
        let url = format!("{endpoint}/{id}/resolve/{commit}/{}", listed.path);
        files.push(download(&agent, &url, &listed, new, progress).with_context(|| listed.path.clone())?);
    }
    Ok(Manifest { name: name.to_owned(), source: format!("hub:{id}@{commit}"), files })
}

fn get(agent: &Agent, url: &str, within: Duration) -> Result<ureq::http::Response<ureq::Body>> {
    let mut request = agent.get(url).config().timeout_recv_body(Some(within)).build();
    if let Ok(token) = std::env::var("HF_TOKEN") {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    match request.call() {
        Ok(response) => Ok(response),
        Err(ureq::Error::StatusCode(401 | 403)) => {
            bail!("the hub refuses {url}; a gated model needs HF_TOKEN")
        }
        Err(ureq::Error::StatusCode(404)) => bail!("the hub has no {url}"),
        Err(error) => bail!("{url}: {error}"),
    }
}

/// The files to download: safetensors with what belongs to them, or the only GGUF file.
fn choose(list: &Value) -> Result<Vec<Listed>> {
    let siblings = list["siblings"].as_array().context("the hub's answer lists no files")?;
    let all: Vec<Listed> = siblings.iter().filter_map(listed).collect();
    let ending = |end: &str| all.iter().filter(|file| file.path.ends_with(end)).cloned().collect::<Vec<_>>();
    // Some models hold a second copy of their weights as `consolidated.*`.
    let mut weights = ending(".safetensors");
    weights.retain(|file| file.path.starts_with("model"));
    if !weights.is_empty() {
        let plain = all.iter().filter(|file| PLAIN.contains(&file.path.as_str())).cloned();
        return Ok(plain.chain(weights).collect());
    }
    let gguf = ending(".gguf");
    match gguf.len() {
        0 => bail!("the hub has neither safetensors nor a GGUF file for it"),
        1 => Ok(gguf),
        several => bail!("the hub has {several} GGUF files for it; download one and give djinn its path"),
    }
}

/// A file at the top level of the repository, with a name that is safe as a file's name here.
fn listed(file: &Value) -> Option<Listed> {
    let path = file["rfilename"].as_str()?;
    let plain = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let sha256 = file["lfs"]["sha256"].as_str().map(str::to_owned);
    let bytes = file["size"].as_u64()?;
    (plain && !path.starts_with('.')).then(|| Listed { path: path.to_owned(), bytes, sha256 })
}

fn download(
    agent: &Agent,
    url: &str,
    listed: &Listed,
    new: &Path,
    progress: &dyn Fn(Progress),
) -> Result<Item> {
    let within = Duration::from_secs(60 + listed.bytes / SLOWEST);
    let mut response = get(agent, url, within)?;
    let mut file = File::create(new.join(&listed.path))?;
    let reader = response.body_mut().as_reader();
    let (bytes, sha256) = copy_hashed(reader, &mut file, Some(listed.bytes), progress)?;
    file.sync_all()?;
    if bytes != listed.bytes {
        bail!("{bytes} of {} bytes came", listed.bytes);
    }
    if let Some(wanted) = listed.sha256.as_ref().filter(|wanted| **wanted != sha256) {
        bail!("its SHA-256 is {sha256}, not {wanted}");
    }
    Ok(Item { path: listed.path.clone(), bytes, sha256 })
}
