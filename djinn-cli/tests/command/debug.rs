//! `djinn debug`: scripts, and a terminal.

use super::Place;

const MODEL: &str = "synthetic:tiny?layers=3";
const PROMPT: &str = "Hello there";
const HOW: [&str; 4] = ["--greedy", "--ignore-eos", "-q", "-n=9"];

fn arguments<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[command, MODEL, PROMPT], &HOW[..], more].concat()
}

/// What a script prints.
fn debug(place: &Place, script: &str) -> String {
    place.ok_with(&arguments("debug", &[]), script)
}

/// What `djinn run` prints.
fn text(place: &Place) -> String {
    place.ok(&arguments("run", &["--raw"]))
}

/// The line of a table that begins with these words.
fn row<'a>(output: &'a str, first: &str) -> &'a str {
    let line = output.lines().find(|line| line.split_whitespace().next() == Some(first));
    line.unwrap_or_else(|| panic!("no {first} in {output}"))
}

#[test]
fn a_text_that_stops_and_is_looked_at_is_that_of_run() {
    let place = Place::new();
    let expected = text(&place);
    assert!(expected.len() > 9, "{expected:?}");
    for script in [
        "run\ntext",
        "break blocks.1.hook_out\nrun\nlens all\nlogits\nc\nprint blocks.0.attn.hook_z\nstep\nstep\nstep\nn\nfinish\ntext",
        // Edits that change nothing, at the prompt and at a generated token.
        "b blocks.0.hook_out at 2 once\nb blocks.1.hook_out step 3\nr\nset blocks.2.hook_out scale 1 all\nc\n\
         save blocks.1.hook_out a.safetensors\nload blocks.1.hook_out a.safetensors\nc\ntext",
        "steer none blocks.1.hook_out diff yes no 0\nr\ntext",
        // A fork changes its own text alone.
        "b blocks.1.hook_in step 2\nr\nfork other\nswitch other\nset blocks.1.hook_in zero\nc\nswitch main\nc\ntext",
        "b embed.hook_out once\nr\nset embed.hook_out zero all\nc\nd\nrun\ntext",
    ] {
        let _ = std::fs::remove_file(place.path().join("a.safetensors"));
        let output = debug(&place, script);
        assert!(output.ends_with(&expected), "{script}\n{output}\n{expected}");
    }
    // A chat's prompt is the template's.
    let chat = place.ok_with(&arguments("debug", &["--chat"]), "r\ntext");
    assert!(chat.ends_with(&place.ok(&arguments("run", &[]))), "{chat}");
    // A text ends before a string that ends it.
    let stop: String = expected.trim_end().chars().rev().take(2).collect();
    let stop: String = stop.chars().rev().collect();
    let stop = ["--stop", &stop];
    let ended = place.ok_with(&arguments("debug", &stop), "r\ntext");
    let run = place.ok(&arguments("run", &[&stop[..], &["--raw"]].concat()));
    assert!(run.len() < expected.len() && ended.ends_with(&run) && ended.contains("(stop)"), "{ended}");
}

