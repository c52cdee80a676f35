//! Conversations in a context that becomes full, on a tiny model whose 128 tokens are the bytes of ASCII.

use djinn_host::{Chat, Djinn, Error, Generation, Reply, Setup, Speech};
use djinn_models::Message;
use std::ops::ControlFlow;
use std::path::Path;
use tempfile::TempDir;

const CONTEXT: u64 = 160;

fn open() -> Djinn {
    let (folder, here) = (TempDir::new().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let checkpoint = here.join("../djinn-models/tests/checkpoints/tied-f32");
    for from in [checkpoint, here.join("tests/fixtures/ascii")] {
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
    }
    let setup = Setup { context: Some(CONTEXT), threads: Some(1), ..Setup::default() };
    Djinn::open(folder.path().to_str().unwrap(), setup).unwrap()
}

/// Of 16 tokens, always the same.
fn generation() -> Generation {
    Generation { max_tokens: 16, greedy: true, ignore_eos: true, ..Generation::default() }
}

fn ask(djinn: &mut Djinn, chat: &mut Chat<'_>, text: &str) -> djinn_host::Result<Reply> {
    chat.ask(&mut *djinn.engine, &generation(), text, &mut |_| ControlFlow::Continue(()))
}

/// The model is borrowed by the chat while its engine is used.
fn with_chat(work: impl FnOnce(&mut Djinn, &mut Chat<'_>)) {
    let mut djinn = open();
    let model = open().model;
    let mut chat = Chat::new(Speech::chat(&model, Some("Be.")).unwrap());
    work(&mut djinn, &mut chat);
}

#[test]
fn the_fewest_oldest_turns_are_forgotten_and_the_rest_is_answered_as_ever() {
    with_chat(|djinn, chat| {
        let mut forgotten = Vec::new();
        for number in 0..9 {
            let before = chat.conversation.messages();
            let reply = ask(djinn, chat, &format!("Message {number}")).unwrap();
            forgotten.push(reply.forgotten);
            let kept = &before[1 + 2 * reply.forgotten..];
            assert_eq!(chat.conversation.messages()[0], before[0]);
            assert_eq!(&chat.conversation.messages()[1..1 + kept.len()], kept);
            // As a conversation that only ever was what is kept.
            let (mut fresh, mut messages) = (open(), [&before[..1], kept].concat());
            messages.push(Message::new("user", format!("Message {number}")));
            let expected = fresh.answer(&messages, &generation(), |_| {}).unwrap();
            assert_eq!(reply.answer.tokens, expected.tokens);
            let prompt = expected.stats.prompt_tokens as u64;
            assert_eq!(reply.left, CONTEXT - prompt - 16);
            // One turn less forgotten would not have left 16 tokens.
            if reply.forgotten > 0 {
                let turn: usize =
                    before[2 * reply.forgotten - 1..][..2].iter().map(|m| m.content.len()).sum();
                assert!(prompt + turn as u64 + "[user:][assistant:]".len() as u64 + 16 > CONTEXT);
            }
        }
        assert_eq!(forgotten[..2], [0, 0]);
        assert!(forgotten[3..].iter().all(|turns| *turns == 1), "{forgotten:?}");
    });
}

#[test]
fn a_message_that_cannot_fit_is_refused_and_changes_nothing() {
    with_chat(|djinn, chat| {
        ask(djinn, chat, "Hi").unwrap();
        let before = chat.conversation.messages();
        for bytes in [CONTEXT as usize, 20 << 20] {
            let error = ask(djinn, chat, &"x".repeat(bytes)).unwrap_err();
            assert!(matches!(error, Error::MessageTooLong { context: CONTEXT, .. }), "{error}");
        }
        assert_eq!(chat.conversation.messages(), before);
        // What leaves less room than wanted is answered as far as that goes.
        let long = "x".repeat(CONTEXT as usize - "[system:Be.][user:]>".len() - 5);
        let reply = ask(djinn, chat, &long).unwrap();
        assert_eq!((reply.forgotten, reply.left), (1, 0));
    });
}

#[test]
fn a_turn_that_is_too_long_to_count_is_forgotten() {
    with_chat(|djinn, chat| {
        let long = Message::new("user", "x".repeat(20 << 20));
        chat.conversation.resume(vec![long, Message::new("assistant", "Yes.")]).unwrap();
        assert_eq!(ask(djinn, chat, "Hi").unwrap().forgotten, 1);
    });
}

#[test]
fn an_answer_that_never_begins_leaves_the_conversation() {
    with_chat(|djinn, chat| {
        ask(djinn, chat, "Hi").unwrap();
        let before = chat.conversation.messages();
        let reply =
            chat.ask(&mut *djinn.engine, &generation(), "More", &mut |_| ControlFlow::Break(())).unwrap();
        assert!(reply.answer.tokens.is_empty());
        assert_eq!(chat.conversation.messages(), before);
    });
}

#[test]
fn only_conversations_between_two_are_resumed() {
    with_chat(|_, chat| {
        let message = |role: &str| Message::new(role, "text");
        for roles in
            [&["user"][..], &["assistant", "user"], &["user", "user"], &["user", "assistant", "system"]]
        {
            let messages = roles.iter().copied().map(message).collect();
            assert!(matches!(chat.conversation.resume(messages), Err(Error::Conversation)), "{roles:?}");
        }
        assert_eq!(chat.conversation.messages(), [Message::new("system", "Be.")]);
        chat.conversation.resume(["user", "assistant"].map(message).to_vec()).unwrap();
        assert_eq!((chat.conversation.system(), chat.conversation.messages().len()), (None, 2));
    });
}
