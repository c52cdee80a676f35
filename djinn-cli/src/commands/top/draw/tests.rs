//! The session table in little room.

use super::*;
use ratatui_core::buffer::Buffer;
use serde_json::json;

/// The lines of a screen of `rows` rows, from the head of the table to the keys.
fn table(listed: u64, not_listed: u64, rows: u16) -> Vec<String> {
    let session = |number: u64| {
        json!({"id": format!("agent-{number}"), "number": number, "state": "running", "tokens": 1, "kv_bytes": 1,
            "residency": "device"})
    };
    let times = json!({"count": 0});
    let model = json!({
        "id": "m", "up": true, "status": {"value": "loaded", "weights": "device"}, "tokens": {"generated": 0},
        "latency": {"first_token": times, "between_tokens": times, "whole": times},
        "sessions": (0..listed).map(session).collect::<Vec<_>>(), "sessions_not_listed": not_listed,
    });
    let view = json!({"version": "0", "server": {"served": 0, "most_requests": 1}, "models": [model]});
    let top = Top { view: Some(serde_json::from_value(view).unwrap()), ..Top::default() };
    let mut buffer = Buffer::empty(Rect::new(0, 0, 90, rows));
    all(&top, &mut buffer);
    let line = |y: u16| (0..90).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..rows).map(line).skip_while(|line| !line.starts_with("session")).collect()
}

#[test]
fn sessions_without_room_are_counted() {
    let height = 40 - table(0, 0, 40).len() as u16;
    // The table's head and the keys take a row each.
    for (listed, not_listed, room, shown, more) in
        [(3, 0, 3, 3, 0), (4, 0, 3, 2, 2), (1, 5, 9, 1, 5), (3, 2, 3, 2, 3), (2, 0, 1, 0, 2), (2, 0, 0, 0, 0)]
    {
        let lines = table(listed, not_listed, height + room + 2);
        let agents = lines.iter().filter(|line| line.contains("agent-")).count();
        let last =
            lines[1..].iter().find_map(|line| line.strip_prefix("and ")?.split(' ').next()?.parse().ok());
        assert_eq!(
            (agents, last.unwrap_or(0)),
            (shown, more),
            "{listed} and {not_listed} in {room}: {lines:#?}"
        );
    }
}
