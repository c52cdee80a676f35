//! Rates of healthy, poor and unknown links.

use super::*;

const FULL: Pcie = Pcie { generation: 5, max_generation: 5, width: 16, max_width: 16 };

fn rates(gbps: f64) -> BothWays {
    BothWays { up_gbps: gbps, down_gbps: gbps }
}

#[test]
fn a_healthy_link_is_not_warned_about() {
    // An H200 gives 55.4, an L4 about 26.
    assert_eq!(judge(rates(55.4), Some(FULL), "NVIDIA H200").1, Vec::<String>::new());
    assert_eq!(judge(rates(55.4), None, "NVIDIA H200").1, Vec::<String>::new());
    assert_eq!(judge(rates(26.0), None, "NVIDIA L4").1, Vec::<String>::new());
    // A card of eight lanes.
    assert_eq!(judge(rates(13.0), None, "NVIDIA GeForce RTX 4060").1, Vec::<String>::new());
}

#[test]
fn a_poor_link_is_explained() {
    let narrow = judge(rates(27.0), Some(Pcie { width: 8, ..FULL }), "NVIDIA H200").1;
    assert!(
        narrow.len() == 2 && narrow[0].contains("8 of 16 lanes") && !narrow[0].contains("NUMA"),
        "{narrow:?}"
    );
    let slow = judge(rates(20.0), Some(Pcie { generation: 4, ..FULL }), "NVIDIA H200").1;
    assert!(slow[0].contains("generation 4 of 5") && slow[0].contains("NUMA"), "{slow:?}");
    let loaded = judge(rates(30.0), Some(FULL), "NVIDIA H200").1;
    assert!(loaded[0].contains("NUMA"), "{loaded:?}");
    let one_way = judge(BothWays { up_gbps: 55.0, down_gbps: 30.0 }, None, "NVIDIA H200").1;
    assert!(one_way.len() == 1 && one_way[0].starts_with("device to host"), "{one_way:?}");
}

#[test]
fn an_unknown_card_is_said_to_be_unknown() {
    let (expected, warnings) = judge(rates(10.0), None, "Some Card");
    assert!(expected.is_none() && warnings[0].contains("not known"));
}
