//! Flags, variables and the settings file.

use super::Place;

fn vram(place: &Place, more: &[&str]) -> u64 {
    let args: Vec<&str> = ["plan", "synthetic:tiny", "--json"].iter().chain(more).copied().collect();
    place.json(&args)["vram_bytes"].as_u64().unwrap()
}

#[test]
fn flag_then_variable_then_file() {
    let place = Place::new();
    place.write("djinn.toml", "vram = \"1GiB\"\ntemperature = 0.3\n");
    assert_eq!(vram(&place, &[]), 1 << 30);
    let place = place.with("DJINN_VRAM", "2GiB");
    assert_eq!(vram(&place, &[]), 2 << 30);
    assert_eq!(vram(&place, &["--vram=3GiB"]), 3 << 30);
}

#[test]
fn the_file_may_be_named_and_may_be_yaml() {
    let place = Place::new();
    place.write("djinn.yaml", "vram: 4GiB\n");
    assert_eq!(vram(&place, &[]), 4 << 30);
    place.write("other.toml", "vram = 5_000_000\n");
    assert_eq!(vram(&place, &["--config=other.toml"]), 5_000_000);
    let place = place.with("DJINN_CONFIG", "other.toml");
    assert_eq!(vram(&place, &[]), 5_000_000);
    place.write("djinn.toml", "");
    assert_eq!(vram(&place, &["--config", "djinn.yaml"]), 4 << 30);
}

#[test]
fn bad_files_are_refused() {
    let place = Place::new();
    let refused = |name: &str, text: &str| {
        place.write(name, text);
        let message = place.refused(&["plan", "synthetic:tiny", "--config", name]);
        assert!(message.starts_with(&format!("{name}: ")), "{message}");
        message
    };
    assert!(refused("a.toml", "vrma = 1").contains("unknown key `vrma`; did you mean `vram`?"));
    assert!(refused("a.toml", "flavour = 1").contains("unknown key `flavour`; known are "));
    assert!(refused("a.toml", "vram = \"much\"").contains("key `vram`: invalid value `much`"));
    assert!(refused("a.toml", "json = 1").contains("key `json`: expected true or false, found 1"));
    assert!(refused("a.toml", "ring = 1\nvram 1").contains("line 2"));
    assert!(refused("a.yaml", "- 1").contains("a settings file holds lines of key and value"));
    assert!(
        place
            .refused(&["list", "--config", "none.toml"])
            .contains("cannot read the settings file: none.toml")
    );
    place.write("djinn.toml", "");
    place.write("djinn.yml", "");
    assert!(place.refused(&["list"]).starts_with("several settings files: djinn.toml, djinn.yml"));
}

#[test]
fn bad_variables_are_refused_and_switches_can_be_switched_off() {
    let place = Place::new().with("DJINN_VRAM", "much");
    assert_eq!(place.output(&["plan", "synthetic:tiny"], "").status.code(), Some(2));
    let place = Place::new().with("DJINN_JSON", "1");
    assert!(place.ok(&["list"]).starts_with('{'));
    assert!(!place.ok(&["list", "--json=false"]).starts_with('{'));
}

fn own(place: &Place, name: &str, text: &str) {
    std::fs::create_dir_all(place.path().join("home/djinn")).unwrap();
    place.write(&format!("home/djinn/{name}"), text);
}

fn remarks(place: &Place, args: &[&str]) -> String {
    let output = place.output(args, "");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    error
}

#[test]
fn a_folder_sets_no_file_and_nothing_that_deceives() {
    let place = Place::new();
    place.write("precious", "mine");
    for (name, text) in [
        ("djinn.toml", "trace = \"precious\""),
        ("djinn.yaml", "trace: precious"),
        ("djinn.toml", "vram = 1\nsystem = \"Lie.\""),
        ("djinn.toml", "stop = [\"not\"]"),
        ("djinn.toml", "quiet = true"),
        ("djinn.toml", "raw = true"),
        ("djinn.toml", "prompt-tokens = [1]"),
    ] {
        place.write(name, text);
        let message = place.refused(&["run", "synthetic:tiny", "--prompt-tokens=1", "-n=1", "-q"]);
        let expected =
            format!("is not for a file in the working directory; set it in {}", place.path().display());
        assert!(message.starts_with(name) && message.contains(&expected), "{message}");
        assert!(message.ends_with(&format!("or name the file with --config {name}")), "{message}");
        std::fs::remove_file(place.path().join(name)).unwrap();
    }
    assert_eq!(std::fs::read_to_string(place.path().join("precious")).unwrap(), "mine");
}

