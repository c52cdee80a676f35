//! The chat, in a pseudo-terminal.

use super::Place;
use super::serve::serve;
use super::text;
use rexpect::process::Signal;
use rexpect::reader::Options;
use rexpect::session::{PtySession, spawn_with_options};
use serde_json::Value;

/// What the line editor writes when it begins to listen, and when it has heard. An answer cannot: it has no escapes.
pub(super) const LISTENS: &str = "\x1b[?2004h";
pub(super) const HEARD: &str = "\x1b[?2004l";
const PASTE: (&str, &str) = ("\x1b[200~", "\x1b[201~");
pub(super) const CTRL_C: &str = "\x03";
pub(super) const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";
const LEFT: &str = "\x1b[D";

/// A chat, or another command that hears lines, which somebody has on a terminal.
pub(super) struct Talk {
    pub(super) terminal: PtySession,
    /// What came before the first prompt.
    opening: String,
}

impl Talk {
    fn begin(place: &Place, args: &[&str]) -> Self {
        Talk::with(place, &[&["run", "./model"], args].concat())
    }

    pub(super) fn with(place: &Place, args: &[&str]) -> Self {
        let mut command = place.command(args);
        command.env("TERM", "xterm");
        let options = Options::new().timeout_ms(Some(60_000));
        let mut terminal = spawn_with_options(command, options).unwrap();
        let opening = terminal.exp_string(LISTENS).unwrap();
        Talk { terminal, opening }
    }

    /// Presses keys.
    pub(super) fn press(&mut self, keys: &str) {
        use std::io::Write;
        // The terminal takes what it has room for; a chat that reads makes room.
        let mut file = self.terminal.process().get_file_handle().unwrap();
        file.write_all(keys.as_bytes()).unwrap();
    }

    /// What comes until the next prompt, once the keys that were pressed are taken as a line.
    fn reply(&mut self) -> String {
        self.terminal.exp_string(HEARD).unwrap();
        let reply = self.terminal.exp_string(LISTENS).unwrap();
        reply.trim_start_matches("\r\n").to_owned()
    }

    pub(super) fn say(&mut self, text: &str) -> String {
        self.press(&format!("{text}\r"));
        self.reply()
    }

    /// Ends the chat, and gives the last words and whether it succeeded.
    pub(super) fn end(mut self, keys: &str) -> (String, bool) {
        self.press(keys);
        self.terminal.exp_string(HEARD).unwrap();
        let last = self.terminal.exp_eof().unwrap();
        (last, format!("{:?}", self.terminal.process().wait().unwrap()).ends_with(", 0)"))
    }

    /// The messages that the chat holds, by way of `/save!`.
    fn messages(&mut self, place: &Place) -> Vec<(String, String)> {
        assert!(self.say("/save! now.json").contains("now.json"));
        let saved = std::fs::read_to_string(place.path().join("now.json")).unwrap();
        let saved: Value = serde_json::from_str(&saved).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let messages = saved["messages"].as_array().unwrap();
        messages.iter().map(|m| (text(&m["role"]), text(&m["content"]))).collect()
    }

    fn users(&mut self, place: &Place) -> Vec<String> {
        let users = self.messages(place).into_iter().filter(|(role, _)| role == "user");
        users.map(|(_, content)| content).collect()
    }
}

const GREEDY: [&str; 4] = ["--greedy", "--ignore-eos", "-n=8", "--ctx=20000"];
const ENDLESS: [&str; 4] = ["--greedy", "--ignore-eos", "-n=900000", "--ctx=900000"];

/// A place with `./model`, which takes as many tokens as wanted.
pub(super) fn place() -> Place {
    let place = text::place();
    let file = place.path().join("model/config.json");
    let config = std::fs::read_to_string(&file).unwrap();
    let longer = config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 1000000");
    assert_ne!(longer, config);
    std::fs::write(&file, longer).unwrap();
    place
}

