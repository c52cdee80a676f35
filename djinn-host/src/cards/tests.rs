//! Cards by name, and their figures.

use super::*;

#[test]
fn cards_are_found_in_any_spelling() {
    for name in ["rtx-3060", "RTX 3060", "3060", "NVIDIA GeForce RTX 3060", "rtx_3060"] {
        assert_eq!(Card::find(name).unwrap().name, "rtx-3060", "{name}");
    }
    assert_eq!(Card::find("A100 80GB").unwrap().name, "a100-80");
    for card in CARDS {
        assert_eq!(Card::find(card.name).unwrap(), card, "two cards have one name");
    }
    let message = |name| Card::find(name).unwrap_err().to_string();
    assert_eq!(message("rtx-3061"), "there is no card rtx-3061; did you mean rtx-3060?");
    assert_eq!(message("409O"), "there is no card 409O; did you mean rtx-4090?");
    assert!(message("abacus").ends_with("h200, b200"), "{}", message("abacus"));
}

#[test]
fn cards_are_known_by_their_drivers_names() {
    for (device, card) in [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA GeForce RTX 4060", "rtx-4060"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Tesla T4", "t4"),
    ] {
        assert_eq!(Card::of_device(device).map(|known| known.name), Some(card), "{device}");
    }
    for unknown in ["NVIDIA GeForce RTX 4070 Laptop GPU", "Quadro RTX 6000", "NVIDIA GH200 480GB", ""] {
        assert_eq!(Card::of_device(unknown), None, "{unknown}");
    }
}

#[test]
fn figures_are_of_their_kind() {
    for card in CARDS {
        assert!((8 << 30..192 << 30).contains(&(card.memory_bytes() + (1 << 30))), "{card:?}");
        assert!((270.0..8000.0).contains(&card.memory_gbps), "{card:?}");
        assert!((25.0..2300.0).contains(&card.tflops), "{card:?}");
        assert!((3..=5).contains(&card.pcie) && [8, 16].contains(&card.lanes), "{card:?}");
    }
    let h200 = Card::find("h200").unwrap().machine();
    assert!((h200.flops - 770e12).abs() < 1e6 && (h200.memory - 4000e9).abs() < 1.0, "{h200:?}");
    assert_eq!(h200.link, 55.4e9);
    assert!(!Card::find("t4").unwrap().runs() && Card::find("a100-40").unwrap().runs());
}
