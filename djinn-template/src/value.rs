//! Values: what a template computes with. They are immutable trees, so that they hold no cycle; what changes
//! (namespaces, loops) is kept by the renderer and named by a number.

mod compare;
mod input;

pub(crate) use compare::{all_equal, compare, equal, truth};

use crate::arguments::Builtin;
use crate::budget::{Budget, MAX_VALUE_DEPTH};
use crate::error::{Eval, Fault, refuse};
use crate::printable::one_line;
use crate::text::Text;
use indexmap::{Equivalent, IndexMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value that a template sees: what JSON has, and what templates make of it.
///
/// Strings made by `From` and by [`from_json`](Value::from_json) are *literal*: they are the conversation's, and
/// the rendered text says where they stand. [`Value::token`] makes strings of the model's own.
#[derive(Clone, Debug)]
pub struct Value(pub(crate) Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Nothing is there; the name that was looked for, if it has one.
    Undefined(Option<Arc<Text>>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<Text>),
    Seq(Arc<Seq>),
    Dict(Arc<Dict>),
    /// A namespace or joiner by its number.
    Object(usize),
    /// A running loop by its number.
    Loop(u64),
    Macro(Arc<Closure>),
    Function(&'static Builtin),
    Method(Arc<Bound>),
}

/// What has items in an order.
#[derive(Debug)]
pub(crate) struct Seq {
    pub(crate) kind: SeqKind,
    pub(crate) items: Vec<Value>,
    depth: u16,
}

/// Python's types of sequences and iterables.
#[derive(Debug)]
pub(crate) enum SeqKind {
    List,
    Tuple,
    /// Start, stop and step.
    Range([i128; 3]),
    Keys,
    Values,
    Items,
    /// What a lazy filter gives: the items from this position on, once.
    Generator(AtomicUsize),
}

/// A mapping in the order of insertion.
#[derive(Debug)]
pub(crate) struct Dict {
    pub(crate) entries: IndexMap<Key, Value>,
    depth: u16,
}

/// A macro with the scope that it was defined in.
#[derive(Debug)]
pub(crate) struct Closure {
    /// Index in the template's list of macros.
    pub(crate) index: usize,
    /// Position of its scope in the stack, and the serial number that the scope has there.
    pub(crate) scope: usize,
    pub(crate) serial: u64,
}

/// A method that was looked up and not yet called.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) receiver: Value,
    pub(crate) method: &'static Builtin,
}

impl Value {
    /// Python's `None`.
    pub const NONE: Value = Value(Kind::None);
    pub(crate) const UNDEFINED: Value = Value(Kind::Undefined(None));

    /// Text of the model's own, such as its special tokens: not literal in the rendered text.
    pub fn token(text: impl Into<String>) -> Self {
        Text::plain(text).into()
    }

    pub(crate) fn seq(budget: &Budget, kind: SeqKind, items: Vec<Value>) -> Eval<Self> {
        Ok(Self(Kind::Seq(Arc::new(Seq::new(budget, kind, items)?))))
    }

    pub(crate) fn list(budget: &Budget, items: Vec<Value>) -> Eval<Self> {
        Self::seq(budget, SeqKind::List, items)
    }

    pub(crate) fn tuple(budget: &Budget, items: Vec<Value>) -> Eval<Self> {
        Self::seq(budget, SeqKind::Tuple, items)
    }

    pub(crate) fn generator(budget: &Budget, items: Vec<Value>) -> Eval<Self> {
        Self::seq(budget, SeqKind::Generator(AtomicUsize::new(0)), items)
    }

    pub(crate) fn dict(budget: &Budget, entries: IndexMap<Key, Value>) -> Eval<Self> {
        // An entry holds its hash as well, and the table its position.
        budget.items::<[Value; 3]>(entries.capacity())?;
        let nested = entries.iter().map(|(key, value)| key.0.depth().max(value.depth()));
        let depth = 1 + nested.max().unwrap_or(0);
        check_depth(depth)?;
        Ok(Self(Kind::Dict(Arc::new(Dict { entries, depth }))))
    }

    /// What is looked for under a name and is not there.
    pub(crate) fn missing(name: &Arc<Text>) -> Self {
        Self(Kind::Undefined(Some(name.clone())))
    }

    /// How deeply it is nested: 0 for what holds no values.
    fn depth(&self) -> u16 {
        match &self.0 {
            Kind::Seq(seq) => seq.depth,
            Kind::Dict(dict) => dict.depth,
            Kind::Method(bound) => 1 + bound.receiver.depth(),
            _ => 0,
        }
    }

    pub(crate) fn method(budget: &Budget, receiver: &Value, method: &'static Builtin) -> Eval {
        budget.items::<Bound>(1)?;
        check_depth(1 + receiver.depth())?;
        Ok(Self(Kind::Method(Arc::new(Bound { receiver: receiver.clone(), method }))))
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self.0, Kind::Undefined(_))
    }

    /// Whether it is Python's `None`.
    pub fn is_none(&self) -> bool {
        matches!(self.0, Kind::None)
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        self.as_text().map(|text| text.as_str())
    }

    pub(crate) fn as_text(&self) -> Option<&Arc<Text>> {
        match &self.0 {
            Kind::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list; `None` for anything else.
    pub fn as_list(&self) -> Option<&[Value]> {
        match &self.0 {
            Kind::Seq(seq) => Some(&seq.items),
            _ => None,
        }
    }

    pub(crate) fn as_dict(&self) -> Option<&Dict> {
        match &self.0 {
            Kind::Dict(dict) => Some(dict),
            _ => None,
        }
    }

    /// The entries of an object with keys of text, in their order; `None` for anything else.
    pub fn as_object(&self) -> Option<impl Iterator<Item = (&str, &Value)>> {
        let named = |(key, value)| Some((Key::as_str(key)?, value));
        Some(self.as_dict()?.entries.iter().filter_map(named))
    }

    /// The value under a key of an object.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_dict()?.entries.get(key)
    }

    /// Its name in messages: Python's name of the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match &self.0 {
            Kind::Undefined(_) => "Undefined",
            Kind::None => "NoneType",
            Kind::Bool(_) => "bool",
            Kind::Int(_) => "int",
            Kind::Float(_) => "float",
            Kind::Str(_) => "str",
            Kind::Dict(_) => "dict",
            Kind::Object(_) => "namespace",
            Kind::Loop(_) => "loop",
            Kind::Macro(_) => "macro",
            Kind::Function(_) | Kind::Method(_) => "function",
            Kind::Seq(seq) => match seq.kind {
                SeqKind::List => "list",
                SeqKind::Tuple => "tuple",
                SeqKind::Range(_) => "range",
                SeqKind::Keys => "dict_keys",
                SeqKind::Values => "dict_values",
                SeqKind::Items => "dict_items",
                SeqKind::Generator(_) => "generator",
            },
        }
    }

    /// Bytes of text in it and a few for every value: the size of a render's input.
    pub(crate) fn size(&self) -> u64 {
        let within = match &self.0 {
            Kind::Str(text) => text.len() as u64,
            Kind::Seq(seq) => seq.items.iter().map(Value::size).sum(),
            Kind::Dict(dict) => dict.entries.iter().map(|(key, value)| key.0.size() + value.size()).sum(),
            _ => 0,
        };
        within + 4
    }
}