#[test]
fn stops_are_where_they_were_asked_for() {
    let place = Place::new();
    let script = "b blocks.1.hook_resid_post generated step 2 once\nb blocks.0.attn.hook_out at 1\ninfo b\nrun\nnext\ns\nc\n\
                  info b\nn\ninfo session\ns\ns\nprint blocks.1.hook_out first 3\nlens top 1\ndelete 1\ninfo b";
    let output = debug(&place, script);
    let lines: Vec<&str> = output.lines().collect();
    let stops: Vec<&str> = lines.iter().copied().filter(|line| line.contains(" at position ")).collect();
    let places = [
        ("breakpoint 2, blocks.0.attn.hook_out: ", " at position 1 (prompt, one of 0 to "),
        ("blocks.0.attn.hook_out: ", " at position 2 (prompt, one of 0 to "),
        ("blocks.0.hook_out: ", " at position 2 (prompt, one of 0 to "),
        // The second token is computed when the third is chosen.
        ("breakpoint 1, blocks.1.hook_out: ", " (generated)"),
        ("blocks.1.hook_out: ", " (generated)"),
        ("blocks.2.hook_out: ", " (generated)"),
        ("blocks.0.hook_out: ", " (generated)"),
        ("blocks.1.hook_out of ", "values"),
    ];
    assert_eq!(stops.len(), places.len(), "{output}");
    for (stop, (begins, has)) in stops.iter().zip(places) {
        assert!(stop.starts_with(begins) && stop.contains(has), "{stop}: {begins}{has}");
    }
    let position = |stop: &str| -> u64 {
        let number = stop.split(" at position ").nth(1).unwrap();
        number.split_whitespace().next().unwrap().trim_end_matches(':').parse().unwrap()
    };
    assert_eq!(position(stops[4]), position(stops[3]) + 1, "next token");
    assert_eq!(position(stops[5]), position(stops[4]), "next block");
    assert_eq!(position(stops[6]), position(stops[4]) + 1, "the first block of the next token");
    assert!(output.contains("1  blocks.1.hook_out generated step 2 once\n2  blocks.0"), "{output}");
    assert!(output.contains("1  blocks.1.hook_out generated step 2 once  1 hits"), "{output}");
    assert!(row(&output, "*").contains("main  stopped at blocks.1.hook_out, position "), "{output}");
    assert_eq!(lines.last().unwrap(), &"2  blocks.0.attn.hook_out at 1  1 hits");
}

