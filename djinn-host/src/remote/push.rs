//! Uploads a model to a server's store; only the missing pieces are sent.

use super::{Remote, accepted};
use crate::{Error, Result};
use djinn_models::stored::{
    COMPLETE_HEADER, ContentHash, LONGEST_NAME, LocalModel, NAME_TAKEN, OFFSET_HEADER, PiecePlace,
};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use ureq::SendBody;
use ureq::http::StatusCode;

/// How often progress is reported.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Waits before each attempt to send a piece again, in seconds.
const TRY_AGAIN_AFTER: [u64; 5] = [0, 1, 2, 4, 8];
/// How often such a wait looks whether another piece has failed for good.
const LOOKS_PER_SECOND: u64 = 10;
/// Hexadecimal digits of a manifest's hash in the name that its model has until it replaces another one.
const NEXT_DIGITS: usize = 16;

/// Statistics of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pushed {
    /// Bytes of the model; equal pieces count once.
    pub bytes: u64,
    /// Bytes sent, including repeated ones.
    pub sent_bytes: u64,
    /// Pieces of the model.
    pub pieces: usize,
    /// Pieces that the server lacked.
    pub sent_pieces: usize,
}

/// The server's answer to a manifest.
#[derive(Deserialize)]
struct Lacking {
    id: ContentHash,
    bytes: u64,
    committed: bool,
    lacking: Vec<Lacked>,
}

/// The server's answer about its store.
#[derive(Deserialize)]
struct Stored {
    models: Vec<StoredName>,
}

#[derive(Deserialize)]
struct StoredName {
    name: String,
}

#[derive(Deserialize)]
struct Lacked {
    hash: ContentHash,
    bytes: u64,
    have: u64,
}

impl Remote {
    /// Sends the pieces of a model that the server lacks, over several `connections`, and makes it a model of this
    /// name there. An interrupted upload resumes. `progress` gets the bytes sent and the bytes that were lacking.
    ///
    /// # Errors
    /// [`Error::Refused`]: the name is used, this key may not upload, the store is full, or the model does not open
    /// there. A file has changed. The server cannot be reached.
    pub fn push(
        &self,
        model: &LocalModel,
        name: &str,
        connections: u16,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Pushed> {
        let mut lacking: Lacking = self.post("/v1/store/manifests", &manifest(model, name))?;
        // The largest first, so that the connections finish at about the same time.
        lacking.lacking.sort_by_key(|piece| std::cmp::Reverse(piece.bytes.saturating_sub(piece.have)));
        let sent_bytes = self.send_pieces(model, &lacking.lacking, connections, progress)?;
        if !lacking.committed {
            self.post::<IgnoredAny>(&format!("/v1/store/manifests/{}/commit", lacking.id), &json!({}))?;
        }
        Ok(Pushed {
            bytes: lacking.bytes,
            sent_bytes,
            pieces: model.places.len(),
            sent_pieces: lacking.lacking.len(),
        })
    }

    /// As [`push`](Self::push), but a model of this name in the server's store is removed when the new one is
    /// complete. Until then that is called `NAME.next-HASH`, after its files, and the store has both. An interrupted
    /// replacement resumes.
    ///
    /// # Errors
    /// As [`push`](Self::push). The old model is removed only after the new one has opened at the server. From then on
    /// [`Error::NotReplaced`]: the name may be free, and the same call goes on.
    pub fn replace(
        &self,
        model: &LocalModel,
        name: &str,
        connections: u16,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Pushed> {
        let next = next_name(model, name);
        let not_replaced = |source| {
            let (name, next) = (name.to_owned(), next.clone());
            Error::NotReplaced { name, next, source: Box::new(source) }
        };
        let refused = match self.push(model, name, connections, progress) {
            Err(error) if matches!(&error, Error::Refused { code: Some(code), .. } if code == NAME_TAKEN) => {
                error
            }
            Err(error) => return Err(error),
            Ok(pushed) => {
                // An interrupted replacement by the same files may have left it.
                self.remove_model(&next).map_err(not_replaced)?;
                return Ok(pushed);
            }
        };
        let Stored { models } = self.get("/v1/store")?;
        // A model of the server's own cannot be removed.
        if !models.iter().any(|model| model.name == name) {
            return Err(refused);
        }
        let pushed = self.push(model, &next, connections, progress)?;
        let replaced = || {
            self.remove_model(name)?;
            self.push(model, name, connections, progress)?;
            self.remove_model(&next)
        };
        replaced().map_err(not_replaced)?;
        Ok(pushed)
    }

    /// Sends the missing pieces over several connections. Returns the bytes sent.
    fn send_pieces(
        &self,
        model: &LocalModel,
        lacking: &[Lacked],
        connections: u16,
        progress: &dyn Fn(u64, u64),
    ) -> Result<u64> {
        let is_own = |piece: &Lacked| {
            let bytes = model.places.get(&piece.hash).map(|PiecePlace { range, .. }| range.end - range.start);
            bytes == Some(piece.bytes) && piece.have <= piece.bytes
        };
        if lacking.len() > model.places.len() || !lacking.iter().all(is_own) {
            return Err(Error::NoSuchPiece);
        }
        let left = lacking.iter().map(|piece| piece.bytes - piece.have);
        let total = left.fold(0, u64::saturating_add);
        let (sent, ended, next) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(lacking.iter()));
        let work = || -> Result<()> {
            while !ended.load(Ordering::Relaxed) {
                let Some(piece) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
                let place = model.places.get(&piece.hash).ok_or(Error::NoSuchPiece)?;
                let outcome = Piece { server: self, piece, place, sent: &sent, ended: &ended }.send();
                // The other connections break off what they send; the first failure is the one to tell.
                if let Err(error) = outcome
                    && !ended.swap(true, Ordering::Relaxed)
                {
                    return Err(error);
                }
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
                    Err(RecvTimeoutError::Timeout) => progress(sent.load(Ordering::Relaxed), total),
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        })?;
        Ok(sent.into_inner())
    }
}

/// What a server is told of a model before its pieces.
fn manifest(model: &LocalModel, name: &str) -> Value {
    json!({ "name": name, "files": model.manifest.files })
}

/// The name of a model that is to replace the one called `name`. No other files give the same one, so no other model
/// is meant by it.
pub(super) fn next_name(model: &LocalModel, name: &str) -> String {
    let hash = ContentHash::of(manifest(model, name).to_string().as_bytes()).to_string();
    let end = format!(".next-{}", &hash[..NEXT_DIGITS]);
    let kept: String = name.chars().take(LONGEST_NAME - end.len()).collect();
    kept + &end
}

/// A piece to send.
struct Piece<'a> {
    server: &'a Remote,
    piece: &'a Lacked,
    place: &'a PiecePlace,
    sent: &'a AtomicU64,
    ended: &'a AtomicBool,
}

