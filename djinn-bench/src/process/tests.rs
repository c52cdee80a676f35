//! Children that print, fail, and hang.

use super::*;

fn shell(script: &str, limit: Duration) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    run(command, limit, None)
}

#[test]
fn output_and_memory_are_kept() {
    let ended = shell("echo one; sleep 0.15; echo two", Duration::from_secs(20));
    assert_eq!(ended.output.as_deref(), Ok("one\ntwo\n"));
    assert!(ended.memory.iter().any(|point| point.bytes > 0));
}

#[test]
fn failures_are_one_line() {
    let output = |script| shell(script, Duration::from_secs(20)).output.unwrap_err();
    assert_eq!(output("echo a >&2; echo 'error: no card' >&2; echo >&2; exit 3"), "exit status: 3: no card");
    assert_eq!(output("exit 1"), "exit status: 1: it said nothing");
    let missing = run(Command::new("/no/such/program"), Duration::from_secs(1), None);
    assert!(missing.output.unwrap_err().starts_with("cannot start /no/such/program"));
}

#[test]
fn a_child_that_hangs_is_ended() {
    let start = Instant::now();
    let ended = shell("exec sleep 30", Duration::from_millis(100));
    assert_eq!(ended.output.unwrap_err(), "it took more than 0 s");
    assert!(start.elapsed() < Duration::from_secs(20));
}
