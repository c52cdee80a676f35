//! From what the user calls a model to where it is.

use super::{Cache, Progress};
use anyhow::Result;
use djinn_models::Location;
use std::path::Path;

/// Finds what the user calls a model.
pub(crate) struct Resolver<'a> {
    cache: Cache,
    progress: &'a dyn Fn(Progress),
}

impl<'a> Resolver<'a> {
    /// A resolver that pulls into `cache` what is not there, and reports to `progress`.
    pub(crate) fn new(cache: Cache, progress: &'a dyn Fn(Progress)) -> Self {
        Self { cache, progress }
    }

    /// The location of `spec`: `synthetic:NAME`, a short name, a path that exists, a hub id; in this order,
    /// so that a directory named like a short name is written `./smollm2`.
    ///
    /// # Errors
    /// One line: the path does not exist, the name is none, or the model cannot be got.
    pub(crate) fn resolve(&self, spec: &str) -> Result<Location> {
        let is_short = self.cache.names.iter().any(|short| short.name == spec);
        if !is_short {
            let looks_like_path = spec.starts_with(['.', '/', '~']) || has_model_extension(Path::new(spec));
            if spec.starts_with("synthetic:") || looks_like_path || Path::new(spec).exists() {
                return Ok(Location::find(spec)?);
            }
        }
        if let Some(entry) = self.cache.find(spec)? {
            return Ok(entry.location);
        }
        Ok(self.cache.pull(spec, self.progress)?.location)
    }
}

fn has_model_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|e| e.eq_ignore_ascii_case("gguf") || e.eq_ignore_ascii_case("safetensors"))
}
