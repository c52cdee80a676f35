//! `djinn top` in a pseudo-terminal, beside a server.

use super::Place;
use super::serve::serve;
use super::text::place;
use rexpect::reader::Options;
use rexpect::session::{PtySession, spawn_with_options};

fn top(place: &Place, args: &[&str]) -> PtySession {
    let mut command = place.command(&[&["top"], args].concat());
    command.env("TERM", "xterm");
    spawn_with_options(command, Options::new().timeout_ms(Some(60_000))).unwrap()
}

#[test]
fn sessions_of_a_server_are_drawn_until_q() {
    let place = place();
    let serving = serve(&place, &["--alias=mine", "--api-key=secret"]);
    let headers = "x-session-id: my-agent\r\nauthorization: Bearer secret\r\n";
    let body = r#"{"model":"mine","prompt":"Once","max_tokens":5,"temperature":0}"#;
    let answer = serving.ask("POST /v1/completions", headers, body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let url = format!("--url=http://{}/v1/", serving.address);
    let mut screen = top(&place, &[&url, "--api-key=secret", "--every=0.1"]);
    // The other screen, without a cursor.
    screen.exp_string("\x1b[?1049h\x1b[?25l").unwrap();
    let drawn = screen.exp_string("q ends").unwrap();
    // Escape sequences aside, which also stand for spaces.
    let words = drawn.split('\x1b').map(|text| text.trim_start_matches(|c: char| "[;0123456789".contains(c)));
    let drawn = words.map(|text| text.get(1..).unwrap_or_default()).collect::<Vec<_>>().join(" ");
    for part in
        ["mine", "weights", "activations", "compute", "first token", "of 1", "session", "my-agent", "parked"]
    {
        assert!(drawn.contains(part), "{part} is not in {drawn:?}");
    }
    screen.send("q").unwrap();
    screen.flush().unwrap();
    screen.exp_string("\x1b[?25h\x1b[?1049l").unwrap();
    screen.exp_eof().unwrap();
    assert!(format!("{:?}", screen.process().wait().unwrap()).ends_with(", 0)"));

    let mut refused = top(&place, &[&url]);
    let said = refused.exp_eof().unwrap();
    assert!(said.contains("wants another key") && said.lines().count() == 1, "{said:?}");
}

#[test]
fn what_cannot_be_watched_is_told_in_a_line() {
    let place = place();
    assert!(
        place
            .refused(&["top"])
            .contains("needs a terminal; for programs there is http://127.0.0.1:5556/v1/live")
    );
    for (url, why) in [
        ("127.0.0.1:1", "is no address"),
        ("http://127.0.0.1:1", "no answer from http://127.0.0.1:1/v1/live"),
    ] {
        let said = top(&place, &["--url", url]).exp_eof().unwrap();
        assert!(said.contains(why) && said.trim().lines().count() == 1, "{said:?}");
    }
}
