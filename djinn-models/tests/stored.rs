//! A model from its pieces is the model from its files.
#![cfg(unix)]

use djinn_models::stored::{
    ContentHash, LocalModel, MANIFEST_FILE, ManifestFile, ModelManifest, PieceTensor, blob_path,
};
use djinn_models::{Location, Model, OpenOptions, SMALL_FILES, open as open_model, packed};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

fn checkpoint(name: &str) -> Location {
    Location::Directory(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name))
}

fn cut(location: &Location) -> LocalModel {
    LocalModel::of(location, 2, &mut |_, _| ()).unwrap()
}

/// Puts a model into a store as a server does.
fn keep(store: &TempDir, name: &str, model: &LocalModel) -> Location {
    let (folder, blobs) = (store.path().join(name), store.path().join("blobs"));
    fs::create_dir_all(&folder).unwrap();
    for (hash, place) in &model.places {
        let mut bytes = vec![0; (place.range.end - place.range.start) as usize];
        fs::File::open(&place.path).unwrap().read_exact_at(&mut bytes, place.range.start).unwrap();
        assert_eq!(ContentHash::of(&bytes), *hash);
        let blob = blob_path(&blobs, hash);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(blob, bytes).unwrap();
    }
    for file in model.manifest.files.iter().filter(|file| !file.has_tensors()) {
        let to = folder.join(&file.path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(blob_path(&blobs, &file.pieces[0].hash), to).unwrap();
    }
    fs::write(folder.join(MANIFEST_FILE), serde_json::to_vec(&model.manifest).unwrap()).unwrap();
    Location::Stored { folder, blobs, name: name.to_owned() }
}

fn weights(model: &Model) -> Vec<(String, Vec<u8>)> {
    let read = |value: &djinn_srg::Value| {
        let rows = 0..value.matrix()[0];
        let mut bytes = vec![0; value.stored_bytes(rows.clone()) as usize];
        model.source.read_rows(&value.name, rows, &mut bytes).unwrap();
        (value.name.clone(), bytes)
    };
    model.graph.weights().map(|(_, value)| read(value)).collect()
}

#[test]
fn it_has_the_same_weights_and_configuration() {
    let store = tempfile::tempdir().unwrap();
    let packed = tempfile::tempdir().unwrap();
    packed::pack(&checkpoint("gqa-bf16"), packed.path(), 1, &mut |_, _| ()).unwrap();
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf/families/qwen2-bf16.gguf");
    let locations = [
        ("shards", checkpoint("sharded-bf16")),
        ("one-file", checkpoint("tied-f32")),
        ("packed", Location::Directory(packed.path().to_owned())),
        ("gguf", Location::Gguf(gguf)),
    ];
    for (name, location) in locations {
        let options = OpenOptions::default();
        let (model, cut) = (open_model(&location, &options).unwrap(), cut(&location));
        let tensors = cut.manifest.files.iter().flat_map(|file| &file.pieces);
        let tensors = tensors.filter(|piece| piece.tensor.is_some()).count();
        assert_eq!(tensors > 5, name != "packed", "{name} is cut into {tensors} tensors");
        let stored = open_model(&keep(&store, name, &cut), &options).unwrap();
        assert_eq!((stored.name.as_str(), &stored.architecture), (name, &model.architecture));
        assert!(weights(&stored) == weights(&model), "{name}");
        assert_eq!(stored.tokenizer.is_some(), model.tokenizer.is_some(), "{name}");
        assert_eq!(stored.defaults, model.defaults, "{name}");
    }
}

/// A copy of the files of a checkpoint.
fn copied(name: &str) -> TempDir {
    let Location::Directory(original) = checkpoint(name) else { unreachable!() };
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(original.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

#[test]
fn every_small_file_goes_with_the_model() {
    let folder = copied("tied-f32");
    for name in SMALL_FILES {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if !path.exists() {
            fs::write(path, "{}").unwrap();
        }
    }
    let cut = cut(&Location::Directory(folder.path().to_owned()));
    let small = cut.manifest.files.iter().filter(|file| !file.has_tensors());
    assert_eq!(small.map(|file| file.path.as_str()).collect::<Vec<_>>(), SMALL_FILES);
    assert_eq!(cut.manifest.check(), Ok(()));
}

/// `clients/python` has a list of its own.
#[test]
fn the_python_client_sends_the_same_small_files() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python/src/djinn/push.py");
    let text = fs::read_to_string(path).unwrap();
    let list = text.split("_SMALL = (").nth(1).unwrap().split(')').next().unwrap();
    let names: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert_eq!(names, SMALL_FILES);
}

#[test]
fn names_in_capitals_are_those_of_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = folder.path().join("Model.GGUF");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf/families/qwen2-bf16.gguf");
    fs::copy(fixture, &gguf).unwrap();
    let cut = cut(&Location::find(gguf.to_str().unwrap()).unwrap());
    let store = tempfile::tempdir().unwrap();
    open_model(&keep(&store, "capitals", &cut), &OpenOptions::default()).unwrap();
}

#[test]
fn equal_tensors_are_one_piece_and_changed_ones_are_sent_alone() {
    let folder = copied("tied-f32");
    let before = cut(&Location::Directory(folder.path().to_owned()));
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let after = cut(&Location::Directory(folder.path().to_owned()));
    let fresh = after.places.keys().filter(|hash| !before.places.contains_key(hash)).count();
    assert_eq!((fresh, after.places.len()), (1, before.places.len()));
}

#[test]
fn what_is_missing_or_told_wrongly_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let cut = cut(&checkpoint("tied-f32"));
    let refused = |name: &str, model: &LocalModel| {
        let place = keep(&store, name, model);
        open_model(&place, &OpenOptions::default()).unwrap_err().to_string()
    };
    let change = |change: &dyn Fn(&mut PieceTensor)| {
        let mut changed = cut.clone();
        let mut pieces = changed.manifest.files.iter_mut().flat_map(|file| &mut file.pieces);
        change(pieces.find_map(|piece| piece.tensor.as_mut()).unwrap());
        changed
    };
    for wrong in [
        change(&|tensor| tensor.name += "x"),
        change(&|tensor| tensor.dtype = "BF16".into()),
        change(&|tensor| tensor.shape[0] += 1),
    ] {
        assert!(refused("told", &wrong).contains("is another one in the file"));
    }
    let place = keep(&store, "whole", &cut);
    let tensors = cut.manifest.files.iter().find(|file| file.has_tensors()).unwrap();
    let blob = blob_path(&store.path().join("blobs"), &tensors.pieces[1].hash);
    let bytes = fs::read(&blob).unwrap();
    fs::write(&blob, &bytes[1..]).unwrap();
    let error = open_model(&place, &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("the manifest says"), "{error}");
    fs::remove_file(&blob).unwrap();
    assert!(open_model(&place, &OpenOptions::default()).is_err());
}