impl Piece<'_> {
    /// Sends the rest of it, and tries again after a transient failure.
    fn send(&self) -> Result<()> {
        let mut tries = TRY_AGAIN_AFTER.iter();
        let mut sent = self.send_from(self.piece.have);
        loop {
            let Err(error) = sent else { return Ok(()) };
            let again = tries.next().filter(|_| may_pass(&error) && !self.ended.load(Ordering::Relaxed));
            let Some(&seconds) = again else { return Err(Error::NotWhole(Box::new(error))) };
            for _ in 0..seconds * LOOKS_PER_SECOND {
                if !self.ended.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1000 / LOOKS_PER_SECOND));
                }
            }
            sent = self.go_on();
        }
    }

    /// Sends the bytes after those that the server has.
    fn go_on(&self) -> Result<()> {
        let answer = self.server.asked("HEAD", &self.path())?;
        let told = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        match (told(COMPLETE_HEADER), told(OFFSET_HEADER).and_then(|offset| offset.parse().ok())) {
            (Some("?1"), _) => Ok(()),
            (_, Some(have)) => self.send_from(have),
            _ => Err(Error::NoSuchPiece),
        }
    }

    fn path(&self) -> String {
        format!("/v1/store/blobs/{}", self.piece.hash)
    }

    fn send_from(&self, from: u64) -> Result<()> {
        let PiecePlace { path, range } = self.place;
        let of_file = |source| Error::Unreadable { file: path.clone(), source };
        let left = self.piece.bytes.checked_sub(from).ok_or(Error::NoSuchPiece)?;
        let mut file = File::open(path).map_err(of_file)?;
        file.seek(SeekFrom::Start(range.start + from)).map_err(of_file)?;
        let mut body = Counted { file: file.take(left), sent: self.sent, ended: self.ended };
        let (offset, length) = (from.to_string(), left.to_string());
        let headers = [
            (OFFSET_HEADER, offset.as_str()),
            ("content-length", length.as_str()),
            ("content-type", "application/octet-stream"),
        ];
        let answer = self.server.send("PUT", &self.path(), &headers, SendBody::from_reader(&mut body))?;
        match accepted(answer)?.status() {
            StatusCode::CREATED => Ok(()),
            _ => Err(of_file(std::io::Error::other("it has become shorter while it was sent"))),
        }
    }
}

/// Whether a failure to send a piece is transient: a broken connection, a byte changed in transit, a busy server.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Refused { status, code, .. } => {
            let codes = ["offset_mismatch", "piece_busy", "piece_exists", "hash_mismatch"];
            code.as_deref().is_some_and(|code| codes.contains(&code)) || matches!(status, 408 | 429 | 503)
        }
        _ => true,
    }
}

/// A file whose bytes are counted as they are sent, until the upload has ended.
struct Counted<'a> {
    file: std::io::Take<File>,
    sent: &'a AtomicU64,
    ended: &'a AtomicBool,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("another piece failed"));
        }
        let read = self.file.read(buffer)?;
        self.sent.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