#[test]
fn an_answer_is_that_of_run_and_the_next_one_knows_of_it() {
    let place = place();
    let once = |prompt: &str| {
        let args = [&["run", "./model", prompt, "--json"], &GREEDY[..]].concat();
        place.json(&args)["text"].as_str().unwrap().to_owned()
    };
    let mut talk = Talk::begin(&place, &GREEDY);
    assert!(talk.opening.contains("model on ") && talk.opening.contains("a context of 20000 tokens"));
    talk.say("Hi");
    let first = talk.messages(&place);
    let expected = [("system", "You are a helpful assistant."), ("user", "Hi"), ("assistant", &once("Hi"))];
    assert_eq!(first, expected.map(|(role, content)| (role.to_owned(), content.to_owned())));
    talk.say("And?");
    assert_eq!(talk.messages(&place)[..3], first);
    let stats = talk.say("/stats");
    assert!(stats.contains("reused") && stats.contains("of 20000 tokens of context left"), "{stats}");
    assert_eq!(talk.end(CTRL_D), ("\r\n".to_owned(), true));
}

#[test]
fn a_chat_with_a_server_is_one_with_the_model() {
    let place = place();
    let serving = serve(&place, &["--ctx=20000"]);
    let server = format!("--server=http://{}", serving.address);
    let mut here = Talk::begin(&place, &GREEDY);
    let mut there = Talk::with(&place, &[&["run", "model", &server], &GREEDY[..3]].concat());
    assert!(
        there.opening.contains("model on http://127.0.0.1:") && there.opening.contains("of 20000 tokens")
    );
    for line in ["Hi", "And?", "/system Be brief.", "/set temperature 0.9", "/set seed 5", "More"] {
        assert_eq!(there.say(line), here.say(line), "{line}");
    }
    assert_eq!(there.messages(&place), here.messages(&place));
    there.say("And more");
    let stats = there.say("/stats");
    assert!(stats.contains(" reused)") && stats.contains("of 20000 tokens of context left"), "{stats}");
    // What the server refuses is told, and what Ctrl-C ends is the answer.
    let refused = there.say(&"x".repeat(30_000));
    assert!(refused.contains("a message of 30000 bytes does not fit a context of 20000 tokens"), "{refused}");
    there.say("/clear");
    there.say("/set max-tokens 15000");
    there.press("Go\r");
    there.terminal.exp_string(HEARD).unwrap();
    there.terminal.exp_regex("(?s).{300}").unwrap();
    there.press(CTRL_C);
    there.terminal.exp_string(LISTENS).unwrap();
    let answer = there.messages(&place).pop().unwrap();
    assert!(answer.0 == "assistant" && answer.1.len() >= 40, "{answer:?}");
    there.say("/set max-tokens 8");
    there.say("On?");
    assert_eq!(there.users(&place), ["Go", "On?"]);
    let sessions = || serving.ask("GET /v1/sessions", "", "");
    assert!(sessions().contains("\"id\":\"chat-"));
    assert!(there.end(CTRL_D).1);
    assert!(!sessions().contains("\"id\":\"chat-"), "a chat that is over holds nothing");
    // Without the server there is no chat.
    let there = Talk::with(&place, &["run", "model", &server]);
    drop(serving);
    let (last, ended_well) = there.end("Hi\r");
    assert!(!ended_well && last.contains("error: no answer from http://127.0.0.1:"), "{last}");
}

#[test]
fn a_seed_that_a_chat_would_not_use_is_refused() {
    let place = place();
    let serving = serve(&place, &[]);
    let server = format!("--server=http://{}", serving.address);
    for args in [&["run", "./model"][..], &["run", "model", &server]] {
        let command = place.command(&[args, &["--greedy", "--seed=5"]].concat());
        let options = Options::new().timeout_ms(Some(60_000));
        let mut terminal = spawn_with_options(command, options).unwrap();
        let all = terminal.exp_eof().unwrap();
        assert!(all.contains("error: --seed has no effect without --temperature"), "{all}");
        assert!(!all.contains("/help"), "it did not begin: {all}");
    }
}

