//! Traces: what is read, and what is said of broken rows.

use super::{parse_azure, parse_tracelab};
use std::time::Duration;

const SESSIONS: &str = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms";

#[test]
fn requests_are_sessions_of_one_turn() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-12-31 23:59:59.9000000,4808,10\r\n\
                2024-01-01 00:00:00.1500000,3180,8\r\n";
    let mut workload = parse_azure(text).expect("valid");
    let starts: Vec<_> = workload.agents.iter().map(|agent| agent.start).collect();
    assert_eq!(starts, [Duration::ZERO, Duration::from_millis(250)]);
    let script = workload.agents[1].next().expect("a session");
    assert_eq!((script.turns[0].prompt, script.turns[0].output, script.turns.len()), (3_180, 8, 1));
    assert_eq!(workload.agents[1].next(), None);
}

#[test]
fn rounds_become_turns() {
    let text = format!("{SESSIONS}\n7,117,0,0,2318,200,300\n8,9,0,0,5,5,0\n7,117,1,2518,348,131,0\n");
    let mut workload = parse_tracelab(&text).expect("valid");
    assert_eq!(workload.len(), 2);
    let script = workload.agents[0].next().expect("a session");
    assert_eq!(script.tokens(), 2318 + 200 + 348 + 131);
    assert_eq!(script.turns[0].wait, Duration::from_millis(300));
    assert_eq!(workload.agents[1].start, Duration::from_millis(9));
}

#[test]
fn broken_rows_are_named_with_line_field_and_remedy() {
    let cases = [
        ("7,117,0,0,2318,200", "line 2: row: 6 fields; a row has 7: complete or remove it"),
        ("7,117,0,0,many,200,3", "line 2: input_len: `many` is no whole number"),
        ("7,117,0,0,-3,200,3", "line 2: input_len: `-3` is no whole number"),
        ("7,117,0,0,0,200,3", "line 2: input_len: 0 tokens; give at least 1"),
        ("7,117,1,0,5,200,3", "line 2: round_idx: round 1 where 0 is due; list rounds in order"),
        ("7,117,0,9,5,200,3", "line 2: prefix_len: 9, but the rounds before hold 0 tokens"),
        ("7,1,0,0,5,2,3\n\n7,2,1,7,5,2,3", "line 4: arrival_time: session 7 came at 1 before"),
        ("7,117,0,0,99999999999999999999,200,3", "line 2: input_len: `99999999999999999999`"),
    ];
    for (rows, expected) in cases {
        let message = parse_tracelab(&format!("{SESSIONS}\n{rows}\n")).expect_err(rows).to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    for (text, expected) in [
        ("", "line 1: header: the header is ``; it must be `session_id,"),
        ("a,b\n1,2\n", "line 1: header: the header is `a,b`; it must be"),
    ] {
        let message = parse_tracelab(text).expect_err(text).to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    let no_rows = parse_tracelab(SESSIONS).expect_err("empty").to_string();
    assert_eq!(no_rows, "line 1: row: the trace has no rows; give at least one");
}

#[test]
fn broken_times_are_refused() {
    for time in [
        "yesterday",
        "2023-13-01 00:00:00",
        "2023-11-16 24:00:00",
        "2023-11-16",
        "-1-1-1 0:0:0",
        "2023-11-16 1:2:3.x",
    ] {
        let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{time},1,1\n");
        let message = parse_azure(&text).expect_err(time).to_string();
        assert!(
            message.starts_with("line 2: TIMESTAMP: ") && message.contains("2023-11-16 18:17"),
            "{message}"
        );
    }
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:01,1,1\n2023-11-16 18:00:00,1,1\n";
    let message = parse_azure(text).expect_err("unsorted").to_string();
    assert_eq!(message, "line 3: TIMESTAMP: earlier than the first row; sort the rows by time");
}
