//! A model from the Hugging Face hub: its list of files, then each file, checked.

use super::PullEvent;
use super::manifest::{self, Item, Manifest, copy_hashed};
use crate::{own, size};
use anyhow::{Context, Result, bail, ensure};
use djinn_models::SMALL_FILES;
use djinn_models::safetensors::INDEX_FILE;
use serde_json::Value;
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Uri;

/// Longest list of files that is read, in bytes.
const MAX_LIST: u64 = 16 << 20;
/// Slower downloads, in bytes per second, count as stalled.
const SLOWEST: u64 = 50_000;

/// A file as the hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    path: String,
    bytes: u64,
    sha256: Option<String>,
}

/// The hub, and who asks it.
#[derive(Clone)]
pub(super) struct Hub {
    /// Without a slash at the end. The hub gives hashes of some files only, so the others depend on a secure
    /// connection: `https`, or to this machine.
    pub(super) endpoint: String,
    /// Opens gated models. Sent to the endpoint's host only.
    pub(super) token: Option<String>,
}

impl Hub {
    /// The hub that `HF_ENDPOINT` names, with `HF_TOKEN`.
    pub(super) fn from_env() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), token: set("HF_TOKEN") }
    }

    /// Downloads the model `id` to `new`.
    pub(super) fn fetch(
        &self,
        name: &str,
        id: &str,
        new: &Path,
        progress: &dyn Fn(PullEvent),
    ) -> Result<Manifest> {
        let (endpoint, connection) = (&self.endpoint, self.connect()?);
        progress(PullEvent::Step(format!("asking {endpoint} for {id}")));
        let url = format!("{endpoint}/api/models/{id}/revision/main?blobs=true");
        let mut response = connection.get(&url, Duration::from_secs(60))?;
        let body = response.body_mut().with_config().limit(MAX_LIST);
        let text = body.read_to_vec().context("the hub's list of files")?;
        let list: Value = serde_json::from_slice(&text).context("the hub's list of files")?;
        let hexadecimal = |sha: &&str| !sha.is_empty() && sha.bytes().all(|b| b.is_ascii_hexdigit());
        let commit = list["sha"].as_str().filter(hexadecimal).context("the hub's answer names no commit")?;
        let chosen = choose(&list)?;
        check_space(&chosen, new)?;
        if !has_tokenizer(&chosen) {
            let what =
                format!("the hub has no tokenizer for {id} that can be read: it will take token ids only");
            progress(PullEvent::Step(what));
        }
        let mut files = Vec::new();
        for listed in chosen {
            progress(PullEvent::Step(format!("downloading {}", listed.path)));
            let url = format!("{endpoint}/{id}/resolve/{commit}/{}", listed.path);
            let item = connection.download(&url, &listed, new, progress);
            files.push(item.with_context(|| listed.path.clone())?);
        }
        Ok(Manifest { name: name.to_owned(), source: format!("hub:{id}@{commit}"), files })
    }

    fn connect(&self) -> Result<Connection<'_>> {
        let uri: Uri = self.endpoint.parse().with_context(|| format!("HF_ENDPOINT {:?}", self.endpoint))?;
        let https = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        ensure!(
            https || here,
            "HF_ENDPOINT {:?} is no https address; models and HF_TOKEN go over https only",
            self.endpoint
        );
        let agent: Agent = Agent::config_builder()
            .https_only(https)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(Duration::from_secs(30)))
            .build()
            .into();
        Ok(Connection { agent, token: self.token.as_deref() })
    }
}

struct Connection<'h> {
    agent: Agent,
    token: Option<&'h str>,
}

impl Connection<'_> {
    fn get(&self, url: &str, within: Duration) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = self.agent.get(url).config().timeout_recv_body(Some(within)).build();
        if let Some(token) = self.token {
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

    /// A file with the listed size and, if the hub gives one, hash. No byte more is written.
    fn download(&self, url: &str, listed: &Listed, new: &Path, progress: &dyn Fn(PullEvent)) -> Result<Item> {
        let within = Duration::from_secs(60 + listed.bytes / SLOWEST);
        let mut response = self.get(url, within)?;
        let path = new.join(&listed.path);
        path.parent().map_or(Ok(()), own::create)?;
        let mut file = File::create(path)?;
        let reader = response.body_mut().as_reader();
        let (bytes, sha256) = copy_hashed(reader, &mut file, Some(listed.bytes), progress)?;
        file.sync_all()?;
        if bytes != listed.bytes {
            bail!("{bytes} of {} bytes came", listed.bytes);
        }
        if let Some(wanted) = listed.sha256.as_ref().filter(|wanted| **wanted != sha256) {
            bail!("its SHA-256 is {sha256}, not {wanted}");
        }
        let modified_ns = manifest::modified_ns(&file.metadata()?);
        Ok(Item { path: listed.path.clone(), bytes, sha256, modified_ns })
    }
}

/// Refuses a model that is too large for the disk.
fn check_space(chosen: &[Listed], new: &Path) -> Result<()> {
    let needed = chosen.iter().fold(0, |sum: u64, listed| sum.saturating_add(listed.bytes));
    let Some(free) = free_bytes(new) else { return Ok(()) };
    ensure!(
        needed <= free,
        "the model has {} and the cache's disk {} left; make room, or set DJINN_CACHE to a folder on another disk",
        size::human(needed),
        size::human(free)
    );
    Ok(())
}

/// Bytes that the user may still write on the disk of `folder`, if known.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// The files to download: safetensors and related files, or the only GGUF file.
fn choose(list: &Value) -> Result<Vec<Listed>> {
    let siblings = list["siblings"].as_array().context("the hub's answer lists no files")?;
    let all: Vec<Listed> = siblings.iter().filter_map(listed).collect();
    // Some models hold a second copy of their weights as `consolidated.*`.
    let is_weights = |file: &&Listed| file.path.starts_with("model") && file.path.ends_with(".safetensors");
    let is_small = |file: &&Listed| file.path == INDEX_FILE || SMALL_FILES.contains(&file.path.as_str());
    let of = |kind: &dyn Fn(&&Listed) -> bool| all.iter().filter(kind).cloned().collect::<Vec<_>>();
    let weights = of(&is_weights);
    if !weights.is_empty() {
        return Ok([of(&is_small), weights].concat());
    }
    let gguf = of(&|file| is_gguf(&file.path));
    match gguf.len() {
        0 => bail!("the hub has neither safetensors nor a GGUF file for it"),
        1 => Ok(gguf),
        several => bail!("the hub has {several} GGUF files for it; download one and give djinn its path"),
    }
}

fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

/// Whether there is a tokenizer that can be read.
fn has_tokenizer(chosen: &[Listed]) -> bool {
    let files = ["tokenizer.json", "vocab.json", "tokenizer.model"];
    chosen.iter().any(|file| is_gguf(&file.path) || files.contains(&file.path.as_str()))
}

/// A file at the top level of the repository with a safe name, or a small file of a model.
fn listed(file: &Value) -> Option<Listed> {
    let path = file["rfilename"].as_str()?;
    let plain = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let sha256 = file["lfs"]["sha256"].as_str().map(str::to_owned);
    let bytes = file["size"].as_u64()?;
    let fits = SMALL_FILES.contains(&path) || plain && !path.starts_with('.');
    fits.then(|| Listed { path: path.to_owned(), bytes, sha256 })
}
