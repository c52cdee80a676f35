//! The table against its committed text.

use super::{EventKind, Next, Phase, table, transition};

#[test]
fn the_table_is_the_committed_one() {
    let (committed, now) = (include_str!("transitions.txt"), table());
    let mut diff = String::new();
    let lines = committed.lines().count().max(now.lines().count());
    for at in 0..lines {
        let (old, new) = (committed.lines().nth(at), now.lines().nth(at));
        if old != new {
            diff += &format!("- {}\n+ {}\n", old.unwrap_or("(no line)"), new.unwrap_or("(no line)"));
        }
    }
    assert!(diff.is_empty(), "src/phase/transitions.txt differs from the table:\n{diff}");
}

#[test]
fn every_phase_can_be_left_and_reached() {
    for phase in Phase::ALL {
        assert_eq!(transition(Some(phase), EventKind::Abort), Next::Ended);
        let to = |from| EventKind::ALL.iter().any(|&event| transition(from, event) == Next::To(phase));
        assert!(to(None) || Phase::ALL.iter().any(|&from| from != phase && to(Some(from))), "{phase}");
    }
}
