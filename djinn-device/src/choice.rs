//! The choice of a token from a row of logits: its settings, its random numbers, and the search on a CPU.

mod changes;
mod drawn;
mod search;
#[cfg(test)]
mod tests;

pub use changes::{Change, Changes};
pub use drawn::Drawn;
pub use search::{choose, choose_changed, greatest};

/// How a token is chosen from a row of logits.
///
/// First [`Changes`] are made to the logits, if there are any, with the penalties below. Then, with
/// `w(i) = exp((logit(i) - best) / temperature)`, tokens are kept in this order: the `top_k` of the greatest logits; of
/// these the fewest with the greatest `w` whose sum reaches `top_p` of all kept; of these the ones with `w >= min_p`.
/// Of equal logits the one with the lower token is the better one. The chosen token is the kept one with the greatest
/// `ln w(i) + gumbel(i)`, which draws each with a probability in proportion to `w` (Gumbel-max; Maddison et al. 2014).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits; 0 takes the best token.
    pub temperature: f32,
    /// Keeps this many; 0 keeps all, 1 takes the best token.
    pub top_k: u32,
    /// From 0 to 1; 1 keeps all.
    pub top_p: f32,
    /// From 0 to 1; 0 keeps all.
    pub min_p: f32,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The position in its sequence of the token that the logits follow, counted from 0.
    pub position: u32,
    /// Divides the positive logits of tokens that the sequence has, and multiplies the negative ones; above 0, 1 changes
    /// nothing.
    pub repetition_penalty: f32,
    /// Subtracted for each time that a token was generated.
    pub frequency_penalty: f32,
    /// Subtracted where a token was generated.
    pub presence_penalty: f32,
    /// Whether [`Drawn::logprob`] is wanted.
    pub logprob: bool,
    /// How many of the most probable tokens are wanted, up to [`Drawn::MOST_BEST`].
    pub best: u32,
}

/// In the first word: a token is chosen.
const CHOOSES: u32 = 1;
/// In the first word: its log-probability is wanted.
const LOGPROB: u32 = 2;

impl Draw {
    /// Words of a row of settings: 12 of a `Draw`, and 4 that say where its [`Changes`] are.
    pub const WORDS: usize = 16;

    /// The best token.
    pub const GREEDY: Draw = Draw {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        position: 0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        logprob: false,
        best: 0,
    };

    /// As devices read it, without changes.
    pub fn words(&self) -> [u32; Draw::WORDS] {
        let flags = CHOOSES | if self.logprob { LOGPROB } else { 0 };
        let [temperature, top_p, min_p] = [self.temperature, self.top_p, self.min_p].map(f32::to_bits);
        let (low, high) = (self.seed as u32, (self.seed >> 32) as u32);
        let penalties = [self.repetition_penalty, self.frequency_penalty, self.presence_penalty];
        let [repetition, frequency, presence] = penalties.map(f32::to_bits);
        let filters = [flags, temperature, self.top_k, top_p, min_p, low, high, self.position];
        let others = [repetition, frequency, presence, self.best, 0, 0, 0, 0];
        std::array::from_fn(|i| if i < 8 { filters[i] } else { others[i - 8] })
    }

    /// What words say; `None` where nothing is to be chosen.
    pub fn from_words(words: [u32; Draw::WORDS]) -> Option<Draw> {
        let [flags, temperature, top_k, top_p, min_p, low, high, position, rest @ ..] = words;
        let [repetition, frequency, presence, best, ..] = rest;
        (flags & CHOOSES != 0).then_some(Draw {
            temperature: f32::from_bits(temperature),
            top_k,
            top_p: f32::from_bits(top_p),
            min_p: f32::from_bits(min_p),
            seed: u64::from(high) << 32 | u64::from(low),
            position,
            repetition_penalty: f32::from_bits(repetition),
            frequency_penalty: f32::from_bits(frequency),
            presence_penalty: f32::from_bits(presence),
            logprob: flags & LOGPROB != 0,
            best,
        })
    }

    /// Whether a token's logit depends on whether its sequence has it.
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Whether the best token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// The random numbers of the tokens `4 group .. 4 group + 4`: Philox4x32-10 (Salmon et al. 2011), whose key is the seed
    /// and whose counter is the group and the position.
    pub fn bits(&self, group: u32) -> [u32; 4] {
        philox([group, self.position, 0, 0], [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// A number above 0 and below 1, of 32 random bits. Rounded as here, so that it is the same on every device.
    pub fn uniform(bits: u32) -> f32 {
        const STEP: f32 = 1.0 / (1_u64 << 32) as f32;
        (bits as f32 * STEP + STEP / 2.0).min(1.0 - f32::EPSILON / 2.0)
    }

    /// `ln w + gumbel` is less than the best token's for every token with `ln w` below this, whatever the random numbers:
    /// `gumbel = -ln(-ln(1 - uniform))` is between -3.2 and 22.9.
    pub const REACH: f32 = -26.5;
}

/// Multipliers and increments of Philox4x32.
const PHILOX: [[u32; 2]; 2] = [[0xD251_1F53, 0xCD9E_8D57], [0x9E37_79B9, 0xBB67_AE85]];

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let [multipliers, increments] = PHILOX;
    for _ in 0..10 {
        let [a, b, c, d] = counter;
        let x = u64::from(multipliers[0]) * u64::from(a);
        let y = u64::from(multipliers[1]) * u64::from(c);
        counter = [(y >> 32) as u32 ^ b ^ key[0], y as u32, (x >> 32) as u32 ^ d ^ key[1], x as u32];
        key = [key[0].wrapping_add(increments[0]), key[1].wrapping_add(increments[1])];
    }
    counter
}
