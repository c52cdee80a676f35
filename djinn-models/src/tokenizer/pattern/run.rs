//! The backtracking machine.

use super::Pattern;
use super::parse::Assertion;
use super::program::Instruction;
use crate::Result;
use crate::tokenizer::work::{Work, too_slow};
use std::ops::Range;

/// The most backtracking points at once.
const MAX_FRAMES: usize = 1 << 20;

/// A backtracking point: the instruction and the place to continue from. If `lowest` is below `at`, the run before the
/// instruction may give characters back, down to there.
struct Frame {
    instruction: usize,
    lowest: usize,
    at: usize,
}

/// The leftmost match that begins at `from` or later.
pub(super) fn find(
    pattern: &Pattern,
    text: &str,
    from: usize,
    work: &mut Work,
) -> Result<Option<Range<usize>>> {
    let mut machine = Machine { pattern, text, frames: Vec::new(), work };
    let mut start = from;
    loop {
        machine.frames.clear();
        if let Some(end) = machine.run(0, start)? {
            return Ok(Some(start..end));
        }
        match text[start..].chars().next() {
            Some(c) => start += c.len_utf8(),
            None => return Ok(None),
        }
    }
}

struct Machine<'a> {
    pattern: &'a Pattern,
    text: &'a str,
    frames: Vec<Frame>,
    work: &'a mut Work,
}

impl Machine<'_> {
    /// Runs from an instruction to `Done`. Returns the end of the match, if there is one. Frames below this call's
    /// stay.
    fn run(&mut self, mut instruction: usize, mut at: usize) -> Result<Option<usize>> {
        let floor = self.frames.len();
        loop {
            self.work.step(1)?;
            let next = match &self.pattern.program[instruction] {
                Instruction::Done => {
                    self.frames.truncate(floor);
                    return Ok(Some(at));
                }
                Instruction::Set(set) => self.one(*set, at).map(|end| (instruction + 1, end)),
                Instruction::Run { set, min, max, possessive } => {
                    self.repeat(*set, (*min, *max), at)?.map(|(lowest, end)| {
                        if !possessive && lowest < end {
                            self.frames.push(Frame { instruction: instruction + 1, lowest, at: end });
                        }
                        (instruction + 1, end)
                    })
                }
                Instruction::Try { other } => {
                    self.frames.push(Frame { instruction: *other, lowest: at, at });
                    Some((instruction + 1, at))
                }
                Instruction::Skip { to } => {
                    self.frames.push(Frame { instruction: instruction + 1, lowest: at, at });
                    Some((*to, at))
                }
                Instruction::Jump { to } => Some((*to, at)),
                Instruction::Assert(assertion) => self.holds(*assertion, at).then_some((instruction + 1, at)),
                Instruction::Look { end, back, negated } => {
                    self.work.step(u64::from(*back))?;
                    let found = match self.back(at, *back) {
                        Some(start) => self.run(instruction + 1, start)?.is_some(),
                        None => false,
                    };
                    (found != *negated).then_some((*end, at))
                }
                Instruction::Atomic { end } => self.run(instruction + 1, at)?.map(|at| (*end, at)),
            };
            if self.frames.len() > MAX_FRAMES {
                return Err(too_slow());
            }
            match next {
                Some(next) => (instruction, at) = next,
                None => match self.way_back(floor)? {
                    Some(next) => (instruction, at) = next,
                    None => return Ok(None),
                },
            }
        }
    }

    /// The latest backtracking point of this call.
    fn way_back(&mut self, floor: usize) -> Result<Option<(usize, usize)>> {
        self.work.step(1)?;
        if self.frames.len() == floor {
            return Ok(None);
        }
        let Some(frame) = self.frames.last_mut() else { return Ok(None) };
        let instruction = frame.instruction;
        if frame.lowest == frame.at {
            let at = frame.at;
            self.frames.pop();
            return Ok(Some((instruction, at)));
        }
        frame.at -= self.text[..frame.at].chars().next_back().map_or(1, char::len_utf8);
        let at = frame.at;
        if frame.at == frame.lowest {
            self.frames.pop();
        }
        Ok(Some((instruction, at)))
    }

    /// The end of the character at a place, if the set has it.
    fn one(&self, set: usize, at: usize) -> Option<usize> {
        let byte = *self.text.as_bytes().get(at)?;
        let c = if byte < 0x80 { char::from(byte) } else { self.text[at..].chars().next()? };
        self.pattern.sets[set].contains(c).then(|| at + c.len_utf8())
    }

    /// Consumes characters of the set, up to the most. Returns the end of the fewest, and of all.
    fn repeat(&mut self, set: usize, (min, max): (u32, u32), start: usize) -> Result<Option<(usize, usize)>> {
        let (mut count, mut at, mut lowest) = (0, start, start);
        while count < max {
            let Some(end) = self.one(set, at) else { break };
            at = end;
            count += 1;
            if count == min {
                lowest = at;
            }
        }
        self.work.step(u64::from(count))?;
        Ok((count >= min).then_some((lowest, at)))
    }

    /// The place this many characters before another.
    fn back(&self, at: usize, chars: u32) -> Option<usize> {
        let mut before = self.text[..at].char_indices().rev();
        match chars {
            0 => Some(at),
            chars => before.nth(chars as usize - 1).map(|(at, _)| at),
        }
    }

    fn holds(&self, assertion: Assertion, at: usize) -> bool {
        let (before, after) = (&self.text.as_bytes()[..at], &self.text.as_bytes()[at..]);
        match assertion {
            Assertion::TextStart => at == 0,
            Assertion::TextEnd => after.is_empty(),
            Assertion::LastLineEnd => matches!(after, [] | [b'\n']),
            Assertion::LineStart => before.is_empty() || (before.ends_with(b"\n") && !after.is_empty()),
            Assertion::LineEnd => after.is_empty() || after[0] == b'\n',
        }
    }
}