#[test]
fn manifests_that_cannot_be_are_refused() {
    let good = cut(&checkpoint("tied-f32")).manifest;
    assert_eq!(good.check(), Ok(()));
    let refused = |change: &dyn Fn(&mut ModelManifest), why: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = bad.check().unwrap_err();
        assert!(error.contains(why) && error.lines().count() == 1, "{why}: {error}");
    };
    for name in [
        "../x.safetensors",
        "a/b.safetensors",
        ".x.safetensors",
        "",
        "x\n.safetensors",
        "ä.gguf",
        "x/config.json",
    ] {
        refused(&|bad| bad.files[0].path = name.into(), "a file's name has");
    }
    refused(&|bad| bad.files[0].path = "run.py".into(), "is no file that a model is opened from");
    refused(&|bad| bad.files.retain(|file| file.path != "config.json"), "a model is one GGUF file");
    refused(&|bad| bad.files.retain(|file| !file.has_tensors()), "a model is one GGUF file");
    refused(&|bad| bad.files.push(bad.files[0].clone()), "two files are called");
    refused(&|bad| bad.files[0].pieces.clear(), "has no bytes");
    refused(&|bad| bad.files[0].pieces[0].bytes = 0, "has no bytes");
    refused(&|bad| bad.files[0].pieces[0].bytes = u64::MAX, "longer than");
    let weights = |bad: &mut ModelManifest| {
        let at = bad.files.iter().position(ManifestFile::has_tensors).unwrap();
        bad.files.swap(0, at);
    };
    let sizes = |bytes: u64| {
        move |bad: &mut ModelManifest| {
            weights(bad);
            bad.files[0].pieces[0].bytes = bytes;
        }
    };
    refused(&sizes(u64::MAX), "no number that fits");
    refused(
        &|bad| {
            weights(bad);
            bad.files[0].pieces[1].hash = bad.files[0].pieces[0].hash;
        },
        "has two sizes",
    );
    for text in ["", "abc", &"A".repeat(64), &"g".repeat(64), &"../".repeat(22)] {
        assert!(text.parse::<ContentHash>().is_err(), "{text}");
    }
}
