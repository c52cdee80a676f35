//! Stretches of a session and their lanes.

use super::*;
use crate::exp1::results::Row;

#[test]
fn stretches_are_joined_and_lanes_are_used_again() {
    let map = serde_json::json!({"seconds": [0.0, 1.0, 2.0, 3.0, 4.0], "sessions": [
        {"session": 1, "from": 0, "cells": "ddh"},
        {"session": 2, "from": 1, "cells": "gdgm"},
        {"session": 3, "from": 3, "cells": "gd"},
    ]});
    let row = Row { map: serde_json::from_value(map).unwrap(), ..Row::default() };
    let Lanes { runs, ends, count } = lanes(&row);
    assert_eq!(count, 2);
    let first = [(0, 0, 2, 0), (0, 2, 3, 2)];
    // Before its pages come a session is not admitted; after that it has given them up.
    let second = [(1, 1, 2, 3), (1, 2, 3, 0), (1, 3, 4, 4), (1, 4, 5, 1)];
    let third = [(0, 3, 4, 3), (0, 4, 5, 0)];
    assert_eq!(runs, [&first[..], &second[..], &third[..]].concat());
    assert_eq!(ends, [(0, 3)], "the others are there at the end");
}
