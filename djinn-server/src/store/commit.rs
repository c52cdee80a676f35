//! Makes a model of a manifest whose pieces have come.

use super::disk::write_json;
use super::{Entry, ModelStore, Serves, no_manifest, of_disk, taken};
use crate::{ApiError, reply};
use djinn_models::stored::{ContentHash, MANIFEST_FILE};
use std::fs;
use std::io;
use std::path::Path;

impl ModelStore {
    /// Makes a manifest's model one of the `models` that are served, and returns its name. Again, for a model that is
    /// served already, it has no effect; one that the server could not serve when it began gets another try.
    ///
    /// # Errors
    /// 404 for an unknown manifest, 409 while pieces are missing or if the name is used, 400 for files that are not a
    /// model, and as [`Serves::add`]. The pieces stay, so that it may be tried again.
    pub(crate) fn commit(&self, id: &ContentHash, models: &dyn Serves) -> Result<String, ApiError> {
        let committed = self.committed(id, models);
        let count = if committed.is_ok() { &self.counts.committed } else { &self.counts.failed };
        count.add(1);
        committed
    }

    fn committed(&self, id: &ContentHash, models: &dyn Serves) -> Result<String, ApiError> {
        let _turn = self.changing();
        let (registered, stored) = {
            let books = self.books();
            let stored = books.models.values().find(|entry| entry.id == *id).cloned();
            (books.registered.get(id).cloned(), stored)
        };
        if let Some(Entry { registration, .. }) = stored {
            let (name, place) = (&registration.name, self.place(&registration.name));
            match models.place_of(name) {
                Some(served) if served == place => {}
                Some(_) => return Err(taken(name)),
                None => models.add(name, models.open(&place, place.clone())?)?,
            }
            return Ok(name.clone());
        }
        let entry = registered.ok_or_else(|| no_manifest(id))?;
        let name = entry.registration.name.clone();
        let missing = entry.sizes.keys().filter(|hash| !self.folders.has(hash)).count();
        if missing > 0 {
            let message = format!("{missing} of {} pieces have not come", entry.sizes.len());
            return Err(ApiError::conflict(message, "pieces_missing"));
        }
        if self.has(&name) || models.place_of(&name).is_some() {
            return Err(taken(&name));
        }
        let folder = self.folders.unfinished_model(id).map_err(of_disk)?;
        let made = self.fill(&folder, &entry).map_err(of_disk).and_then(|()| {
            // The open model reads its weights from the pieces, which stay in place.
            let opened = models.open(&self.location(folder.clone(), &name), self.place(&name))?;
            self.folders.finish_model(&folder, &name).map_err(of_disk)?;
            Ok(opened)
        });
        let opened = made.inspect_err(|_| {
            // A remaining folder is removed at the next start.
            let _ = fs::remove_dir_all(&folder);
        })?;
        models.add(&name, opened).inspect_err(|_| {
            if let Err(error) = self.folders.remove_model(&name) {
                log::error!(target: "djinn::server", "{name} stays in the store, and is not served: {error}");
            }
        })?;
        let mut books = self.books();
        books.registered.remove(id);
        books.models.insert(name.clone(), Entry { created: reply::unix_now(), ..entry });
        drop(books);
        if let Err(error) = self.folders.remove_registered(id) {
            // It has no effect beside the model of the same id, and goes when it is old.
            log::warn!(target: "djinn::server", "the manifest of {name} cannot be removed: {error}");
        }
        Ok(name)
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
