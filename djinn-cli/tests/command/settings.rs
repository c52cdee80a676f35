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
    assert!(refused("a.toml", "vrma = 1").contains("unknown key `vrma`; known keys: "));
    assert!(refused("a.toml", "vram = \"much\"").contains("key `vram`: invalid value `much`"));
    assert!(refused("a.toml", "json = 1").contains("key `json`: expected true or false, found 1"));
    assert!(refused("a.toml", "ring = 1\nvram 1").contains("line 2"));
    assert!(refused("a.yaml", "- 1").contains("a settings file holds lines of key and value"));
    assert!(
        place.refused(&["list", "--config", "none.toml"]).contains("cannot read settings file none.toml")
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
