//! Patterns as instructions of a backtracking machine.

use super::parse::{Assertion, Node, Repeat, unsupported};
use crate::{Error, Result};

/// Most instructions of a program.
const MAX_LENGTH: usize = 20_000;

/// A step of the machine. Places are indices of the program.
#[derive(Debug)]
pub(super) enum Instruction {
    /// Consumes one character of the set, or fails.
    Set(usize),
    /// Consumes `min` to `max` characters of the set: the most first if greedy, only the most if possessive.
    Run {
        set: usize,
        min: u32,
        max: u32,
        possessive: bool,
    },
    /// Continues at the next instruction; if that fails, at `other`.
    Try {
        other: usize,
    },
    /// Continues at the place; if that fails, at the next instruction.
    Skip {
        to: usize,
    },
    Jump {
        to: usize,
    },
    /// Matches the part up to `end` at this place, or `back` characters before it, without consuming it.
    Look {
        end: usize,
        back: u32,
        negated: bool,
    },
    /// Matches the part up to `end` in the first possible way.
    Atomic {
        end: usize,
    },
    Assert(Assertion),
    /// The end of the program, or of a look or an atomic part.
    Done,
}

pub(super) fn compile(node: &Node) -> Result<Vec<Instruction>> {
    let mut program = Vec::new();
    emit(node, &mut program)?;
    program.push(Instruction::Done);
    Ok(program)
}

fn emit(node: &Node, program: &mut Vec<Instruction>) -> Result<()> {
    if program.len() > MAX_LENGTH {
        return Err(Error::Tokenizer("a pattern is too large".into()));
    }
    match node {
        Node::Set(set) => program.push(Instruction::Set(*set)),
        Node::Concat(parts) => parts.iter().try_for_each(|part| emit(part, program))?,
        Node::Alternatives(alternatives) => emit_alternatives(alternatives, program)?,
        Node::Repeat { node, min, max, kind } => emit_repeat(node, *min, *max, *kind, program)?,
        Node::Look { node, ahead, negated } => {
            let back = if *ahead { Some(0) } else { width(node) };
            let back = back.ok_or_else(|| unsupported("a look behind of varying width"))?;
            let negated = *negated;
            emit_inner(node, program, |end| Instruction::Look { end, back, negated })?;
        }
        Node::Atomic(node) => emit_inner(node, program, |end| Instruction::Atomic { end })?,
        Node::Assert(assertion) => program.push(Instruction::Assert(*assertion)),
    }
    Ok(())
}

/// Emits a part as a program of its own.
fn emit_inner(
    node: &Node,
    program: &mut Vec<Instruction>,
    head: impl Fn(usize) -> Instruction,
) -> Result<()> {
    let start = program.len();
    program.push(Instruction::Done);
    emit(node, program)?;
    program.push(Instruction::Done);
    program[start] = head(program.len());
    Ok(())
}

/// Each alternative is tried before the next. Neighbours that begin with the same set share it, so that most
/// characters are rejected once.
fn emit_alternatives(alternatives: &[Node], program: &mut Vec<Instruction>) -> Result<()> {
    let shares = |a: &Node, b: &Node| head(a).is_some() && head(a) == head(b);
    let groups: Vec<&[Node]> = alternatives.chunk_by(shares).collect();
    emit_choice(&groups, program, |group, program| match (head(&group[0]), *group) {
        (Some(set), [_, _, ..]) => {
            program.push(Instruction::Set(set));
            let tails: Vec<Node> = group.iter().map(tail).collect();
            emit_choice(&tails, program, emit)
        }
        _ => emit(&group[0], program),
    })
}

