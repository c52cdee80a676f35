//! `djinn push`: a model to a server's store; only what the store lacks is sent.

use crate::args::PushArgs;
use crate::remote::{Remote, refusal};
use crate::{loaded, output, remote, size};
use anyhow::{Context, Result, bail};
use djinn_host::Meter;
use djinn_models::stored::{ContentHash, LocalModel, PiecePlace};
use djinn_models::{OpenOptions, open};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use ureq::SendBody;
use ureq::http::StatusCode;

/// Between two reports of how far it is.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Waits before a piece is tried again.
const TRY_AGAIN_AFTER: [u64; 5] = [0, 1, 2, 4, 8];
/// Where a piece goes on.
const OFFSET: &str = "upload-offset";
/// Whether it is whole.
const COMPLETE: &str = "upload-complete";

/// What the server says of a manifest.
#[derive(Deserialize)]
struct Lacking {
    id: ContentHash,
    bytes: u64,
    committed: bool,
    lacking: Vec<Lacked>,
}

#[derive(Deserialize)]
struct Lacked {
    hash: ContentHash,
    bytes: u64,
    have: u64,
}

#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    url: &'a str,
    bytes: u64,
    sent_bytes: u64,
    pieces: usize,
    sent_pieces: usize,
}

pub(super) fn run(args: &PushArgs, quiet: bool) -> Result<()> {
    let server = Remote::new("--to", &args.to, &args.api_key, None)?;
    let location = loaded::find(&args.model, quiet)?;
    // What does not open here would be refused there, after it was sent.
    let own_name = open(&location, &OpenOptions::default())?.name;
    let name = args.name.clone().unwrap_or_else(|| loaded::name(&args.model, &own_name));
    let hashing = Meter::new(format!("hashing {name}"), quiet);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let model = LocalModel::of(&location, threads, &mut |done, total| hashing.set(done, Some(total)))?;
    drop(hashing);
    if args.replace {
        match server.delete(&format!("/v1/models/{}", remote::encoded(&name))) {
            Err(error) if refusal(&error).is_some_and(|r| r.status == StatusCode::NOT_FOUND) => {}
            deleted => deleted?,
        }
    }
    let body = json!({ "name": name, "files": model.manifest.files });
    let mut lacking: Lacking = server.post("/v1/store/manifests", &body)?;
    // The largest first, so that connections end together.
    lacking.lacking.sort_by_key(|piece| std::cmp::Reverse(piece.bytes - piece.have));
    let sending = Meter::new(format!("sending {name} to {}", server.url()), quiet);
    let sent_bytes = send(&server, &model, &lacking.lacking, args.connections, &sending)?;
    drop(sending);
    if !lacking.committed {
        server
            .post::<serde_json::Value>(&format!("/v1/store/manifests/{}/commit", lacking.id), &json!({}))?;
    }
    let told = Output {
        model: &name,
        url: server.url(),
        bytes: lacking.bytes,
        sent_bytes,
        pieces: model.places.len(),
        sent_pieces: lacking.lacking.len(),
    };
    if args.json {
        return output::json(&told);
    }
    output::line(&format!(
        "{name} is at {}: sent {sent_bytes} of {} bytes ({} of {}), {} of {} pieces",
        told.url,
        told.bytes,
        size::human(sent_bytes),
        size::human(told.bytes),
        told.sent_pieces,
        told.pieces
    ))
}

/// Sends what is lacking over several connections; the bytes that were sent.
fn send(
    server: &Remote,
    model: &LocalModel,
    lacking: &[Lacked],
    connections: u16,
    progress: &Meter,
) -> Result<u64> {
    let total = lacking.iter().map(|piece| piece.bytes - piece.have).sum();
    let (sent, ended, next) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(lacking.iter()));
    let work = || -> Result<()> {
        while !ended.load(Ordering::Relaxed) {
            let Some(piece) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
            let place = model
                .places
                .get(&piece.hash)
                .context("the server asks for a piece that is no part of the model")?;
            let outcome = Piece { server, piece, place, sent: &sent, ended: &ended }.send();
            outcome.inspect_err(|_| ended.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let (tells, told) = channel();
        for _ in 0..usize::from(connections).clamp(1, lacking.len().max(1)) {
            let (work, tells) = (&work, tells.clone());
            scope.spawn(move || drop(tells.send(work())));
        }
        drop(tells);
        loop {
            match told.recv_timeout(REPORT_EVERY) {
                Ok(worked) => worked?,
                Err(RecvTimeoutError::Timeout) => progress.set(sent.load(Ordering::Relaxed), Some(total)),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })?;
    Ok(sent.into_inner())
}

/// A piece on its way.
struct Piece<'a> {
    server: &'a Remote,
    piece: &'a Lacked,
    place: &'a PiecePlace,
    sent: &'a AtomicU64,
    ended: &'a AtomicBool,
}

impl Piece<'_> {
    /// Sends what is left of it; again, from where it has come to, if that fails for a reason that may pass.
    fn send(&self) -> Result<()> {
        let mut tries = TRY_AGAIN_AFTER.iter();
        let mut sent = self.send_from(self.piece.have);
        loop {
            let Err(error) = sent else { return Ok(()) };
            let again = tries.next().filter(|_| may_pass(&error) && !self.ended.load(Ordering::Relaxed));
            let Some(&seconds) = again else {
                return Err(error.context("the model is not whole at the server; the same command goes on"));
            };
            std::thread::sleep(Duration::from_secs(seconds));
            sent = self.go_on();
        }
    }

    /// Sends what has not come, as the server says.
    fn go_on(&self) -> Result<()> {
        let answer = remote::accepted(self.server.send("HEAD", &self.path(), &[], SendBody::none())?)?;
        let told = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        match (told(COMPLETE), told(OFFSET).and_then(|offset| offset.parse().ok())) {
            (Some("?1"), _) => Ok(()),
            (_, Some(have)) => self.send_from(have),
            _ => bail!("the server does not say how much has come"),
        }
    }

    fn path(&self) -> String {
        format!("/v1/store/blobs/{}", self.piece.hash)
    }

    fn send_from(&self, from: u64) -> Result<()> {
        let PiecePlace { path, range } = self.place;
        let left = self.piece.bytes.checked_sub(from).context("the server has more than there is")?;
        let of_file = || path.display().to_string();
        let mut file = File::open(path).with_context(of_file)?;
        file.seek(SeekFrom::Start(range.start + from)).with_context(of_file)?;
        let mut body = Counted { file: file.take(left), sent: self.sent };
        let (offset, length) = (from.to_string(), left.to_string());
        let headers = [
            (OFFSET, offset.as_str()),
            ("content-length", length.as_str()),
            ("content-type", "application/octet-stream"),
        ];
        let answer = self.server.send("PUT", &self.path(), &headers, SendBody::from_reader(&mut body))?;
        match remote::accepted(answer)?.status() {
            StatusCode::CREATED => Ok(()),
            _ => bail!("{} has become shorter while it was sent", path.display()),
        }
    }
}

/// Whether a failure to send a piece may pass: a connection that broke, a byte that was changed on the way, a server that
/// is busy.
fn may_pass(error: &anyhow::Error) -> bool {
    refusal(error).is_none_or(|refusal| {
        let code = refusal.code.as_deref().unwrap_or_default();
        ["offset_mismatch", "piece_busy", "piece_exists", "hash_mismatch"].contains(&code)
            || matches!(refusal.status.as_u16(), 408 | 429 | 503)
    })
}

/// A file whose bytes are counted as they are sent.
struct Counted<'a> {
    file: std::io::Take<File>,
    sent: &'a AtomicU64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.sent.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
