//! The stand-in tokenizer: exact for every text and for what its model says.

use crate::Tokenizer;
use proptest::prelude::*;

fn stand_in(vocab: u64) -> Tokenizer {
    Tokenizer::stand_in(vocab).unwrap().unwrap()
}

#[test]
fn every_token_has_a_spelling_and_text() {
    for vocab in [256, 257, 1000, 128_256] {
        let tokenizer = stand_in(vocab);
        assert_eq!(tokenizer.vocab_size() as u64, vocab);
        assert_eq!(tokenizer.end_tokens(), [253, 255]);
        for id in 0..vocab as u32 {
            let name = tokenizer.id_to_token(id).unwrap();
            assert_eq!(tokenizer.token_id(&name), Some(id), "{name}");
            assert_eq!(tokenizer.is_special(id), (253..256).contains(&id));
            let text = tokenizer.decode(&[id], false).unwrap();
            assert!(!text.is_empty(), "{id}");
            if !(128..253).contains(&id) {
                assert_eq!(tokenizer.encode(&text, true).unwrap(), [id], "{text}");
            }
        }
        assert_eq!(tokenizer.id_to_token(vocab as u32), None);
        // The names of bytes that are special tokens are those of no token.
        assert_eq!(tokenizer.token_id("ÿ"), None);
    }
    for none in [0, 255, 983_297] {
        assert!(Tokenizer::stand_in(none).unwrap().is_none());
    }
}

proptest! {
    #[test]
    fn every_text_is_exact(text in "(?s).{0,40}", vocab in prop::sample::select(vec![256u64, 4000])) {
        let tokenizer = stand_in(vocab);
        let ids = tokenizer.encode(&text, true).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), text.clone());
        prop_assert!(ids.iter().all(|&id| u64::from(id) < vocab));
        // Within the basic plane a token is a byte.
        if text.chars().all(|c| c < '\u{20000}') {
            prop_assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        }
    }
}
