//! What the kernels decode blocks to, on the host: `kernels/block_formats.cuh` has no operation that only a device has.
//! Compiled by the C++ compiler that nvcc needs as well.

#![cfg(feature = "cuda")]

use std::path::Path;
use std::process::Command;

#[test]
fn blocks_decode_to_the_fixtures_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("blocks");
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let compiled = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-ffp-contract=off", "-I"])
        .arg(root.join("kernels"))
        .arg(root.join("tests/blocks.cpp"))
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "{} failed", compiler.display());
    let fixtures = root.join("../djinn-models/tests/fixtures/quant");
    let checked = Command::new(&program).arg(fixtures).output().expect("what was compiled runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}
