//! Each finding has a remedy.

use super::*;

#[test]
fn what_is_in_the_way_has_a_remedy() {
    let little =
        Memory { total: 8 << 30, available: 1 << 30, swap_free: 0, huge_free: 0, huge_size: 2 << 20 };
    let much = Memory { available: 7 << 30, huge_free: 3, ..little };
    let poor = [memory(Some(little)), memlock(Some(Limit::Bytes(65536))), huge_pages(Some("never"), None)];
    for finding in poor {
        assert!(!finding.ok && finding.remedy.is_some(), "{finding:?}");
    }
    let fine = [
        memory(Some(much)),
        memory(None),
        memlock(Some(Limit::Unlimited)),
        memlock(Some(Limit::Bytes(8 << 30))),
        huge_pages(Some("always"), Some(much)),
    ];
    for finding in &fine {
        assert!(finding.ok && finding.remedy.is_none(), "{finding:?}");
    }
    assert_eq!(fine[4].value, "transparent: always, 6.00 MiB reserved");
}
