//! Models with rows that are no multiple of 16 bytes, where no operand may begin at most rows: routers of two or six experts,
//! heads of two elements, an odd width.

use super::sharing::{end_all, open_with, settle};
use super::*;
use djinn_engine::Origin;

const FAMILIES: [&str; 4] = [
    "tiny-mixtral?experts=6",
    "tiny-mixtral?experts=2",
    "tiny-gqa?heads=3&kv_heads=1&head_dim=2",
    "tiny?intermediate=161",
];

/// With a chunk and the prompt's end in one step, and chunks that begin after rows of other sessions.
#[test]
fn odd_widths_run_for_one_session_and_for_many() {
    for family in FAMILIES {
        let prompts = [(1, 41), (2, 50), (3, 9), (4, 78)].map(|(seed, len)| prompt(seed, len));
        let expected: Vec<_> = prompts.iter().map(|tokens| alone(family, &[(tokens.clone(), 4)])).collect();
        for wide_products in [false, true] {
            let device = || sim(SimConfig { wide_products, ..SimConfig::default() });
            let one = Options { decode_rows: 8, pages: None, ..options(12, 0) };
            let one = Options { sequences: 1, logit_rows: 1, ..one };
            for (tokens, expected) in prompts.iter().zip(&expected) {
                let mut service = serve(device(), family, &one, &settings("lru"));
                open_with(&mut service, tokens, 4, Origin::Own);
                let told: Vec<u32> = settle(&mut service).into_iter().map(|(_, token)| token).collect();
                assert_eq!(told, expected[0], "{family}, {} tokens", tokens.len());
            }
            let mut service = serve(device(), family, &options(48, 0), &settings("lru"));
            let open = |tokens: &Vec<u32>| open_with(&mut service, tokens, 4, Origin::Own);
            let ids: Vec<_> = prompts.iter().map(open).collect();
            let told = settle(&mut service);
            for (id, expected) in ids.iter().zip(&expected) {
                let own = told.iter().filter(|(of, _)| of == id).map(|(_, token)| *token);
                assert_eq!(own.collect::<Vec<_>>(), expected[0], "{family}, {id}");
            }
            end_all(service, (48, 0));
        }
    }
}
