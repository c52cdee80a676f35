//! From what the user calls a model to where it is.

use super::{Cache, PullEvent};
use anyhow::Result;
use djinn_models::{Location, packed};
use std::path::Path;

impl Cache {
    /// The location of what the user calls a model: `synthetic:NAME`, a short name, a path that exists, a hub id; in
    /// this order, so that a directory named like a short name is written `./smollm2`. What is not there is pulled.
    pub(crate) fn resolve(&self, spec: &str, progress: &dyn Fn(PullEvent)) -> Result<Location> {
        let is_short = self.names.iter().any(|short| short.name == spec);
        if !is_short {
            let looks_like_path = spec.starts_with(['.', '/', '~']) || has_model_extension(Path::new(spec));
            if spec.starts_with("synthetic:") || looks_like_path || Path::new(spec).exists() {
                return Ok(Location::find(spec)?);
            }
        }
        if let Some(entry) = self.find(spec)? {
            return Ok(entry.location);
        }
        Ok(self.pull(spec, progress)?.location)
    }
}

fn has_model_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let of_models = ["gguf", "safetensors", packed::EXTENSION];
    extension.is_some_and(|e| of_models.iter().any(|known| e.eq_ignore_ascii_case(known)))
}
