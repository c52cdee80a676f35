//! Filters of lists and mappings. Lazy ones of Jinja's give a generator here too, which is read once.

use super::{count_of, is_set};
use crate::ast::Arithmetic;
use crate::error::Fault;
use crate::methods::{self, pairs, strings::change_case};
use crate::operators::arithmetic;
use crate::predicates;
use crate::printable::one_line;
use crate::render::{Args, Renderer};
use crate::value::{Key, Kind, SeqKind, Value, equal, less, truth};
use indexmap::IndexSet;

/// Sorts, keeping the order of equals; `less` may refuse. A merge sort of our own, since the library's may
/// panic when an order contradicts itself, as that of `nan` does.
pub(crate) fn sorted<T>(
    items: Vec<T>,
    mut less: impl FnMut(&T, &T) -> Result<bool, Fault>,
) -> Result<Vec<T>, Fault> {
    merge_sorted(items, &mut less)
}

fn merge_sorted<T>(
    mut items: Vec<T>,
    less: &mut impl FnMut(&T, &T) -> Result<bool, Fault>,
) -> Result<Vec<T>, Fault> {
    if items.len() < 2 {
        return Ok(items);
    }
    let mut merged = Vec::with_capacity(items.len());
    let right = items.split_off(items.len() / 2);
    let mut left = merge_sorted(items, less)?.into_iter().peekable();
    let mut right = merge_sorted(right, less)?.into_iter().peekable();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        merged.extend(if less(b, a)? { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

/// What a filter looks at in an item: the item, or an attribute such as `a.b.0`, in small letters unless case
/// counts.
struct Look {
    attribute: Option<Value>,
    default: Option<Value>,
    ignores_case: bool,
}

impl Look {
    fn or_default(&self, found: Value) -> Value {
        self.default.clone().filter(|_| found.is_undefined()).unwrap_or(found)
    }

    fn at(&self, r: &Renderer<'_>, item: &Value) -> Result<Value, Fault> {
        let mut found = item.clone();
        match &self.attribute {
            None => {}
            Some(Value(Kind::Str(path))) => {
                for part in path.as_str().split('.') {
                    let number = part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<i64>());
                    let index = match number {
                        Some(Ok(number)) => number.into(),
                        _ => Value::token(part),
                    };
                    r.budget.items::<u8>(part.len())?;
                    found = self.or_default(r.item(&found, &index)?);
                }
            }
            Some(index) => found = self.or_default(r.item(&found, index)?),
        }
        match &found.0 {
            Kind::Str(text) if self.ignores_case => change_case(r, text, "lower"),
            _ => Ok(found),
        }
    }
}

/// Items with what is looked at, in its order.
fn ordered(
    r: &Renderer<'_>,
    items: Vec<Value>,
    key: impl Fn(&Value) -> Result<Value, Fault>,
) -> Result<Vec<(Value, Value)>, Fault> {
    r.budget.items::<[Value; 4]>(items.len())?;
    let keyed: Result<Vec<_>, Fault> = items.into_iter().map(|item| Ok((key(&item)?, item))).collect();
    sorted(keyed?, |a, b| less(&r.budget, &a.0, &b.0, "<", |order| order.is_lt()))
}

fn generator(r: &Renderer<'_>, items: Vec<Value>) -> Result<Value, Fault> {
    Value::generator(&r.budget, items)
}

pub(super) fn length(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("length", [])?;
    let length = match &value.0 {
        Kind::Str(text) => {
            r.budget.work(text.len() as u64 / 4)?;
            text.as_str().chars().count()
        }
        Kind::Seq(seq) if !matches!(seq.kind, SeqKind::Generator(_)) => seq.items.len(),
        Kind::Dict(dict) => dict.entries.len(),
        Kind::Undefined(_) => 0,
        _ => return Err(Fault::new(format!("object of type '{}' has no len()", value.type_name()))),
    };
    Ok((length as i64).into())
}

pub(super) fn list(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("list", [])?;
    let items = r.taken(value)?;
    Value::list(&r.budget, items)
}

pub(super) fn first(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("first", [])?;
    if let Kind::Str(_) = value.0 {
        return r.item(value, &0.into());
    }
    let seq = r.iterate(value)?;
    let found = seq.rest().first().cloned().unwrap_or(Value::UNDEFINED);
    seq.advance(1);
    Ok(found)
}

pub(super) fn last(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("last", [])?;
    match &value.0 {
        Kind::Str(_) => return r.item(value, &(-1).into()),
        Kind::Seq(seq) if matches!(seq.kind, SeqKind::Generator(_)) => {
            return Err(Fault::new("'generator' object is not reversible"));
        }
        _ => {}
    }
    Ok(r.iterate(value)?.items.last().cloned().unwrap_or(Value::UNDEFINED))
}

pub(super) fn reverse(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("reverse", [])?;
    if let Kind::Str(text) = &value.0 {
        let mut out = crate::text::TextBuilder::default();
        for (at, c) in text.as_str().char_indices().rev() {
            out.range(&r.budget, text, at..at + c.len_utf8())?;
        }
        return r.made(out);
    }
    let is_generator = matches!(&value.0, Kind::Seq(seq) if matches!(seq.kind, SeqKind::Generator(_)));
    let mut items = r.taken(value)?;
    items.reverse();
    if is_generator { Value::list(&r.budget, items) } else { generator(r, items) }
}

pub(super) fn attr(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [name] = args.bind("attr", ["name"])?;
    match (&value.0, name) {
        (Kind::Dict(_), Some(Value(Kind::Str(name)))) => match methods::exists(value, name.as_str()) {
            true => Value::method(value, &name),
            false => Ok(Value(Kind::Undefined(Some(name)))),
        },
        (_, Some(Value(Kind::Str(name)))) => r.attribute(value, &name),
        _ => Err(Fault::new("attr needs a name")),
    }
}

pub(super) fn items(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("items", [])?;
    let found = match &value.0 {
        Kind::Undefined(_) => Vec::new(),
        Kind::Dict(dict) => pairs(r, dict)?,
        _ => return Err(Fault::new("Can only get item pairs from a mapping.")),
    };
    generator(r, found)
}

pub(super) fn dictsort(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Some(dict) = value.as_dict() else { return Err(Fault::new("dictsort needs a mapping")) };
    let at: i64 = match by.as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(Fault::new("dictsort: by must be \"key\" or \"value\"")),
    };
    let look = Look { attribute: Some(at.into()), default: None, ignores_case: !is_set(case) };
    let pairs = pairs(r, dict)?;
    sort_by(r, pairs, &look, is_set(reverse))
}

pub(super) fn sort(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [reverse, case, attribute] = args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let attribute = attribute.filter(|value| !value.is_none());
    if attribute.as_ref().and_then(Value::as_str).is_some_and(|path| path.contains(',')) {
        return Err(Fault::Unsupported("sort by several attributes".into()));
    }
    let look = Look { attribute, default: None, ignores_case: !is_set(case) };
    let items = r.taken(value)?;
    sort_by(r, items, &look, is_set(reverse))
}

fn sort_by(r: &Renderer<'_>, mut items: Vec<Value>, look: &Look, reverse: bool) -> Result<Value, Fault> {
    // Reversed before and after, so that equals keep their order, as in Python.
    if reverse {
        items.reverse();
    }
    let pairs = ordered(r, items, |item| look.at(r, item))?;
    let mut items: Vec<Value> = pairs.into_iter().map(|(_, item)| item).collect();
    if reverse {
        items.reverse();
    }
    Value::list(&r.budget, items)
}

pub(super) fn groupby(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [attribute, default, case] = args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let look = Look { attribute, default, ignores_case: !is_set(case) };
    let own = Look { attribute: look.attribute.clone(), default: look.default.clone(), ignores_case: false };
    let items = r.taken(value)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in ordered(r, items, |item| look.at(r, item))? {
        match groups.last_mut() {
            Some((last, group)) if equal(&r.budget, last, &key)? => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut found = Vec::with_capacity(groups.len());
    for (_, group) in groups {
        // A group is named as its first item spells it.
        let name = own.at(r, &group[0])?;
        let group = Value::list(&r.budget, group)?;
        found.push(Value::tuple(&r.budget, vec![name, group])?);
    }
    Value::list(&r.budget, found)
}

pub(super) fn unique(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [case, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let look = Look { attribute, default: None, ignores_case: !is_set(case) };
    let (mut seen, mut found) = (IndexSet::new(), Vec::new());
    for item in r.taken(value)? {
        let key = Key::new(&r.budget, look.at(r, &item)?)?;
        r.budget.items::<Key>(1)?;
        if seen.insert(key) {
            found.push(item);
        }
    }
    generator(r, found)
}

/// `min` and `max`: the first one of the least or the greatest.
pub(super) fn extreme(r: &mut Renderer<'_>, value: &Value, args: Args, name: &str) -> Result<Value, Fault> {
    let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let look = Look { attribute, default: None, ignores_case: !is_set(case) };
    let mut best: Option<(Value, Value)> = None;
    for item in r.taken(value)? {
        let key = look.at(r, &item)?;
        let better = match (&best, name) {
            (None, _) => true,
            (Some((known, _)), "max") => less(&r.budget, &key, known, ">", |order| order.is_gt())?,
            (Some((known, _)), _) => less(&r.budget, &key, known, "<", |order| order.is_lt())?,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

pub(super) fn sum(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let look = Look { attribute, default: None, ignores_case: false };
    let mut total = start.unwrap_or_else(|| 0.into());
    if total.as_str().is_some() {
        return Err(Fault::new("sum() can't sum strings"));
    }
    for item in r.taken(value)? {
        let item = look.at(r, &item)?;
        r.budget.work(10)?;
        total = arithmetic(r, Arithmetic::Add, &total, &item)?;
    }
    Ok(total)
}

pub(super) fn batch(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let count = count_of(count, 0)?.max(1);
    let items = r.taken(value)?;
    let mut found = Vec::new();
    for line in items.chunks(count) {
        let missing = if fill.is_some() { count - line.len() } else { 0 };
        r.budget.items::<Value>(line.len().saturating_add(missing))?;
        let mut line = line.to_vec();
        line.extend(fill.iter().flat_map(|fill| std::iter::repeat_n(fill.clone(), missing)));
        found.push(Value::list(&r.budget, line)?);
    }
    generator(r, found)
}

pub(super) fn slice(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let count = count_of(count, 0)?;
    let fill = fill.filter(|value| !value.is_none());
    if count == 0 {
        return Err(Fault::new("slice: at least one slice"));
    }
    let items = r.taken(value)?;
    let (each, more) = (items.len() / count, items.len() % count);
    r.budget.items::<[Value; 4]>(count)?;
    let mut found = Vec::new();
    let mut at = 0;
    for slice in 0..count {
        let end = at + each + usize::from(slice < more);
        let mut part = items[at..end].to_vec();
        if slice >= more && more > 0 {
            part.extend(fill.clone());
        }
        found.push(Value::list(&r.budget, part)?);
        at = end;
    }
    generator(r, found)
}

/// `map('filter', …)` or `map(attribute=…, default=…)`.
pub(super) fn map(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    if !truth(value) {
        return generator(r, Vec::new());
    }
    let items = r.taken(value)?;
    let mut found = Vec::with_capacity(items.len());
    if args.positional.is_empty() && args.named.iter().any(|(name, _)| name.as_str() == "attribute") {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let look = Look { attribute, default, ignores_case: false };
        for item in &items {
            r.budget.work(20)?;
            found.push(look.at(r, item)?);
        }
        return generator(r, found);
    }
    let (name, rest) = split_name(args, "map")?;
    let Some(filter) = super::find(&name) else {
        return Err(Fault::new(format!("No filter named '{}'", one_line(&name))));
    };
    for item in &items {
        let args = copied(r, &rest)?;
        found.push(filter(r, item, args)?);
    }
    generator(r, found)
}

/// The items for which a test holds, or does not; of an attribute where `of_attribute` says so.
pub(super) fn select(
    r: &mut Renderer<'_>,
    value: &Value,
    mut args: Args,
    of_attribute: bool,
    keeps: bool,
) -> Result<Value, Fault> {
    if !truth(value) {
        return generator(r, Vec::new());
    }
    let mut look = Look { attribute: None, default: None, ignores_case: false };
    if of_attribute {
        if args.positional.is_empty() {
            return Err(Fault::new("Missing parameter for attribute name"));
        }
        look.attribute = Some(args.positional.remove(0));
    }
    let test = match args.positional.is_empty() {
        true => None,
        false => {
            let (name, rest) = split_name(args, "select")?;
            let Some(test) = predicates::find(&name) else {
                return Err(Fault::new(format!("No test named '{}'", one_line(&name))));
            };
            Some((test, rest))
        }
    };
    let mut found = Vec::new();
    for item in r.taken(value)? {
        let looked = look.at(r, &item)?;
        let holds = match &test {
            None => truth(&looked),
            Some((test, rest)) => {
                let args = copied(r, rest)?;
                test(r, &looked, args)?
            }
        };
        if holds == keeps {
            found.push(item);
        }
    }
    generator(r, found)
}

/// The name of a filter or test, and the arguments that are for it.
fn split_name(mut args: Args, callee: &str) -> Result<(String, Args), Fault> {
    if args.positional.is_empty() {
        return Err(Fault::new(format!("{callee} requires a filter argument")));
    }
    let name = args.positional.remove(0);
    let name =
        name.as_str().ok_or_else(|| Fault::new(format!("{callee} needs the name of a filter or test")))?;
    Ok((name.to_owned(), args))
}

fn copied(r: &Renderer<'_>, args: &Args) -> Result<Args, Fault> {
    r.budget.work(20 + 10 * (args.positional.len() + args.named.len()) as u64)?;
    Ok(Args { positional: args.positional.clone(), named: args.named.clone() })
}