#[test]
fn lines_are_edited_recalled_and_pasted_whole() {
    let place = place();
    let mut talk = Talk::begin(&place, &GREEDY);
    // The cursor moves, and a line that is dropped leaves nothing.
    talk.say(&format!("Helo{LEFT}l"));
    talk.press(&format!("never said{CTRL_C}"));
    talk.reply();
    let long: String = (0..700).map(|i| format!("word{i:05}\n")).collect();
    assert_eq!(long.len(), 7000);
    talk.say(&format!("{}{long}{}", PASTE.0, PASTE.1));
    talk.say("\"\"\"one\r\rtwo\"\"\"");
    talk.say("//slash");
    assert_eq!(talk.users(&place), ["Hello", &long, "one\n\ntwo", "/slash"]);
    assert!(talk.end("/exit\r").1);
    // The next chat remembers: the line before the last is the one before `/exit`.
    let mut talk = Talk::begin(&place, &GREEDY);
    talk.say(&format!("{UP}{UP}{UP}"));
    assert_eq!(talk.users(&place), ["/slash"]);
    let history = std::fs::metadata(place.path().join("home/djinn/history")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&history.permissions()) & 0o777, 0o600);
}

#[test]
fn ctrl_c_ends_the_answer_and_never_the_chat() {
    let place = place();
    let mut talk = Talk::begin(&place, &ENDLESS);
    talk.press("Go\r");
    talk.terminal.exp_string(HEARD).unwrap();
    // The answer has begun. What is typed meanwhile is not seen in it, and is there at the next prompt.
    // A character of the answer may take several on the terminal.
    talk.terminal.exp_regex("(?s).{300}").unwrap();
    talk.press(CTRL_C);
    talk.terminal.exp_string(LISTENS).unwrap();
    let answer = talk.messages(&place).pop().unwrap();
    assert!(answer.0 == "assistant" && answer.1.len() >= 40, "{answer:?}");
    // At rest it drops the line, however often.
    for _ in 0..3 {
        talk.press(&format!("half{CTRL_C}"));
        talk.reply();
    }
    assert_eq!(talk.users(&place), ["Go"]);
    assert!(talk.end(CTRL_D).1);
}

#[test]
fn a_chat_that_is_terminated_leaves_the_terminal_as_it_was() {
    use rustix::termios::{LocalModes, tcgetattr};
    for answering in [false, true] {
        let place = place();
        let mut talk = Talk::begin(&place, &ENDLESS);
        if answering {
            talk.press("Hi\r");
            talk.terminal.exp_string(HEARD).unwrap();
        }
        let terminal = talk.terminal.process().get_file_handle().unwrap();
        let by_lines = || tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ICANON);
        // The editor, and the chat while it answers, take keys one by one.
        assert!(!by_lines(), "answering: {answering}");
        talk.terminal.process_mut().signal(Signal::SIGTERM).unwrap();
        let status = talk.terminal.process().wait().unwrap();
        assert!(format!("{status:?}").contains("SIGTERM"), "{status:?}");
        assert!(by_lines(), "answering: {answering}");
    }
}

#[test]
fn keys_that_are_pressed_during_an_answer_wait_unseen() {
    let place = place();
    let mut talk = Talk::begin(&place, &["--greedy", "--ignore-eos", "-n=2000", "--ctx=900000"]);
    talk.press("Go\r");
    talk.terminal.exp_string(HEARD).unwrap();
    talk.terminal.exp_regex("[^\r\n]{40}").unwrap();
    talk.press("~typed~ahead~");
    let rest = talk.terminal.exp_string(LISTENS).unwrap();
    assert!(!rest.contains("~typed~ahead~"), "the keys were echoed");
    talk.terminal.exp_string("~typed~ahead~").unwrap();
    talk.press("\r");
    talk.terminal.exp_string(HEARD).unwrap();
    talk.press(CTRL_C);
    talk.terminal.exp_string(LISTENS).unwrap();
    let users = talk.users(&place);
    assert!(users == ["Go", "~typed~ahead~"] || users == ["Go"], "{users:?}");
}