/// Emits each choice with `emit_one`; they are tried in order.
fn emit_choice<T>(
    choices: &[T],
    program: &mut Vec<Instruction>,
    emit_one: impl Fn(&T, &mut Vec<Instruction>) -> Result<()>,
) -> Result<()> {
    let mut jumps = Vec::new();
    for (at, choice) in choices.iter().enumerate() {
        let is_last = at + 1 == choices.len();
        let start = program.len();
        if !is_last {
            program.push(Instruction::Try { other: 0 });
        }
        emit_one(choice, program)?;
        if !is_last {
            jumps.push(program.len());
            program.push(Instruction::Jump { to: 0 });
            program[start] = Instruction::Try { other: program.len() };
        }
    }
    let end = program.len();
    jumps.into_iter().for_each(|at| program[at] = Instruction::Jump { to: end });
    Ok(())
}

/// The set with which a sequence begins, if it consumes that once.
fn head(node: &Node) -> Option<usize> {
    match node {
        Node::Set(set) => Some(*set),
        Node::Concat(parts) => parts.first().and_then(head),
        _ => None,
    }
}

/// A sequence without its [`head`].
fn tail(node: &Node) -> Node {
    match node {
        Node::Concat(parts) => {
            let mut parts = parts.clone();
            parts[0] = tail(&parts[0]);
            Node::Concat(parts)
        }
        _ => Node::Concat(Vec::new()),
    }
}

fn emit_repeat(
    node: &Node,
    min: u32,
    max: Option<u32>,
    kind: Repeat,
    program: &mut Vec<Instruction>,
) -> Result<()> {
    if let (Node::Set(set), Repeat::Greedy | Repeat::Possessive) = (node, kind) {
        let possessive = kind == Repeat::Possessive;
        program.push(Instruction::Run { set: *set, min, max: max.unwrap_or(u32::MAX), possessive });
        return Ok(());
    }
    if kind == Repeat::Possessive {
        let greedy = Node::Repeat { node: Box::new(node.clone()), min, max, kind: Repeat::Greedy };
        return emit_inner(&greedy, program, |end| Instruction::Atomic { end });
    }
    for _ in 0..min {
        let start = program.len();
        emit(node, program)?;
        if program.len() == start {
            // Nothing, however often repeated.
            return Ok(());
        }
    }
    let enter = |to| match kind {
        Repeat::Lazy => Instruction::Skip { to },
        _ => Instruction::Try { other: to },
    };
    match max {
        None if can_be_empty(node) => return Err(unsupported("a repetition of what may be empty")),
        None => {
            let start = program.len();
            program.push(Instruction::Done);
            emit(node, program)?;
            program.push(Instruction::Jump { to: start });
            program[start] = enter(program.len());
        }
        Some(max) => {
            let mut starts = Vec::new();
            for _ in min..max {
                starts.push(program.len());
                program.push(Instruction::Done);
                emit(node, program)?;
            }
            let end = program.len();
            starts.into_iter().for_each(|at| program[at] = enter(end));
        }
    }
    Ok(())
}

fn can_be_empty(node: &Node) -> bool {
    match node {
        Node::Set(_) => false,
        Node::Concat(parts) => parts.iter().all(can_be_empty),
        Node::Alternatives(alternatives) => alternatives.iter().any(can_be_empty),
        Node::Repeat { node, min, .. } => *min == 0 || can_be_empty(node),
        Node::Atomic(node) => can_be_empty(node),
        Node::Look { .. } | Node::Assert(_) => true,
    }
}

/// The number of characters of every match, if it is constant.
fn width(node: &Node) -> Option<u32> {
    match node {
        Node::Set(_) => Some(1),
        Node::Concat(parts) => parts.iter().try_fold(0u32, |sum, part| sum.checked_add(width(part)?)),
        Node::Alternatives(alternatives) => {
            let first = width(alternatives.first()?)?;
            alternatives.iter().all(|node| width(node) == Some(first)).then_some(first)
        }
        Node::Repeat { node, min, max, .. } if Some(*min) == *max => width(node)?.checked_mul(*min),
        Node::Repeat { .. } => None,
        Node::Atomic(node) => width(node),
        Node::Look { .. } | Node::Assert(_) => Some(0),
    }
}
