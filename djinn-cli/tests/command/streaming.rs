//! Where a weight lies never changes a bit of the result.

use super::Place;

/// Tiles of 64 KiB, which cut most of its matrices.
const MODEL: &str = "synthetic:tiny?layers=3&hidden=128&intermediate=512&vocab=1024&kv_heads=2";
const FRACTIONS: [&str; 6] = ["0", "0.1", "0.25", "0.5", "0.9", "1"];
const CHUNKS: [&str; 3] = ["64KiB", "96KiB", "200KiB"];
const RINGS: [&str; 3] = ["200KiB", "333333", "2MiB"];

fn tokens(n: usize) -> String {
    (0..n).map(|i| (i * 37 % 1024).to_string()).collect::<Vec<_>>().join(",")
}

/// Runs `command` under all placements, or every `step`th, and compares what it prints.
fn same_everywhere(command: &[&str], step: usize, same: impl Fn(&Place, &[&str]) -> String) {
    let place = Place::new();
    let expected = same(&place, command);
    let all = FRACTIONS.iter().flat_map(|f| CHUNKS.iter().map(move |c| (f, c)));
    let all = all.flat_map(|(f, c)| RINGS.iter().map(move |r| (f, c, r)));
    let mut count = 0;
    for (fraction, chunk, ring) in all.step_by(step) {
        let settings = ["--resident-fraction", fraction, "--chunk", chunk, "--ring", ring, "--stream-check"];
        let found = same(&place, &[command, &settings].concat());
        assert!(found == expected, "{fraction} resident, {chunk} chunks, {ring} ring");
        count += 1;
    }
    assert_eq!(count, 54usize.div_ceil(step));
}

#[test]
fn logits_are_bitwise_equal_under_every_placement() {
    let tokens = tokens(17);
    same_everywhere(&["logits", MODEL, "--json", "-q", "--tokens", &tokens], 1, |place, args| place.ok(args));
}

#[test]
fn so_are_those_of_one_token_and_of_512() {
    for n in [1, 512] {
        let tokens = tokens(n);
        let step = if n == 1 { 5 } else { 17 };
        let command = ["logits", MODEL, "--json", "-q", "--tokens", &tokens];
        same_everywhere(&command, step, |place, args| place.ok(args));
    }
}

#[test]
fn tokens_are_equal_under_every_placement() {
    let command = ["run", MODEL, "--json", "-q", "-n=12", "--prompt-tokens=1,2,3,4,5", "--prefill-chunk=3"];
    same_everywhere(&command, 4, |place, args| place.json(args)["tokens"].to_string());
}