#[test]
fn commands_are_obeyed_and_unknown_ones_refused() {
    let place = place();
    let mut talk = Talk::begin(&place, &GREEDY);
    for name in ["/help", "/system", "/set", "/stats", "/clear", "/save", "/load", "/exit", "Ctrl-D"] {
        assert!(talk.say("/help").contains(name), "{name}");
    }
    assert!(talk.say("/hlep").contains("there is no command /hlep; did you mean /help?"));
    assert!(talk.say("/he\t").contains("Ctrl-D"), "completed");
    assert!(talk.say("/set").starts_with("greedy, repetition-penalty 1, max-tokens 8"));
    let warm = talk.say("/set temperature 0.5");
    assert!(warm.starts_with("temperature 0.5, "), "{warm}");
    assert!(talk.say("/set temperature hot").contains("invalid value 'hot'"));
    assert!(talk.say("/set tempreature 1").contains("did you mean temperature?"));
    assert!(talk.say("/set greedy").starts_with("greedy"));
    assert!(talk.say("/system Be brief.").contains("system message: Be brief."));
    talk.say("Hi");
    let said = talk.messages(&place);
    assert_eq!(
        said[..2],
        [("system".to_owned(), "Be brief.".to_owned()), ("user".to_owned(), "Hi".to_owned())]
    );
    talk.say("/clear");
    assert!(talk.users(&place).is_empty());
    assert!(talk.end("/exit\r").1);
    // What the model's makers say counts, else what suits a chat.
    let mut talk = Talk::begin(&place, &["--ctx=2000"]);
    assert!(talk.say("/set").starts_with("temperature 0.6, top-k 0, top-p 0.9, min-p 0, "));
    place.write("model/generation_config.json", "{}");
    let mut talk = Talk::begin(&place, &["--ctx=2000"]);
    let set = talk.say("/set");
    assert!(
        set.starts_with("temperature 0.7, top-k 0, top-p 0.95, min-p 0.05, another seed each time"),
        "{set}"
    );
}

#[test]
fn conversations_are_saved_and_go_on() {
    let place = place();
    let mut talk = Talk::begin(&place, &GREEDY);
    talk.say("/set temperature 0.5");
    talk.say("/set stop xyz");
    talk.say("Hi");
    let said = talk.messages(&place);
    let there = talk.say("/save now.json");
    assert!(there.contains("now.json is there already; /save! now.json replaces it"), "{there}");
    talk.end(CTRL_D);
    let mut talk = Talk::begin(&place, &GREEDY);
    assert!(talk.say("/load now.json").contains("3 messages from now.json, and stop, temperature"));
    assert!(talk.say("/set").starts_with("temperature 0.5, "));
    talk.say("More");
    assert_eq!(talk.messages(&place)[..3], said);
    // What is no chat changes nothing.
    place.write("bad.json", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}");
    place.write("worse.json", "{\"messages\": [], \"settings\": {\"trace\": \"x\"}}");
    place.write("none.json", "[1]");
    for (name, why) in [
        ("bad.json", "in turn"),
        ("worse.json", "unexpected argument '--trace'"),
        ("none.json", "is no saved chat"),
        ("/dev/zero", "regular file"),
        ("missing.json", "missing.json"),
    ] {
        let reply = talk.say(&format!("/load {name}"));
        assert!(reply.contains(why), "{reply}");
    }
    assert_eq!(talk.users(&place), ["Hi", "More"]);
}

#[test]
fn a_full_context_forgets_the_oldest_turns_and_says_so() {
    let place = place();
    let mut talk = Talk::begin(&place, &["--greedy", "--ignore-eos", "-n=16", "--ctx=160"]);
    let mut forgotten = 0;
    for i in 0..8 {
        let reply = talk.say(&format!("Message number {i} of them."));
        forgotten += usize::from(reply.contains("to fit the context of 160 tokens"));
    }
    assert!(forgotten >= 3, "{forgotten}");
    let left = talk.messages(&place);
    assert_eq!(left[0].1, "You are a helpful assistant.");
    assert!(left.len() < 8 && left.last().unwrap().0 == "assistant");
    assert_eq!(talk.users(&place).last().unwrap(), "Message number 7 of them.");
    // A message that cannot fit is refused, and one that leaves little room is answered as far as that goes.
    let refused = talk.say(&"x".repeat(150));
    assert!(refused.starts_with("a message of 150 bytes does not fit a context of 160"), "{refused}");
    let cut = talk.say(&"y".repeat(160 - 8 - "[system:You are a helpful assistant.][user:]>".len()));
    assert!(cut.contains("the context of 160 tokens is full"), "{cut}");
    assert!(talk.end(CTRL_D).1);
}