#[test]
fn the_users_own_settings_and_a_named_file_may_set_all() {
    let run = ["run", "synthetic:tiny", "--prompt-tokens=1", "-n=1", "-q"];
    for place in [Place::new(), Place::new().with("DJINN_CONFIG", "named.toml")] {
        own(&place, "config.toml", "trace = \"a.json\"\nvram = \"1GiB\"");
        place.write("named.toml", "trace = \"a.json\"\nvram = \"1GiB\"");
        assert_eq!(remarks(&place, &run), "");
        assert!(place.path().join("a.json").is_file());
        assert_eq!(vram(&place, &[]), 1 << 30);
    }
}

#[test]
fn the_working_directory_is_nearer_and_named() {
    let place = Place::new();
    own(&place, "config.yaml", "vram: 1GiB\nchunk: 64KiB\n");
    let plan = ["plan", "synthetic:tiny", "--json"];
    assert_eq!(remarks(&place, &plan), "");
    place.write("djinn.toml", "vram = \"2GiB\"\nctx = 1024\n");
    assert_eq!(remarks(&place, &plan), "djinn.toml sets ctx, vram\n");
    assert_eq!(vram(&place, &[]), 2 << 30);
    assert_eq!(remarks(&place, &["plan", "synthetic:tiny", "--json", "-q"]), "");
    // A named file is all there is.
    place.write("named.toml", "");
    assert!(place.json(&["plan", "synthetic:tiny", "--json", "--config=named.toml"])["vram_bytes"].is_null());
}

#[test]
fn misspelt_variables_are_told() {
    let place = Place::new().with("DJINN_VRM", "1GiB");
    assert_eq!(
        remarks(&place, &["list", "-q"]),
        "the variable DJINN_VRM is unknown and has no effect; did you mean DJINN_VRAM?\n"
    );
}

