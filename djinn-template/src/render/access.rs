//! Attributes, items, slices and iteration: what is inside a value.

use super::Renderer;
use crate::arguments::Given;
use crate::error::{Eval, Fault, refuse};
use crate::functions::Object;
use crate::methods;
use crate::operators::{integer, too_large};
use crate::text::Text;
use crate::value::{Key, Kind, Seq, SeqKind, Value, all_equal, undefined};
use std::sync::Arc;

impl Renderer<'_> {
    /// `value.name`: a method, an entry, or undefined. Names with an underscore in front are never there, as
    /// in Jinja's sandbox.
    pub(crate) fn attribute(&self, value: &Value, name: &Arc<Text>) -> Eval {
        let key = name.as_str();
        self.budget.work(10 + key.len() as u64)?;
        if let Some(method) = methods::find(value, key) {
            return Value::method(self.budget, value, method);
        }
        let found = match &value.0 {
            Kind::Undefined(missing) => return undefined(missing),
            Kind::Dict(dict) => dict.entries.get(key).cloned(),
            Kind::Object(at) => match &self.objects[*at] {
                Object::Namespace(entries) => entries.get(key).cloned(),
                Object::Joiner { .. } => None,
            },
            Kind::Loop(id) => self.loop_attribute(*id, key)?,
            _ => None,
        };
        Ok(found.unwrap_or_else(|| Value::missing(name)))
    }

    /// `value[index]`.
    pub(crate) fn item(&self, value: &Value, index: &Value) -> Eval {
        let found = match (&value.0, &index.0) {
            (Kind::Undefined(missing), _) => return undefined(missing),
            (Kind::Dict(dict), Kind::Str(key)) => {
                self.budget.work(10 + key.len() as u64)?;
                dict.entries.get(key.as_str()).cloned()
            }
            (Kind::Dict(dict), Kind::None | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Seq(_)) => {
                match Key::new(self.budget, index.clone()) {
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
            (None, Kind::Str(name)) => match methods::find(value, name.as_str()) {
                Some(method) => Value::method(self.budget, value, method),
                None => Ok(Value::missing(name)),
            },
            _ => Ok(Value::UNDEFINED),
        }
    }

    /// `value[start:stop:step]`; missing parts are none.
    pub(super) fn slice(&self, value: &Value, parts: &[Value; 3]) -> Eval {
        match &value.0 {
            Kind::Str(text) => {
                let offsets = Offsets::new(self, text)?;
                let (start, count, step) = slice_range(parts, offsets.len())?;
                if step == 1 {
                    return self.part(text, offsets.at(start)..offsets.at(start + count));
                }
                let mut out = self.builder();
                for at in steps(start, count, step) {
                    out.range(text, offsets.at(at)..offsets.at(at + 1))?;
                }
                out.value()
            }
            Kind::Seq(seq) if seq.is_indexed() => {
                let (start, count, step) = slice_range(parts, seq.items.len())?;
                let items = steps(start, count, step).map(|at| seq.items[at].clone()).collect();
                let kind = match seq.kind {
                    SeqKind::Tuple => SeqKind::Tuple,
                    SeqKind::Range([first, _, by]) => {
                        let part = || {
                            let begin = first.checked_add(by.checked_mul(start as i128)?)?;
                            let by = by.checked_mul(step)?;
                            Some([begin, begin.checked_add(by.checked_mul(count as i128)?)?, by])
                        };
                        SeqKind::Range(part().ok_or_else(too_large)?)
                    }
                    _ => SeqKind::List,
                };
                Value::seq(self.budget, kind, items)
            }
            Kind::Undefined(missing) => undefined(missing),
            _ => Ok(Value::UNDEFINED),
        }
    }

    /// A part of a text.
    pub(crate) fn part(&self, text: &Text, range: std::ops::Range<usize>) -> Eval {
        let mut out = self.builder();
        out.markup = text.markup;
        out.range(text, range)?;
        out.value()
    }

    /// What a loop over a value gives.
    pub(crate) fn iterate(&self, value: &Value) -> Eval<Arc<Seq>> {
        let items = match &value.0 {
            Kind::Seq(seq) => return Ok(seq.clone()),
            Kind::Dict(dict) => dict.entries.keys().map(|key| key.0.clone()).collect(),
            Kind::Str(text) => {
                let offsets = Offsets::new(self, text)?;
                let each = (0..offsets.len()).map(|at| self.part(text, offsets.at(at)..offsets.at(at + 1)));
                each.collect::<Eval<_>>()?
            }
            Kind::Undefined(_) => Vec::new(),
            _ => return refuse!("'{}' object is not iterable", value.type_name()),
        };
        Ok(Arc::new(Seq::new(self.budget, SeqKind::List, items)?))
    }

    /// The items that a filter takes from a value; a generator gives them once.
    pub(crate) fn taken(&self, value: &Value) -> Eval<Vec<Value>> {
        let seq = self.iterate(value)?;
        self.budget.items::<Value>(seq.rest().len())?;
        let items = seq.rest().to_vec();
        seq.advance(usize::MAX);
        Ok(items)
    }

    /// The position of a running loop.
    fn running(&self, id: u64) -> Eval<usize> {
        self.budget.work(self.loops.len() as u64)?;
        let found = self.loops.iter().rposition(|running| running.id == id);
        found.ok_or_else(|| Fault::Unsupported("`loop` behind its loop's end".into()))
    }

    fn loop_attribute(&self, id: u64, name: &str) -> Eval<Option<Value>> {
        let running = &self.loops[self.running(id)?];
        let (items, at) = (&running.items.items[running.first..], running.at);
        let number = |value: usize| Some(Value::from(value as i128));
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
    pub(crate) fn loop_method(&mut self, value: &Value, given: &Given) -> Eval {
        let Kind::Loop(id) = value.0 else { return Ok(Value::UNDEFINED) };
        let at = self.running(id)?;
        let (running, given_now) = (&mut self.loops[at], &given.any.positional);
        if given.callee == "cycle" {
            let found = running.at.checked_rem(given_now.len()).map(|at| given_now[at].clone());
            return found.map_or_else(|| refuse!("loop.cycle: no items for cycling given"), Ok);
        }
        let Some(last) = running.changed.replace(given_now.clone()) else { return Ok(true.into()) };
        let same = last.len() == given_now.len() && all_equal(self.budget, &last, given_now)?;
        Ok((!same).into())
    }

    /// Assigns an attribute of a namespace; nothing else can change.
    pub(super) fn set_attribute(&mut self, object: &Value, name: &Arc<Text>, value: Value) -> Eval<()> {
        let Kind::Object(at) = object.0 else {
            return refuse!("cannot assign attribute on non-namespace object");
        };
        let Object::Namespace(entries) = &mut self.objects[at] else {
            return refuse!("cannot assign attribute on non-namespace object");
        };
        crate::functions::check_attribute(name.as_str())?;
        let name = Key::new(self.budget, Value(Kind::Str(name.clone())))?;
        if !entries.contains_key(&name) {
            self.budget.items::<[Value; 3]>(1)?;
        }
        entries.insert(name, value);
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
    fn new(renderer: &Renderer<'_>, text: &Text) -> Eval<Self> {
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
    let index = integer(index)?;
    let index = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(index).ok().filter(|&at| at < length)
}

/// Where a slice begins, how many items it has, and its step.
fn slice_range(parts: &[Value; 3], length: usize) -> Eval<(usize, usize, i128)> {
    let number = |value: &Value| match integer(value) {
        Some(value) => Ok(Some(value.clamp(-(1 << 40), 1 << 40))),
        None if value.is_none() => Ok(None),
        None => refuse!("slice indices must be integers or None"),
    };
    let [start, stop, step] = [number(&parts[0])?, number(&parts[1])?, number(&parts[2])?];
    let (step, length) = (step.unwrap_or(1), length as i128);
    if step == 0 {
        return refuse!("slice step cannot be zero");
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
