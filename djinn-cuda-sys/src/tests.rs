//! The bindings are those of the header.

/// FNV-1a of the header that the bindings were made from; `scripts/bindgen.sh` writes it.
const HEADER: &str = include_str!("header.hash");

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn bindings_are_those_of_the_header() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/djinn.h");
    let header = std::fs::read_to_string(path).expect("the header lies beside the kernels");
    let found = format!("{:016x}", hash(&header));
    assert_eq!(found, HEADER.trim(), "kernels/djinn.h changed: run scripts/bindgen.sh");
}
