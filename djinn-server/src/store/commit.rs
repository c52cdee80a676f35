//! Makes a model of a manifest whose pieces have come.

use super::disk::write_json;
use super::{Entry, ModelStore, no_manifest, of_disk, taken};
use crate::{ApiError, reply};
use djinn_models::Location;
use djinn_models::stored::{ContentHash, MANIFEST_FILE};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::PoisonError;

impl ModelStore {
    /// Assembles a manifest's model, and makes it visible if `open` succeeds, which gets the present and the future
    /// place. Returns the model's name and the result of `open`.
    ///
    /// # Errors
    /// 404 for an unknown manifest, 409 while pieces are missing or if the name is used (`is_taken` knows the
    /// server's), or as `open`.
    pub(crate) fn commit<T>(
        &self,
        id: &ContentHash,
        is_taken: &dyn Fn(&str) -> bool,
        open: &dyn Fn(&Location, Location) -> Result<T, ApiError>,
    ) -> Result<(String, T), ApiError> {
        let committed = self.committed(id, is_taken, open);
        let count = if committed.is_ok() { &self.counts.committed } else { &self.counts.failed };
        count.add(1);
        committed
    }

    fn committed<T>(
        &self,
        id: &ContentHash,
        is_taken: &dyn Fn(&str) -> bool,
        open: &dyn Fn(&Location, Location) -> Result<T, ApiError>,
    ) -> Result<(String, T), ApiError> {
        let _turn = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.books().registered.get(id).cloned().ok_or_else(|| no_manifest(id))?;
        let name = entry.registration.name.clone();
        let missing = entry.sizes.keys().filter(|hash| !self.folders.has(hash)).count();
        if missing > 0 {
            let message = format!("{missing} of {} pieces have not come", entry.sizes.len());
            return Err(ApiError::conflict(message, "pieces_missing"));
        }
        if self.has(&name) || is_taken(&name) {
            return Err(taken(&name));
        }
        let folder = self.folders.unfinished_model(id).map_err(of_disk)?;
        let made = self.fill(&folder, &entry).map_err(of_disk).and_then(|()| {
            // The open model reads its weights from the pieces, which stay in place.
            open(&self.location(folder.clone(), &name), self.location(self.folders.model(&name), &name))
        });
        let opened = made.inspect_err(|_| {
            // A remaining folder is removed at the next start.
            let _ = fs::remove_dir_all(&folder);
        })?;
        let mut books = self.books();
        // It may have been forgotten meanwhile, with its pieces.
        let is_there = books.registered.contains_key(id);
        let finish = || self.folders.finish_model(&folder, &name).map_err(of_disk);
        let finished = if is_there { finish() } else { Err(no_manifest(id)) };
        finished.inspect_err(|_| {
            let _ = fs::remove_dir_all(&folder);
        })?;
        books.registered.remove(id);
        books.models.insert(name.clone(), Entry { created: reply::unix_now(), ..entry });
        self.folders.remove_registered(id).map_err(of_disk)?;
        Ok((name, opened))
    }

    /// Writes the manifest and the small files to a folder.
    fn fill(&self, folder: &Path, entry: &Entry) -> io::Result<()> {
        let manifest = &entry.registration.manifest;
        write_json(&folder.join(MANIFEST_FILE), manifest)?;
        for file in manifest.files.iter().filter(|file| !file.has_tensors()) {
            let (piece, to) = (self.folders.blob(&file.pieces[0].hash), folder.join(&file.path));
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            // File systems without links get a copy.
            fs::hard_link(&piece, &to).or_else(|_| fs::copy(&piece, &to).map(drop))?;
        }
        Ok(())
    }
}