fn check_depth(depth: u16) -> Eval<()> {
    if depth > MAX_VALUE_DEPTH {
        return Err(Fault::Limit(format!("nests a value more than {MAX_VALUE_DEPTH} deep")));
    }
    Ok(())
}

impl Seq {
    pub(crate) fn new(budget: &Budget, kind: SeqKind, items: Vec<Value>) -> Eval<Self> {
        budget.items::<Value>(items.capacity())?;
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        check_depth(depth)?;
        Ok(Self { kind, items, depth })
    }

    /// Items that are left: all, but of a generator those that it has not given.
    pub(crate) fn rest(&self) -> &[Value] {
        match &self.kind {
            SeqKind::Generator(at) => &self.items[at.load(Ordering::Relaxed).min(self.items.len())..],
            _ => &self.items,
        }
    }

    /// Takes items from a generator; others keep theirs.
    pub(crate) fn advance(&self, count: usize) {
        if let SeqKind::Generator(at) = &self.kind {
            at.fetch_add(count.min(self.rest().len()), Ordering::Relaxed);
        }
    }

    /// Whether it has positions: lists, tuples and ranges.
    pub(crate) fn is_indexed(&self) -> bool {
        matches!(self.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Range(_))
    }
}

/// A key of a mapping: a value that Python can hash. Equal keys have equal hashes, `1`, `1.0` and `True` too.
#[derive(Clone, Debug)]
pub(crate) struct Key(pub(crate) Value);

impl Key {
    pub(crate) fn new(budget: &Budget, value: Value) -> Eval<Self> {
        Self::look_at(budget, &value)?;
        Ok(Self(value))
    }

    /// Counts the work of hashing a key, or of comparing it with an equal one; other values are no keys.
    pub(crate) fn look_at(budget: &Budget, value: &Value) -> Eval<()> {
        budget.work(8 + value.as_text().map_or(0, |text| text.len() as u64))?;
        match &value.0 {
            Kind::Seq(seq) if matches!(seq.kind, SeqKind::Tuple) => {
                seq.items.iter().try_for_each(|item| Self::look_at(budget, item))
            }
            Kind::None | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Str(_) => Ok(()),
            _ => refuse!("unhashable type: '{}'", value.type_name()),
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// A number of any type by its value.
    fn number(&self) -> Option<Result<i128, f64>> {
        match self.0.0 {
            Kind::Bool(value) => Some(Ok(value.into())),
            Kind::Int(value) => Some(Ok(value)),
            Kind::Float(value) if value.fract() == 0.0 && value.abs() < 1e38 => Some(Ok(value as i128)),
            Kind::Float(value) => Some(Err(value)),
            _ => None,
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0.0, &other.0.0) {
            (Kind::None, Kind::None) => true,
            (Kind::Str(a), Kind::Str(b)) => a.as_str() == b.as_str(),
            (Kind::Seq(a), Kind::Seq(b)) => {
                let same = |(a, b): (&Value, &Value)| Key(a.clone()) == Key(b.clone());
                Arc::ptr_eq(a, b) || a.items.len() == b.items.len() && a.items.iter().zip(&b.items).all(same)
            }
            _ => match (self.number(), other.number()) {
                (Some(Ok(a)), Some(Ok(b))) => a == b,
                // Bits, so that a key that is not a number is found again.
                (Some(Err(a)), Some(Err(b))) => a.to_bits() == b.to_bits(),
                _ => false,
            },
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match (&self.0.0, self.number()) {
            (Kind::Str(text), _) => text.as_str().hash(state),
            (Kind::Seq(seq), _) => seq.items.iter().for_each(|item| Key(item.clone()).hash(state)),
            (_, Some(Ok(number))) => number.hash(state),
            (_, Some(Err(number))) => number.to_bits().hash(state),
            _ => 0_u8.hash(state),
        }
    }
}

impl Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        key.as_str() == Some(self)
    }
}

/// The refusal of an operation on what is not there.
pub(crate) fn undefined<T>(name: &Option<Arc<Text>>) -> Eval<T> {
    match name {
        Some(name) => refuse!("'{}' is undefined", one_line(name.as_str())),
        None => refuse!("the value is undefined"),
    }
}