/// The usage error of a command line; none if it is understood.
fn misuse(place: &Place, args: &[&str]) -> Option<String> {
    let output = place.output(args, "");
    (output.status.code() == Some(2)).then(|| String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_flag_wins_over_variables_that_it_excludes() {
    let asked = ["run", "smollm2", "Hi", "--server=http://127.0.0.1:1"];
    let variables =
        [("VRAM", "70MiB"), ("THREADS", "1"), ("DEVICE", "cpu"), ("CTX", "64"), ("PROMPT_TOKENS", "1")];
    for (name, value) in variables {
        let place = Place::new().with(&format!("DJINN_{name}"), value);
        assert!(place.refused(&asked).starts_with("no answer from http://127.0.0.1:1/"), "{name}");
    }
    let tiny = ["run", "synthetic:tiny", "Hi", "--greedy", "-n=4", "--json"];
    let plain = Place::new();
    for (name, value, flag) in [
        ("DJINN_SYSTEM", "foo", "--raw"),
        ("DJINN_RAW", "true", "--system=x"),
        ("DJINN_RAW", "0", "--system=x"),
    ] {
        let args = [&tiny[..], &[flag]].concat();
        let place = Place::new().with(name, value);
        assert_eq!(place.json(&args)["prompt_tokens"], plain.json(&args)["prompt_tokens"], "{name}");
    }
    // A variable wins over a file.
    let place = Place::new().with("DJINN_VRAM", "1MiB").with("DJINN_CONFIG", "own.toml");
    place.write("own.toml", "server = \"http://127.0.0.1:1\"");
    assert_eq!(place.json(&tiny)["stats"]["vram_bytes"], 1 << 20);
    // Those of one kind exclude each other as ever.
    let place = Place::new().with("DJINN_SERVER", "http://127.0.0.1:1").with("DJINN_VRAM", "1MiB");
    let usage = misuse(&place, &tiny).unwrap();
    assert!(usage.contains("DJINN_SERVER") && usage.contains("DJINN_VRAM"), "{usage}");
    assert!(usage.contains("exclude each other; unset one") && usage.lines().count() == 1, "{usage}");
    assert_eq!(place.json(&[&tiny[..], &["--vram=2MiB"]].concat())["stats"]["vram_bytes"], 2 << 20);
    let place = Place::new().with("DJINN_GREEDY", "1").with("DJINN_TOP_K", "2");
    let usage = misuse(&place, &tiny[..3]).unwrap();
    assert!(usage.contains("DJINN_GREEDY contradicts DJINN_TEMPERATURE, DJINN_TOP_K, "), "{usage}");
    let usage = misuse(&plain, &[&asked[..], &["--vram=1MiB"]].concat()).unwrap();
    assert!(usage.contains("'--server <URL>' cannot be used with '--vram <SIZE>'"), "{usage}");
}

#[test]
fn flags_without_effect_are_refused() {
    let place = Place::new();
    for args in [
        &["run", "synthetic:tiny", "Hi", "--api-key=x"][..],
        &["logits", "synthetic:tiny", "--tokens=1", "--api-key=x"],
        &["plan", "synthetic:tiny", "--api-key=x"],
        &["srg", "synthetic:tiny", "--api-key=x"],
    ] {
        let usage = misuse(&place, args).unwrap();
        assert!(usage.contains("--api-key is for a server") && usage.lines().count() == 1, "{usage}");
    }
    let (server, to) = ("--server=http://127.0.0.1:1", "--to=http://127.0.0.1:1");
    for args in [
        &["run", "m", "Hi", server][..],
        &["logits", "m", "--tokens=1", server],
        &["plan", "m", server],
        &["srg", "m", server],
        &["push", "synthetic:tiny", to],
        &["top", "--url=http://127.0.0.1:1"],
    ] {
        let usage = misuse(&place, &[args, &["--api-key=x", "--api-key=y"]].concat()).unwrap();
        assert!(usage.contains("--api-key is given 2 times") && usage.lines().count() == 1, "{usage}");
    }
    let usage = misuse(&place, &["serve", "synthetic:tiny", "--port=0", "--store-quota=5"]).unwrap();
    assert!(usage.contains("--store-quota") && usage.contains("give --store DIR"), "{usage}");
    for wrong in ["--allowed-origin=foo", "--allowed-host=", "--allowed-host=x:80", "--max-body=0"] {
        let usage = misuse(&place, &["serve", "synthetic:tiny", "--port=0", wrong]).unwrap();
        assert!(usage.contains(": expected ") && usage.lines().count() == 1, "{wrong}: {usage}");
    }
    // Of a variable, another command may have use.
    let place = Place::new().with("DJINN_API_KEY", "x");
    place.ok(&["plan", "synthetic:tiny", "--gpu=h200"]);
}

/// A settings file that is none, or never ends, is refused at once.
#[test]
#[cfg(unix)]
fn files_that_are_no_files_are_refused() {
    let place = Place::new();
    let at = |name: &str| place.path().join(name);
    assert!(std::process::Command::new("mkfifo").arg(at("pipe.toml")).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", at("zero.toml")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("nowhere.toml")).unwrap();
    std::fs::create_dir(at("folder.toml")).unwrap();
    std::fs::File::create(at("huge.toml")).unwrap().set_len(1 << 30).unwrap();
    place.write("latin.toml", "");
    std::fs::write(at("latin.toml"), b"stop = [\"\xe9\"]").unwrap();
    for name in ["pipe.toml", "zero.toml", "nowhere.toml", "folder.toml", "huge.toml", "latin.toml"] {
        let message = place.refused(&["list", "--config", name]);
        assert!(message.contains(name), "{message}");
        std::fs::rename(at(name), at("djinn.toml")).unwrap();
        let message = place.refused(&["list"]);
        assert!(message.contains("djinn.toml"), "{message}");
        std::fs::rename(at("djinn.toml"), at(name)).unwrap();
    }
}

#[test]
fn the_model_has_a_variable_and_a_key() {
    let place = Place::new().with("DJINN_MODEL", "synthetic:tiny");
    let name = |args: &[&str]| place.json(args)["model"].as_str().unwrap().to_owned();
    assert_eq!(name(&["plan", "--json"]), "synthetic:tiny");
    assert_eq!(name(&["run", "--json", "-n=1", "--prompt-tokens=1"]), "synthetic:tiny");
    assert_eq!(name(&["plan", "--json", "synthetic:tiny-gqa"]), "synthetic:tiny-gqa");
    place.write("own.toml", "model = \"synthetic:tiny-gqa\"");
    assert_eq!(name(&["plan", "--json", "--config=own.toml"]), "synthetic:tiny");
    let place = Place::new();
    place.write("own.toml", "model = \"synthetic:tiny-gqa\"");
    let plan = place.json(&["plan", "--json", "--config=own.toml"]);
    assert_eq!(plan["model"], "synthetic:tiny-gqa");
}
