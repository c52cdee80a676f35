//! Attributes, items, slices and iteration: what is inside a value.

use super::Renderer;
use crate::error::Fault;
use crate::functions::Object;
use crate::methods;
use crate::text::{Text, TextBuilder};
use crate::value::{Key, Kind, Seq, SeqKind, Value, undefined};
use std::sync::Arc;

impl Renderer<'_> {
    /// `value.name`: a method, an entry, or undefined. Names with an underscore in front are never there, as
    /// in Jinja's sandbox.
    pub(crate) fn attribute(&self, value: &Value, name: &Arc<Text>) -> Result<Value, Fault> {
        if let Kind::Undefined(missing) = &value.0 {
            return Err(undefined(missing.as_deref()));
        }
        let key = name.as_str();
        if !key.starts_with('_') && methods::exists(value, key) {
            return Value::method(value, name);
        }
        let missing = || Value(Kind::Undefined(Some(name.clone())));
        Ok(match &value.0 {
            Kind::Dict(dict) => {
                self.budget.work(10)?;
                dict.entries.get(key).cloned().unwrap_or_else(missing)
            }
            Kind::Object(at) => match &self.objects[*at] {
                Object::Namespace(entries) => entries.get(key).cloned().unwrap_or_else(missing),
                Object::Joiner { .. } => missing(),
            },
            Kind::Loop(id) => self.loop_attribute(*id, key)?.unwrap_or_else(missing),
            _ => missing(),
        })
    }

    /// `value[index]`.
    pub(crate) fn item(&self, value: &Value, index: &Value) -> Result<Value, Fault> {
        let found = match (&value.0, &index.0) {
            (Kind::Undefined(missing), _) => return Err(undefined(missing.as_deref())),
            (Kind::Dict(dict), Kind::Str(key)) => {
                self.budget.work(10 + key.len() as u64)?;
                dict.entries.get(key.as_str()).cloned()
            }
            (Kind::Dict(dict), Kind::None | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Seq(_)) => {
                match Key::new(&self.budget, index.clone()) {
                    Ok(key) => dict.entries.get(&key).cloned(),
                    Err(Fault::Evaluation(_)) => None,
                    Err(fault) => return Err(fault),
                }
            }
            (Kind::Seq(seq), Kind::Int(_) | Kind::Bool(_)) if seq.is_indexed() => {
                position(index, seq.items.len()).map(|at| seq.items[at].clone())
            }
            (Kind::Str(text), Kind::Int(_) | Kind::Bool(_)) => {
                let offsets = Offsets::new(self, text)?;
                let found = position(index, offsets.len());
                found.map(|at| self.part(text, offsets.at(at)..offsets.at(at + 1))).transpose()?
            }
            _ => None,
        };
        match (found, &index.0) {
            (Some(found), _) => Ok(found),
            (None, Kind::Str(name)) if !matches!(value.0, Kind::Dict(_)) => self.attribute(value, name),
            (None, Kind::Str(name)) if methods::exists(value, name.as_str()) => Value::method(value, name),
            (None, Kind::Str(name)) => Ok(Value(Kind::Undefined(Some(name.clone())))),
            _ => Ok(Value::UNDEFINED),
        }
    }

    /// `value[start:stop:step]`; missing parts are none.
    pub(super) fn slice(&self, value: &Value, parts: &[Value; 3]) -> Result<Value, Fault> {
        match &value.0 {
            Kind::Str(text) => {
                let offsets = Offsets::new(self, text)?;
                let (start, count, step) = slice_range(parts, offsets.len())?;
                if step == 1 {
                    return self.part(text, offsets.at(start)..offsets.at(start + count));
                }
                let mut out = TextBuilder::default();
                for at in steps(start, count, step) {
                    out.range(&self.budget, text, offsets.at(at)..offsets.at(at + 1))?;
                }
                self.made(out)
            }
            Kind::Seq(seq) if seq.is_indexed() => {
                let (start, count, step) = slice_range(parts, seq.items.len())?;
                let items = steps(start, count, step).map(|at| seq.items[at].clone()).collect();
                match seq.kind {
                    SeqKind::Tuple => Value::tuple(&self.budget, items),
                    SeqKind::Range([first, _, by]) => {
                        let begin = first + by * start as i64;
                        let by = by * step as i64;
                        let kind = SeqKind::Range([begin, begin + by * count as i64, by]);
                        Value::seq(&self.budget, kind, items)
                    }
                    _ => Value::list(&self.budget, items),
                }
            }
            Kind::Undefined(missing) => Err(undefined(missing.as_deref())),
            _ => Ok(Value::UNDEFINED),
        }
    }

    /// A part of a text.
    pub(crate) fn part(&self, text: &Text, range: std::ops::Range<usize>) -> Result<Value, Fault> {
        let mut out = TextBuilder::marked(text.markup);
        out.range(&self.budget, text, range)?;
        self.made(out)
    }

    /// What a loop over a value gives.
    pub(crate) fn iterate(&self, value: &Value) -> Result<Arc<Seq>, Fault> {
        match &value.0 {
            Kind::Seq(seq) => Ok(seq.clone()),
            Kind::Dict(dict) => self.sequence(dict.entries.keys().map(|key| key.0.clone()).collect()),
            Kind::Str(text) => {
                let offsets = Offsets::new(self, text)?;
                let each = (0..offsets.len()).map(|at| self.part(text, offsets.at(at)..offsets.at(at + 1)));
                self.sequence(each.collect::<Result<_, _>>()?)
            }
            Kind::Undefined(_) => self.sequence(Vec::new()),
            _ => Err(Fault::new(format!("'{}' object is not iterable", value.type_name()))),
        }
    }

    pub(super) fn sequence(&self, items: Vec<Value>) -> Result<Arc<Seq>, Fault> {
        Seq::new(&self.budget, SeqKind::List, items).map(Arc::new)
    }

    /// The items that a filter takes from a value; a generator gives them once.
    pub(crate) fn taken(&self, value: &Value) -> Result<Vec<Value>, Fault> {
        let seq = self.iterate(value)?;
        self.budget.items::<Value>(seq.rest().len())?;
        let items = seq.rest().to_vec();
        seq.advance(usize::MAX);
        Ok(items)
    }

    fn loop_attribute(&self, id: u64, name: &str) -> Result<Option<Value>, Fault> {
        let Some(running) = self.loops.iter().rev().find(|running| running.id == id) else {
            return Err(Fault::Unsupported("`loop` behind its loop's end".into()));
        };
        let (items, at) = (&running.items.items[running.first..], running.at);
        let number = |value: usize| Some(Value(Kind::Int(value as i128)));
        let neighbour = |item: Option<&Value>| Some(item.cloned().unwrap_or(Value::UNDEFINED));
        Ok(match name {
            "index" => number(at + 1),
            "index0" => number(at),
            "revindex" => number(items.len() - at),
            "revindex0" => number(items.len() - at - 1),
            "first" => Some((at == 0).into()),
            "last" => Some((at + 1 == items.len()).into()),
            "length" => number(items.len()),
            "depth" => number(1),
            "depth0" => number(0),
            "previtem" => neighbour(at.checked_sub(1).and_then(|at| items.get(at))),
            "nextitem" => neighbour(items.get(at + 1)),
            _ => None,
        })
    }

    /// `loop.cycle(…)` and `loop.changed(…)`.
    pub(super) fn loop_method(&mut self, id: u64, name: &str, given: Vec<Value>) -> Result<Value, Fault> {
        let Some(running) = self.loops.iter_mut().rev().find(|running| running.id == id) else {
            return Err(Fault::Unsupported("`loop` behind its loop's end".into()));
        };
        if name == "cycle" {
            let count = given.len();
            let found = running.at.checked_rem(count).and_then(|at| given.into_iter().nth(at));
            return found.ok_or_else(|| Fault::new("loop.cycle: no items for cycling given"));
        }
        let last = running.changed.replace(given.clone());
        let Some(last) = last else { return Ok(true.into()) };
        let mut same = last.len() == given.len();
        for (a, b) in last.iter().zip(&given) {
            same = same && crate::value::equal(&self.budget, a, b)?;
        }
        Ok((!same).into())
    }

    /// Assigns an attribute of a namespace; nothing else can change.
    pub(super) fn set_attribute(
        &mut self,
        object: &Value,
        name: &Arc<Text>,
        value: Value,
    ) -> Result<(), Fault> {
        let Kind::Object(at) = object.0 else {
            return Err(Fault::new("cannot assign attribute on non-namespace object"));
        };
        let Object::Namespace(entries) = &mut self.objects[at] else {
            return Err(Fault::new("cannot assign attribute on non-namespace object"));
        };
        crate::functions::check_attribute(name.as_str())?;
        if entries.get(name.as_str()).is_none() {
            self.budget.items::<[Value; 3]>(1)?;
        }
        entries.insert(Key::new(&self.budget, Value(Kind::Str(name.clone())))?, value);
        Ok(())
    }
}

