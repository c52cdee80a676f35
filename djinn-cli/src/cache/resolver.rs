//! From a model's name to its location.

use super::{Cache, PullEvent, names};
use anyhow::{Result, ensure};
use djinn_models::{Location, packed};
use std::path::Path;

impl Cache {
    /// The location of a model: `synthetic:NAME`, a short name, an existing path, or a hub id, in this order. So a
    /// directory named like a short name is written `./smollm2`. Missing models are pulled.
    pub(crate) fn resolve(&self, spec: &str, progress: &dyn Fn(PullEvent)) -> Result<Location> {
        let is_short = self.names.iter().any(|short| short.name == spec);
        if !is_short {
            let looks_like_path = spec.starts_with(['.', '/', '~']) || has_model_extension(Path::new(spec));
            if spec.starts_with("synthetic:") || looks_like_path || Path::new(spec).exists() {
                return Ok(Location::find(spec)?);
            }
        }
        ensure!(
            names::is_name(spec),
            "{spec:?} is neither a path that exists nor a model's name (`smollm2`, `org/name`)"
        );
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
