//! The models that are served, and their names.

use crate::args::ServeArgs;
use crate::{cache, loaded, output};
use anyhow::{Context, Result, bail, ensure};
use djinn_models::{Model, OpenOptions};
use std::fs;
use std::path::Path;

/// A model with its name in requests.
pub(super) struct NamedModel {
    pub(super) names: Vec<String>,
    pub(super) model: Model,
}

/// Finds and opens the models of the command line, then those of a folder; reads no weights. A model of the folder
/// that does not open is reported and left out. With uploads there may be none.
pub(super) fn open(args: &ServeArgs, options: &OpenOptions, quiet: bool) -> Result<Vec<NamedModel>> {
    if args.alias.is_empty() || args.model.len() <= 1 && args.models_dir.is_none() {
        let mut models = Vec::new();
        let is_bare = args.model.is_empty() && args.models_dir.is_none() && args.store.store.is_none();
        let default = is_bare.then_some(cache::DEFAULT_MODEL);
        for spec in args.model.iter().map(String::as_str).chain(default) {
            let (name, place) = split(spec);
            let model = loaded::open(place, options, quiet)?;
            let own = || loaded::name(place, &model.name);
            let names = match (args.alias.as_slice(), name) {
                ([], Some(name)) => vec![name.to_owned()],
                ([], None) => vec![own()],
                (aliases, name) => {
                    name.map(str::to_owned).into_iter().chain(aliases.iter().cloned()).collect()
                }
            };
            models.push(NamedModel { names, model });
        }
        if let Some(folder) = &args.models_dir {
            add_folder(&mut models, folder, options, quiet)?;
            ensure!(!models.is_empty(), "--models-dir {} holds no model", folder.display());
        }
        ensure!(!models.is_empty() || args.alias.is_empty(), "--alias names a model, and none is given");
        return Ok(models);
    }
    bail!("--alias names a model that is served alone; with several, give NAME=MODEL for each")
}

/// The name before the first `=`, if it is a valid name: `synthetic:tiny?layers=2` has none.
fn split(spec: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !name.is_empty() && name.chars().all(fits)
    };
    match spec.split_once('=') {
        Some((name, place)) if is_name(name) && !Path::new(spec).exists() => (Some(name), place),
        _ => (None, spec),
    }
}

/// Adds the models of a folder, in order of their names. What is left out is reported, except for hidden files.
fn add_folder(models: &mut Vec<NamedModel>, folder: &Path, options: &OpenOptions, quiet: bool) -> Result<()> {
    let cannot_read = || format!("cannot read --models-dir {}", folder.display());
    let mut places = Vec::new();
    for entry in fs::read_dir(folder).with_context(cannot_read)? {
        places.push(entry.with_context(cannot_read)?.path());
    }
    places.sort();
    for place in places {
        let name = if place.is_dir() { place.file_name() } else { place.file_stem() };
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        match model_in(&place, &name, models, options, quiet) {
            Ok(model) => models.push(NamedModel { names: vec![name], model }),
            Err(error) => output::remark(&format!("{} is left out: {error:#}", place.display())),
        }
    }
    Ok(())
}

/// The model at a place in a folder of models.
fn model_in(
    place: &Path,
    name: &str,
    models: &[NamedModel],
    options: &OpenOptions,
    quiet: bool,
) -> Result<Model> {
    let is_gguf = place.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    ensure!(is_gguf || place.is_dir(), "it is neither a folder nor a .gguf file");
    let is_taken = models.iter().any(|model| model.names.iter().any(|taken| taken == name));
    ensure!(!is_taken, "another model is called {name}");
    loaded::open(&place.display().to_string(), options, quiet)
}
