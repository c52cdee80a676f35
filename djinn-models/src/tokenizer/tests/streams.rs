//! Streams: what comes out piece by piece is what comes out at once.

use super::super::*;
use super::{data, from_gguf};
use proptest::prelude::*;

/// Feeds a stream and checks that no piece ends within a character that a later token completes.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = tokenizer.stream(skip_special);
    let mut text: String = ids.iter().filter_map(|id| stream.push(*id)).collect();
    text.push_str(&stream.finish());
    text
}

#[test]
fn half_a_character_is_withheld() {
    let tokenizer = from_gguf("sentencepiece.gguf");
    let ids = tokenizer.encode("a🙂b", false).unwrap();
    let mut stream = tokenizer.stream(true);
    let pieces: Vec<Option<String>> = ids.iter().map(|id| stream.push(*id)).collect();
    // "▁a", four byte tokens, "b": a run of bytes is withheld until it ends.
    let shown: Vec<Option<&str>> = pieces.iter().map(Option::as_deref).collect();
    assert_eq!(shown, [Some("a"), None, None, None, None, Some("🙂b")]);
    assert_eq!(stream.finish(), "");
}

#[test]
fn a_character_that_never_comes_is_replaced_at_the_end() {
    let tokenizer = from_gguf("sentencepiece.gguf");
    let ids = tokenizer.encode("🙂", false).unwrap();
    let cut = &ids[..ids.len() - 1];
    let mut stream = tokenizer.stream(true).continuing();
    assert_eq!(cut.iter().filter_map(|id| stream.push(*id)).collect::<String>(), " ");
    assert_eq!(stream.finish(), "\u{fffd}\u{fffd}\u{fffd}");
    assert_eq!(stream.finish(), "");
    // In the alphabet of bytes a character's beginning is one U+FFFD.
    let tokenizer = from_gguf("byte_level.gguf");
    let ids = tokenizer.encode("🙂", false).unwrap();
    let mut stream = tokenizer.stream(true);
    assert!(ids.len() > 1 && ids[..ids.len() - 1].iter().all(|id| stream.push(*id).is_none()));
    assert_eq!(stream.finish(), "\u{fffd}");
}

#[test]
fn only_a_text_of_its_own_loses_its_first_space() {
    let tokenizer = from_gguf("sentencepiece.gguf");
    let the = tokenizer.token_id("▁the").unwrap();
    assert_eq!(tokenizer.stream(true).push(the).as_deref(), Some("the"));
    assert_eq!(tokenizer.stream(true).continuing().push(the).as_deref(), Some(" the"));
    // A special token that leaves no trace does not count as the beginning.
    let mut stream = tokenizer.stream(true);
    assert_eq!(stream.push(1), None);
    assert_eq!(stream.push(the).as_deref(), Some("the"));
    assert_eq!(streamed(&tokenizer, &[1, the], false), "<s> the");
}

#[test]
fn stop_strings_cut_the_text() {
    let scan = |stops: &[&str], pieces: &[&str]| {
        let mut stops = StopStrings::new(stops.iter().map(ToString::to_string)).unwrap();
        let mut shown: Vec<String> = Vec::new();
        let mut stopped = false;
        for piece in pieces {
            let scan = stops.push(piece);
            shown.push(scan.text);
            stopped = scan.stopped;
        }
        shown.push(stops.finish());
        (shown, stopped)
    };
    let of = |pieces: &[&str]| pieces.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(scan(&["END"], &["a E", "N", "D b", "c"]), (of(&["a ", "", "", "", ""]), true));
    assert_eq!(scan(&["END"], &["a E", "N", "X b"]), (of(&["a ", "", "ENX b", ""]), false));
    assert_eq!(scan(&["END"], &["a E", "N"]), (of(&["a ", "", "EN"]), false));
    // "bc" is complete before "abcd" can be.
    assert_eq!(scan(&["abcd", "bc"], &["xabc", "d"]), (of(&["xa", "", ""]), true));
    assert_eq!(scan(&[], &["a"]), (of(&["a", ""]), false));
    assert!(StopStrings::new([String::new()]).is_err());
}

/// The same by the definition: the first end of a stop string in the whole text.
fn cut(text: &str, stops: &[String]) -> String {
    for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
        let matching = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
        if let Some(stop) = matching.max_by_key(|stop| stop.len()) {
            return text[..end - stop.len()].to_owned();
        }
    }
    text.to_owned()
}

proptest! {
    #[test]
    fn any_tokens_stream_to_what_the_package_decodes(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        low in prop::collection::vec(0u32..300, 0..40),
        skip in any::<bool>(),
        name in prop::sample::select(vec!["llama2", "llama3"]),
    ) {
        let package = tokenizers::Tokenizer::from_file(data(name).join("tokenizer.json")).unwrap();
        let tokenizer = Tokenizer::from_dir(data(name)).unwrap().unwrap();
        // Ids past the end and, from the low ids, many single bytes in an order that is mostly no UTF-8.
        let any_id = picks.iter().map(|pick| pick.index(tokenizer.vocab_size() + 3) as u32);
        let ids: Vec<u32> = any_id.chain(low).collect();
        let wanted = package.decode(&ids, skip).unwrap();
        prop_assert_eq!(streamed(&tokenizer, &ids, skip), &*wanted);
        prop_assert_eq!(tokenizer.decode(&ids, skip).unwrap(), wanted);
    }

    #[test]
    fn any_text_streams_whole(text in "\\PC*", spm in any::<bool>()) {
        let tokenizer = from_gguf(if spm { "sentencepiece.gguf" } else { "byte_level.gguf" });
        let ids = tokenizer.encode_rendered(&text, std::slice::from_ref(&(0..text.len()))).unwrap();
        let mut stream = tokenizer.stream(true);
        let mut pieces: Vec<String> = ids.iter().filter_map(|id| stream.push(*id)).collect();
        pieces.push(stream.finish());
        for piece in &pieces {
            prop_assert!(text.contains('\u{fffd}') || !piece.contains('\u{fffd}'), "{:?}", pieces);
        }
        prop_assert_eq!(pieces.concat().replace('▁', " "), text.replace('▁', " "));
        prop_assert_eq!(stream.finish(), "");
    }

    #[test]
    fn stopping_does_not_depend_on_the_pieces(
        pieces in prop::collection::vec("[abé]{0,4}", 0..12),
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
    ) {
        let mut scanner = StopStrings::new(stops.clone()).unwrap();
        let mut shown: String = pieces.iter().map(|piece| scanner.push(piece).text).collect();
        shown.push_str(&scanner.finish());
        prop_assert_eq!(shown, cut(&pieces.concat(), &stops));
    }
}

#[test]
fn bytes_of_tokens_join_to_the_text() {
    for (name, text) in
        [("byte_level.gguf", "The 🙂 foxes\n\n don't"), ("sentencepiece.gguf", "The 🙂 foxes\n\n don't")]
    {
        let tokenizer = from_gguf(name);
        let ids = tokenizer.encode(text, false).unwrap();
        let joined: Vec<u8> =
            ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().into_owned()).collect();
        let joined = String::from_utf8(joined).unwrap();
        assert_eq!(joined.trim_start(), text, "{name}");
        let vocab = tokenizer.vocab_size() as u32;
        assert_eq!(tokenizer.token_bytes(vocab), None);
        let mut special = (0..vocab).filter(|&id| tokenizer.is_special(id));
        assert!(special.all(|id| tokenizer.token_bytes(id).is_none()));
    }
}
