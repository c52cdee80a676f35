//! Precedence, and what a settings file may hold.

use super::file::keys;
use super::*;
use crate::args::RunArgs;
use djinn_host::DeviceName;
use djinn_srg::DType;
use std::path::Path;

fn settings(text: &str) -> FileSettings {
    FileSettings::parse(Path::new("djinn.toml"), text).unwrap()
}

fn refused(text: &str) -> String {
    FileSettings::parse(Path::new("djinn.toml"), text).unwrap_err().to_string()
}

fn run(line: &[&str], settings: &FileSettings) -> Result<RunArgs, clap::Error> {
    let line: Vec<OsString> = ["djinn", "run"].iter().chain(line).map(OsString::from).collect();
    match understand(&line, &alone(&line)?, settings)?.command {
        Command::Run(run) => Ok(run),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flag_has_a_variable_and_a_key() {
    let command = prepare(Cli::command(), &FileSettings::default(), &[]);
    let known = keys(&command);
    let subs = command.get_subcommands().flat_map(|sub| sub.get_arguments());
    let flags: Vec<&Arg> = command.get_arguments().chain(subs).filter(|a| a.get_long().is_some()).collect();
    assert!(flags.len() > 40);
    for flag in flags {
        let long = flag.get_long().unwrap();
        let variable = format!("DJINN_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(flag.get_env().and_then(|v| v.to_str()), Some(&*variable), "{long}");
        assert!(known.contains(long) || ["config", "tokens", "output"].contains(&long), "{long} has no key");
    }
    command.debug_assert();
}

#[test]
fn a_key_is_a_default_and_a_flag_wins() {
    let settings = settings(
        "vram = \"1.5GiB\"\nring = 4096\nstream-check = true\nstop = [\"a\", \"b\"]\nkv-dtype = \"bf16\"\n\
         temperature = 0.5\nprompt-tokens = [1, 2]\nphase = \"prefill\"\nthreads = 3\nquiet = true\n",
    );
    let args = run(&[], &settings).unwrap();
    assert_eq!(args.memory.vram, Some(3 << 29));
    assert_eq!(args.memory.ring, Some(4096));
    assert!(args.memory.stream_check);
    assert_eq!(args.memory.kv_dtype, Some(DType::BF16));
    assert_eq!(args.sampling.stop, ["a", "b"]);
    assert_eq!(args.sampling.temperature, Some(0.5));
    assert_eq!(args.prompt_tokens, [1, 2]);
    assert_eq!((args.device.device, args.device.threads), (DeviceName::Auto, Some(3)));
    let args =
        run(&["--vram", "7", "--stream-check=false", "--stop", "c", "--kv-dtype=f32"], &settings).unwrap();
    assert_eq!((args.memory.vram, args.memory.stream_check), (Some(7), false));
    assert_eq!((args.sampling.stop, args.memory.kv_dtype), (vec!["c".to_owned()], Some(DType::F32)));
}

#[test]
fn the_nearer_way_to_sample_wins() {
    let greedy = run(&["--temperature", "0.5"], &settings("greedy = true")).unwrap().sampling;
    assert_eq!((greedy.greedy, greedy.temperature), (false, Some(0.5)));
    let warm = run(&["--greedy"], &settings("temperature = 0.5\ntop-k = 3")).unwrap().sampling;
    assert_eq!((warm.greedy, warm.temperature, warm.top_k), (true, None, None));
    for (line, file) in [(&["--greedy", "--top-p", "0.5"][..], ""), (&[], "greedy = true\ntop-k = 2")] {
        let error = run(line, &settings(file)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
    }
}

/// A file's value gives way to a flag that excludes it, and two values of a file stand.
#[test]
fn a_flag_wins_over_the_files_values_that_it_excludes() {
    let file =
        settings("vram = 1\nsystem = \"Be.\"\nraw = true\nserver = \"http://x\"\nprompt-tokens = [1]\n");
    let both = run(&[], &file).unwrap();
    assert!(both.memory.vram == Some(1) && both.raw && both.server.server.is_some());
    let asked = run(&["--server=http://y"], &file).unwrap();
    assert_eq!((asked.server.server.as_deref(), asked.memory.vram), (Some("http://y"), None));
    let here = run(&["--vram=2", "--system=Do."], &file).unwrap();
    assert_eq!((here.server.server, here.memory.vram), (None, Some(2)));
    assert_eq!((here.system.as_deref(), here.raw, here.prompt_tokens), (Some("Do."), false, vec![]));
    let prompted = run(&["model", "Hi"], &file).unwrap();
    assert_eq!((prompted.prompt.as_deref(), prompted.prompt_tokens), (Some("Hi"), vec![]));
    // A switch that is off excludes nothing.
    let off = run(&["--raw=false"], &file).unwrap();
    assert_eq!((off.system.as_deref(), off.raw), (Some("Be."), false));
    for line in [&["--server=http://y", "--vram=2"][..], &["--raw", "--system=x"]] {
        assert_eq!(run(line, &FileSettings::default()).unwrap_err().kind(), ErrorKind::ArgumentConflict);
    }
}

#[test]
fn all_keys_are_listed_for_an_unknown_one() {
    let known: Vec<String> = keys(&Cli::command()).into_iter().collect();
    let error = FileSettings::parse(Path::new("djinn.toml"), "flavour = 1").unwrap_err();
    let line = djinn_host::one_line(error.as_ref());
    assert_eq!(line, format!("djinn.toml: unknown key `flavour`; known are {}", known.join(", ")));
}

#[test]
fn unknown_keys_and_wrong_values_name_file_and_key() {
    for (text, expected) in [
        ("vrma = 1", "djinn.toml: unknown key `vrma`; did you mean `vram`?"),
        ("max_tokens = 1", "djinn.toml: unknown key `max_tokens`; did you mean `max-tokens`?"),
        ("flavour = 1", "djinn.toml: unknown key `flavour`; known are activations, alias, "),
        ("config = \"x\"", "djinn.toml: unknown key `config`"),
        ("tokens = [1]", "djinn.toml: unknown key `tokens`"),
        ("vram = true", "djinn.toml: key `vram`: expected a text or a number, found true"),
        (
            "vram = \"12 parsec\"",
            "djinn.toml: key `vram`: invalid value `12 parsec`: expected a number of bytes",
        ),
        ("vram = -1", "djinn.toml: key `vram`: invalid value `-1`"),
        (
            "temperature = nan",
            "djinn.toml: key `temperature`: expected a text or a number, found nothing, or a number that is not finite",
        ),
        ("top-k = \"many\"", "djinn.toml: key `top-k`: invalid value `many`: expected a whole number"),
        ("seed = -1", "djinn.toml: key `seed`: invalid value `-1`: expected a whole number from 0"),
        ("stream-check = 1", "djinn.toml: key `stream-check`: expected true or false, found 1"),
        ("stop = { a = 1 }", "djinn.toml: key `stop`: expected a list of texts or numbers, found a table"),
        ("dtype = \"f8\"", "djinn.toml: key `dtype`: invalid value `f8`: expected one of f32, f16, bf16"),
        ("max-tokens = \"many\"", "djinn.toml: key `max-tokens`: invalid value `many`"),
        ("top-k = 1\nvram = [", "djinn.toml: line 2: "),
    ] {
        let error = refused(text);
        assert!(error.starts_with(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn yaml_is_read_alike() {
    let toml = settings("vram = \"20GiB\"\nring = 4096\nstop = [\"a\"]\ngreedy = true\ntop-p = 0.5");
    let text = "vram: 20GiB\nring: 4096\nstop: [a]\ngreedy: true\ntop-p: 0.5\n";
    assert_eq!(FileSettings::parse(Path::new("djinn.yaml"), text).unwrap(), toml);
    assert_eq!(FileSettings::parse(Path::new("a.yml"), "").unwrap(), FileSettings::default());
    for text in ["- 1\n- 2\n", "vram: [", "just text", "vrma: 1", "a: &x 1\nb: *y\n"] {
        let error = FileSettings::parse(Path::new("a.yaml"), text).unwrap_err().to_string();
        assert!(error.starts_with("a.yaml: ") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn the_nearer_file_wins_whole() {
    let (nearer, farther) =
        (settings("vram = 1\nstop = [\"a\"]"), settings("vram = 2\nring = 3\nstop = [\"b\", \"c\"]"));
    assert_eq!(nearer.over(farther), settings("vram = 1\nring = 3\nstop = [\"a\"]"));
    let (greedy, warm) = (settings("greedy = true"), settings("temperature = 0.5\ntop-k = 3\nctx = 9"));
    assert_eq!(greedy.clone().over(warm.clone()), settings("greedy = true\nctx = 9"));
    assert_eq!(warm.clone().over(greedy), warm);
    assert!(settings("greedy = false").over(warm).keys().eq(["ctx", "greedy", "temperature", "top-k"]));
}

#[test]
fn misspelt_variables_are_named() {
    let names = [
        "DJINN_VRM",
        "DJINN_VRAM",
        "PATH",
        "DJINN_CACHE",
        "DJINN_XYZZY",
        "DJINN_FOO",
        "DJINN_MAX_TOKEN",
        "DJINN_COMMIT",
    ];
    let remarks = variables::unknown(&Cli::command(), names.map(str::to_owned));
    assert_eq!(
        remarks,
        [
            "the variable DJINN_FOO is unknown and has no effect",
            "the variable DJINN_MAX_TOKEN is unknown and has no effect; did you mean DJINN_MAX_TOKENS?",
            "the variable DJINN_VRM is unknown and has no effect; did you mean DJINN_VRAM?",
            "the variable DJINN_XYZZY is unknown and has no effect",
        ]
    );
}

#[test]
fn a_folders_list_is_of_keys_and_has_all_of_memory_and_device() {
    let command = Cli::command();
    let known = keys(&command);
    assert!(places::HARMLESS.iter().all(|key| known.contains(*key)));
    for arg in command.find_subcommand("run").unwrap().get_arguments() {
        let heading = arg.get_help_heading();
        let Some(key) = arg.get_long().filter(|_| heading == Some("Memory") || heading == Some("Device"))
        else {
            continue;
        };
        // A trace is a file that is written.
        assert!(places::HARMLESS.contains(&key) || key == "trace", "{key}");
    }
}

/// The fuzz target's corpus, and seeded mutations of it, as settings in both formats.
#[test]
fn no_text_panics() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/settings");
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() >= 12);
    let (mut read, mut state) = (0, 1u64);
    let mut random = |below: usize| {
        // Xorshift (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    for seed in seeds {
        let whole = std::fs::read(&seed).unwrap();
        for mutation in 0..40 {
            let mut bytes = whole.clone();
            if mutation > 0 && !bytes.is_empty() {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes.truncate(at),
                    1 => bytes[at] = b"\n=:[]{}\"'-&*#\t0.\xff"[random(17)],
                    2 => drop(bytes.remove(at)),
                    _ => bytes.extend_from_within(at..),
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            for name in ["a.toml", "a.yaml"] {
                match FileSettings::parse(Path::new(name), &text) {
                    Ok(_) => read += 1,
                    Err(error) => {
                        let line = djinn_host::one_line(error.as_ref());
                        assert!(line.starts_with("a.") && line.lines().count() == 1, "{line}");
                    }
                }
            }
        }
    }
    assert!(read > 100, "only {read} mutants were read");
}