/// Where the characters of a text are.
struct Offsets {
    /// None where every character is a byte.
    starts: Option<Vec<usize>>,
    end: usize,
}

impl Offsets {
    fn new(renderer: &Renderer<'_>, text: &Text) -> Result<Self, Fault> {
        renderer.budget.work(text.len() as u64 / 8)?;
        if text.as_str().is_ascii() {
            return Ok(Self { starts: None, end: text.len() });
        }
        renderer.budget.items::<usize>(text.len())?;
        let starts = text.as_str().char_indices().map(|(at, _)| at).collect();
        Ok(Self { starts: Some(starts), end: text.len() })
    }

    fn len(&self) -> usize {
        self.starts.as_ref().map_or(self.end, Vec::len)
    }

    fn at(&self, character: usize) -> usize {
        match &self.starts {
            None => character.min(self.end),
            Some(starts) => starts.get(character).copied().unwrap_or(self.end),
        }
    }
}

/// The position that an index names, if there is one: from the end if it is negative.
fn position(index: &Value, length: usize) -> Option<usize> {
    let index = match index.0 {
        Kind::Int(index) => index,
        Kind::Bool(index) => index.into(),
        _ => return None,
    };
    let index = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(index).ok().filter(|&at| at < length)
}

/// Where a slice begins, how many items it has, and its step.
fn slice_range(parts: &[Value; 3], length: usize) -> Result<(usize, usize, i128), Fault> {
    let number = |value: &Value| match value.0 {
        Kind::None => Ok(None),
        Kind::Int(value) => Ok(Some(value.clamp(-(1 << 40), 1 << 40))),
        Kind::Bool(value) => Ok(Some(i128::from(value))),
        _ => Err(Fault::new("slice indices must be integers or None")),
    };
    let [start, stop, step] = [number(&parts[0])?, number(&parts[1])?, number(&parts[2])?];
    let (step, length) = (step.unwrap_or(1), length as i128);
    if step == 0 {
        return Err(Fault::new("slice step cannot be zero"));
    }
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |value: Option<i128>, default| match value {
        None => default,
        Some(value) => (if value < 0 { value + length } else { value }).clamp(lowest, highest),
    };
    let start = bound(start, if step > 0 { lowest } else { highest });
    let stop = bound(stop, if step > 0 { highest } else { lowest });
    let count = if step > 0 { (stop - start + step - 1) / step } else { (start - stop - step - 1) / -step };
    Ok((start.max(0) as usize, count.max(0) as usize, step))
}

fn steps(start: usize, count: usize, step: i128) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (start as i128 + at as i128 * step) as usize)
}