#[test]
fn what_is_set_is_read_and_changes_what_follows() {
    let place = Place::new();
    let script = "b blocks.1.hook_out step 1\nr\nfork other\ndiff main other\nset blocks.1.hook_out 2.5\n\
                  print blocks.1.hook_out first 2\nset blocks.1.hook_out scale -2\nprint blocks.1.hook_out first 1\n\
                  set blocks.1.hook_out mean\nprint blocks.1.hook_out first 1\ndiff main other\nc\nswitch other\nc\n\
                  diff main other";
    let output = debug(&place, script);
    for values in ["mean 2.500, from 2.500 to 2.500\n2.500 2.500 …", "from -5.000 to -5.000\n-5.000 …"] {
        assert!(output.contains(values), "{output}");
    }
    let (before, after) = output.split_once("2.500").unwrap();
    assert!(before.contains("main and other have the same tokens"), "{output}");
    for block in 0..3 {
        let cells = |of: &str| {
            row(of, &format!("blocks.{block}.hook_out")).split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(cells(before), "0", "{output}");
        assert_eq!(cells(after) == "0", block == 0, "{output}");
    }
    // Both have ended: the tokens say where they part.
    let (_, tokens) = output.rsplit_once("main and other differ from token ").unwrap();
    let (first, tokens) = tokens.split_once(" on:\n").unwrap();
    let cells: Vec<&str> =
        row(tokens, first).split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert!(cells.len() == 3 && cells[1] != cells[2], "{tokens}");
}

#[test]
fn steering_is_counted_and_ends() {
    let place = Place::new();
    let plain = text(&place);
    let script = "steer odd blocks.0.hook_out diff yes no 40\nrun\ntext\ninfo steering\nsteer odd off\ninfo steering\nrun\ntext";
    let output = debug(&place, script);
    let steered = row(&output, "odd");
    assert!(steered.starts_with("odd  blocks.0.hook_out  norm ") && steered.ends_with(" tokens"), "{output}");
    assert!(!steered.ends_with(" 0 tokens"), "{output}");
    assert!(output.contains("no steering") && output.ends_with(&plain), "{output}");
    let (first, _) = output.split_once("odd  ").unwrap();
    assert!(!first.ends_with(&plain), "the vector changed nothing: {output}");
    // The vector of a file is the one that was saved.
    let save = "b blocks.1.hook_out once\nr\nsave blocks.1.hook_out v.safetensors\nsave blocks.1.hook_out all.safetensors all\n\
                steer v blocks.1.hook_out v.safetensors 0.5\ninfo steering\nprint blocks.1.hook_out";
    let output = debug(&place, save);
    assert!(output.contains("1 tokens of ") && row(&output, "v").contains("norm "), "{output}");
}

#[test]
fn a_run_is_repeated_with_the_seed_that_it_tells() {
    let place = Place::new();
    let debug = |more: &[&str]| {
        let args = [&["debug", MODEL, PROMPT, "--temperature=2", "-n=9"], more].concat();
        let output = place.output(&args, "run\ntext");
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [text, told] = debug(&[]);
    let seed = told.lines().find_map(|line| line.strip_prefix("seed ")).unwrap_or_else(|| panic!("{told}"));
    assert_eq!(debug(&["-q", "--seed", seed]), [text, String::new()]);
}

#[test]
fn failures_end_a_script_in_one_line() {
    let place = Place::new();
    place.write("text.safetensors", "no tensors");
    for (script, line, expected) in [
        ("frobnicate", 1, "there is no command \"frobnicate\"; `help` lists them"),
        ("\n# comment\nb", 3, "the hook is missing; usage: break HOOK"),
        ("b blocks.1.hook_oot", 1, "there is no hook \"blocks.1.hook_oot\"; did you mean blocks.1.hook_out?"),
        ("b blocks.3.hook_out", 1, "there is no hook \"blocks.3.hook_out\"; the layers are 0 to 2"),
        (
            "b blocks.1.attn.hook_pattern",
            1,
            "an attention pattern is read from a paused session of `djinn serve`",
        ),
        ("b blocks.1.hook_out step 0", 1, "steps are counted from 1"),
        ("b blocks.1.hook_out if token \"Hello there\"", 1, "\"Hello there\" is "),
        ("b blocks.1.hook_out if token \"\"", 1, "an empty text is no token"),
        ("continue", 1, "nothing runs yet; `run` begins"),
        ("diff main other", 1, "nothing runs yet; `run` begins"),
        ("delete 3", 1, "there is no breakpoint 3"),
        ("steer x off", 1, "there is no steering \"x\""),
        ("steer x blocks.1.hook_out missing.safetensors", 1, "missing.safetensors"),
        ("steer x blocks.1.hook_out text.safetensors", 1, "text.safetensors is no file of safetensors"),
        ("steer x blocks.1.hook_out diff \"\" b", 1, "the prompt has no tokens"),
        ("help me", 1, "there is no command \"me\""),
    ] {
        let error = place.refused_with(&arguments("debug", &[]), script);
        assert!(
            error.starts_with(&format!("line {line}: ")) && error.contains(expected),
            "{script}: {error}"
        );
    }
    // What fails once a session runs.
    for (script, expected) in [
        ("run\nstep", "main has ended; `run` begins anew"),
        ("run\nfork x", "main has ended"),
        ("run\nswitch x", "there is no session \"x\"; there is main"),
        ("b blocks.0.hook_out\nrun\nset blocks.0.hook_out 1 at 4000", "it is stopped at positions 0 to "),
        ("b blocks.0.hook_out\nrun\nprint blocks.0.hook_out at 4000", "there are values of positions 0 to "),
        ("b blocks.0.hook_out\nrun\nlens blocks.0.mlp.hook_post", "blocks.0.mlp.hook_post is none of it"),
        // As wide as the residual stream, but no part of it.
        ("b blocks.1.hook_out\nrun\nlens blocks.1.attn.hook_out", "the lens reads what blocks pass on"),
        ("b blocks.1.hook_out\nrun\nlens blocks.1.ln1.hook_out", "is none of it"),
        ("b blocks.0.hook_out\nrun\nfork main", "there is a session \"main\" already"),
        ("b blocks.0.hook_out\nrun\nfork x\ndiff main x nothing", "blocks have no hook \"nothing\""),
        (
            "b blocks.0.hook_out\nrun\nsave blocks.0.hook_out text.safetensors",
            "cannot write text.safetensors",
        ),
        (
            "b blocks.0.hook_out\nrun\nsave blocks.0.mlp.hook_post wide.safetensors\nload blocks.0.hook_out wide.safetensors",
            "wide.safetensors has ",
        ),
    ] {
        let output = place.output(&arguments("debug", &[]), script);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{script}: {error}");
        assert!(error.starts_with("error: line ") && error.lines().count() == 1, "{script}: {error}");
        assert!(error.contains(expected), "{script}: {error}");
    }
    for (args, expected) in [
        (&["debug", MODEL][..], "the prompt is missing"),
        (&["debug", MODEL, "-"], "the prompt comes as an argument"),
        (&["debug", MODEL, "Hi", "--stop", ""], "stop"),
        (&["debug", MODEL, "Hi", "--greedy", "--seed=3"], "--seed has no effect"),
    ] {
        assert!(place.refused(args).contains(expected), "{args:?}");
    }
    let small = place.output(&arguments("debug", &["--hook-memory=1KiB"]), "b blocks.1.hook_out\nrun");
    let error = String::from_utf8(small.stderr).unwrap();
    assert!(error.starts_with("error: line 2: ") && error.contains("--hook-memory is 1024"), "{error}");
}

#[cfg(unix)]
#[test]
fn steering_that_is_refused_is_not_listed() {
    use super::chat::{CTRL_D, Talk};
    let place = Place::new();
    let mut talk = Talk::with(&place, &arguments("debug", &["--hook-memory=3000"]));
    for line in ["b embed.hook_out once", "run", "save embed.hook_out v.safetensors"] {
        talk.say(line);
    }
    let steer = |name| format!("steer {name} blocks.1.hook_out v.safetensors 1");
    assert!(!talk.say(&steer("a")).contains("memory"), "there is room for one");
    assert!(talk.say(&steer("b")).contains("--hook-memory is 3000"), "and for no second one");
    let listed = talk.say("info steering");
    assert!(listed.contains("a  blocks.1.hook_out") && !listed.contains("b  blocks.1.hook_out"), "{listed}");
    assert!(talk.end(CTRL_D).1);
}

#[cfg(unix)]
#[test]
fn a_terminal_completes_and_ctrl_c_stops_what_runs() {
    use super::chat::{CTRL_C, CTRL_D, HEARD, LISTENS, Talk, place};
    let place = place();
    let args = ["debug", "./model", "Go", "--greedy", "--ignore-eos", "-n=90000", "--ctx=100000"];
    let mut talk = Talk::with(&place, &args);
    assert!(talk.say("br\t embed.hook_o\t onc\t").contains("breakpoint 1: embed.hook_out once"), "completed");
    assert!(talk.say("contineu").contains("did you mean continue?"));
    assert!(talk.say("ru\t").contains("breakpoint 1, embed.hook_out: \"o\" at position 1 (prompt"));
    talk.press("c\r");
    talk.terminal.exp_string(HEARD).unwrap();
    talk.terminal.exp_regex("(?s).{300}").unwrap();
    talk.press(CTRL_C);
    let stop = talk.terminal.exp_string(LISTENS).unwrap();
    assert!(stop.contains("(generated)") && !stop.contains("main has ended"), "{stop}");
    // At rest it drops the line. The session goes on from where it was stopped.
    talk.press(&format!("quit{CTRL_C}"));
    talk.terminal.exp_string(LISTENS).unwrap();
    assert!(talk.say("n").contains("embed.hook_out: "));
    assert!(
        talk.say("info b").contains("1  embed.hook_out once  1 hits"),
        "the stop by Ctrl-C is no breakpoint"
    );
    assert!(talk.end(CTRL_D).1);
}
