//! Clients at random of models that take turns, budgets of several sizes, a model whose last client leaves, and one that cannot
//! be loaded: each request gets the tokens of its model alone or is told why not, no memory exceeds its budget, and all of it
//! is given back.

use super::*;
use djinn_scheduler::{SessionEvent, Signal};

/// Prompts, and rounds of each of the clients that run at once.
const PROMPTS: u64 = 3;
const ROUNDS: u64 = 2;
const VISITORS: u64 = 3;

/// Numbers below `sides`, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn text(at: u64) -> Vec<u32> {
    prompt(at, 20 + 9 * at as usize)
}

/// Two turns of a session, as far as its client goes: some leave in the middle of the first one, some are held meanwhile.
fn visit(client: &Client, expected: &[Vec<u32>], at: u64, dice: &mut Dice) {
    let (id, happenings) = open_on(client, text(at), 5);
    let id = id.expect("it is admitted");
    match dice.roll(5) {
        0 => {
            // It leaves after some tokens.
            let few = happenings.iter().take(dice.roll(4) as usize);
            for (happening, expected) in few.zip(&expected[0]) {
                assert!(
                    matches!(&happening, Happening::Token { token, .. } if token == expected),
                    "{happening:?}"
                );
            }
            return client.abort(id);
        }
        1 => {
            let _ = client.event(id, SessionEvent::Pause);
            std::thread::sleep(Duration::from_millis(dice.roll(4)));
            let _ = client.event(id, SessionEvent::Resume);
        }
        2 => return client.abort(id),
        _ => {}
    }
    assert_eq!(tokens_of(&happenings), expected[0]);
    if dice.roll(2) == 0 {
        let signal = Signal::IoWait { tool: None, estimated_resume_ms: Some(1 + dice.roll(50)) };
        client.signal(id, signal).expect("the pool serves");
    }
    let (_, happenings) = go_on(client, id, [text(at), expected[0].clone(), prompt(99, 3)].concat());
    assert_eq!(tokens_of(&happenings), expected[1]);
    client.abort(id);
}

#[test]
fn random_clients_of_models_in_turns() {
    let turns = |at: u64| [(text(at), 5), (prompt(99, 3), 4)];
    let expected = MODELS.map(|family| (0..PROMPTS).map(|at| alone(family, &turns(at))).collect::<Vec<_>>());
    for seed in 0..4_u64 {
        let [one, two, three] = MODELS.map(|family| Known::new(family, [0, 6, 24][seed as usize % 3]));
        let refused = Known::new("tiny-gqa?seed=4", 0);
        refused.refusals.store(u64::MAX, Ordering::Relaxed);
        let bytes = one.device_bytes();
        let (vram, host_limit) =
            (bytes * [2, 3, 5, 4][seed as usize] / 2, [u64::MAX, bytes][seed as usize % 2]);
        let mut pooled = Pooled::start(seed, &[one, two, three, refused], vram, host_limit);
        let [broken, leaving] = [(); 2].map(|()| pooled.clients.pop().expect("four"));
        std::thread::scope(|scope| {
            for visitor in 0..VISITORS {
                let mut dice = Dice(seed * 1000 + visitor + 1);
                let (stays, leaving, broken) = (&pooled.clients, leaving.clone(), broken.clone());
                let expected = &expected;
                scope.spawn(move || {
                    let stay = |dice: &mut Dice| {
                        let (model, at) = (dice.roll(2) as usize, dice.roll(PROMPTS));
                        visit(&stays[model], &expected[model][at as usize], at, dice);
                    };
                    for _ in 0..ROUNDS {
                        stay(&mut dice);
                        let at = dice.roll(PROMPTS);
                        visit(&leaving, &expected[2][at as usize], at, &mut dice);
                        let (refused, _) = open_on(&broken, text(at), 5);
                        assert!(refused.expect_err("planted").to_string().contains("planted"));
                    }
                    drop(leaving);
                    stay(&mut dice);
                });
            }
            drop((leaving, broken));
        });
        pooled.end().expect("the device is sound");
    }
}
