//! Filters of lists and mappings. Lazy ones of Jinja's give a generator here too, which is read once.

use super::FILTERS;
use crate::arguments::{Args, Builtin, Given};
use crate::error::{Eval, Fault, refuse};
use crate::methods::{self, pairs, strings::change_case};
use crate::operators::arithmetic;
use crate::predicates::TESTS;
use crate::printable::one_line;
use crate::render::Renderer;
use crate::value::{Key, Kind, SeqKind, Value, compare, equal, truth};
use indexmap::IndexSet;

/// Sorts, keeping the order of equals; `less` may refuse. A merge sort of our own, since the library's may
/// panic when an order contradicts itself, as that of `nan` does.
pub(crate) fn sorted<T>(mut items: Vec<T>, less: &impl Fn(&T, &T) -> Eval<bool>) -> Eval<Vec<T>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let mut merged = Vec::with_capacity(items.len());
    let right = items.split_off(items.len() / 2);
    let mut left = sorted(items, less)?.into_iter().peekable();
    let mut right = sorted(right, less)?.into_iter().peekable();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        merged.extend(if less(b, a)? { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

/// What a filter looks at in an item: the item, or an attribute such as `a.b.0`, in small letters unless case
/// counts.
#[derive(Clone, Default)]
pub(super) struct Look {
    attribute: Option<Value>,
    default: Option<Value>,
    ignores_case: bool,
}

impl Look {
    /// As the argument `attribute` says.
    pub(super) fn at_attribute(given: &Given) -> Self {
        Self { attribute: given.some("attribute"), ..Self::default() }
    }

    /// As the arguments `attribute` and `case_sensitive` say.
    fn new(given: &Given) -> Self {
        Self { ignores_case: !given.is_set("case_sensitive"), ..Self::at_attribute(given) }
    }

    fn or_default(&self, found: Value) -> Value {
        self.default.clone().filter(|_| found.is_undefined()).unwrap_or(found)
    }

    pub(super) fn at(&self, r: &Renderer<'_>, item: &Value) -> Eval {
        let mut found = item.clone();
        match &self.attribute {
            None => {}
            Some(Value(Kind::Str(path))) => {
                for part in path.as_str().split('.') {
                    let digits = part.bytes().all(|byte| byte.is_ascii_digit());
                    let index = part.parse::<i64>().ok().filter(|_| digits);
                    r.budget.items::<u8>(part.len())?;
                    let index = index.map_or_else(|| Value::token(part), Value::from);
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

    /// Items with what is looked at, in its order.
    fn ordered(&self, r: &Renderer<'_>, items: Vec<Value>) -> Eval<Vec<(Value, Value)>> {
        r.budget.items::<[Value; 4]>(items.len())?;
        let keyed: Eval<Vec<_>> = items.into_iter().map(|item| Ok((self.at(r, &item)?, item))).collect();
        sorted(keyed?, &|a: &(Value, Value), b: &(Value, Value)| compare(r.budget, "<", &a.0, &b.0))
    }

    /// Items in the order of what is looked at.
    fn sort(&self, r: &Renderer<'_>, mut items: Vec<Value>, reverse: bool) -> Eval {
        // Reversed before and after, so that equals keep their order, as in Python.
        if reverse {
            items.reverse();
        }
        let mut items: Vec<Value> = self.ordered(r, items)?.into_iter().map(|(_, item)| item).collect();
        if reverse {
            items.reverse();
        }
        Value::list(r.budget, items)
    }
}

fn is_generator(value: &Value) -> bool {
    matches!(&value.0, Kind::Seq(seq) if matches!(seq.kind, SeqKind::Generator(_)))
}

pub(super) fn length(_: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    let length = match &value.0 {
        Kind::Str(text) => text.as_str().chars().count(),
        Kind::Seq(seq) if !is_generator(value) => seq.items.len(),
        Kind::Dict(dict) => dict.entries.len(),
        Kind::Undefined(_) => 0,
        _ => return refuse!("object of type '{}' has no len()", value.type_name()),
    };
    Ok((length as i64).into())
}

pub(super) fn list(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    Value::list(r.budget, r.taken(value)?)
}

pub(super) fn first(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    if value.as_text().is_some() {
        return r.item(value, &0_i64.into());
    }
    let seq = r.iterate(value)?;
    let found = seq.rest().first().cloned().unwrap_or(Value::UNDEFINED);
    seq.advance(1);
    Ok(found)
}

pub(super) fn last(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    if value.as_text().is_some() {
        return r.item(value, &(-1_i64).into());
    }
    if is_generator(value) {
        return refuse!("'generator' object is not reversible");
    }
    Ok(r.iterate(value)?.items.last().cloned().unwrap_or(Value::UNDEFINED))
}

pub(super) fn reverse(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    if let Kind::Str(text) = &value.0 {
        let mut out = r.builder();
        for (at, c) in text.as_str().char_indices().rev() {
            out.range(text, at..at + c.len_utf8())?;
        }
        return out.value();
    }
    let mut items = r.taken(value)?;
    items.reverse();
    if is_generator(value) { Value::list(r.budget, items) } else { Value::generator(r.budget, items) }
}

pub(super) fn attr(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let name = given.required_text("name")?;
    match (&value.0, methods::find(value, name.as_str())) {
        (Kind::Dict(_), Some(method)) => Value::method(r.budget, value, method),
        (Kind::Dict(_), None) => Ok(Value::missing(&name)),
        _ => r.attribute(value, &name),
    }
}

pub(super) fn items(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    let found = match &value.0 {
        Kind::Undefined(_) => Vec::new(),
        Kind::Dict(dict) => pairs(r, dict)?,
        _ => return refuse!("Can only get item pairs from a mapping."),
    };
    Value::generator(r.budget, found)
}

pub(super) fn dictsort(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let Some(dict) = value.as_dict() else { return refuse!("dictsort needs a mapping") };
    let at: i64 = match given.value("by").as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return refuse!("dictsort: by must be \"key\" or \"value\""),
    };
    let ignores_case = !given.is_set("case_sensitive");
    let look = Look { attribute: Some(at.into()), default: None, ignores_case };
    look.sort(r, pairs(r, dict)?, given.is_set("reverse"))
}

pub(super) fn sort(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let look = Look::new(given);
    if look.attribute.as_ref().and_then(Value::as_str).is_some_and(|path| path.contains(',')) {
        return Err(Fault::Unsupported("sort by several attributes".into()));
    }
    look.sort(r, r.taken(value)?, given.is_set("reverse"))
}

pub(super) fn groupby(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let look = Look { default: given.value("default"), ..Look::new(given) };
    let own = Look { ignores_case: false, ..look.clone() };
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in look.ordered(r, r.taken(value)?)? {
        match groups.last_mut() {
            Some((last, group)) if equal(r.budget, last, &key)? => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut found = Vec::with_capacity(groups.len());
    for (_, group) in groups {
        // A group is named as its first item spells it.
        let name = own.at(r, &group[0])?;
        found.push(Value::tuple(r.budget, vec![name, Value::list(r.budget, group)?])?);
    }
    Value::list(r.budget, found)
}

pub(super) fn unique(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let look = Look::new(given);
    let (mut seen, mut found) = (IndexSet::new(), Vec::new());
    for item in r.taken(value)? {
        r.budget.items::<Key>(1)?;
        if seen.insert(Key::new(r.budget, look.at(r, &item)?)?) {
            found.push(item);
        }
    }
    Value::generator(r.budget, found)
}

/// `min` and `max`: the first one of the least or the greatest.
pub(super) fn extreme(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let look = Look::new(given);
    let better = if given.callee == "max" { ">" } else { "<" };
    let mut best: Option<(Value, Value)> = None;
    for item in r.taken(value)? {
        let key = look.at(r, &item)?;
        if best.as_ref().map_or(Ok(true), |(known, _)| compare(r.budget, better, &key, known))? {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

pub(super) fn sum(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let look = Look::at_attribute(given);
    let mut total = given.value("start").unwrap_or_else(|| 0_i64.into());
    if total.as_str().is_some() {
        return refuse!("sum() can't sum strings");
    }
    for item in r.taken(value)? {
        r.budget.work(10)?;
        total = arithmetic(r, "+", &total, &look.at(r, &item)?)?;
    }
    Ok(total)
}

pub(super) fn batch(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (count, fill) = (given.count("linecount", 0)?.max(1), given.value("fill_with"));
    let mut found = Vec::new();
    for line in r.taken(value)?.chunks(count) {
        let missing = if fill.is_some() { count - line.len() } else { 0 };
        r.budget.items::<Value>(line.len().saturating_add(missing))?;
        let mut line = line.to_vec();
        line.extend(fill.iter().cycle().take(missing).cloned());
        found.push(Value::list(r.budget, line)?);
    }
    Value::generator(r.budget, found)
}

pub(super) fn slice(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (count, fill) = (given.count("slices", 0)?, given.some("fill_with"));
    if count == 0 {
        return refuse!("slice: at least one slice");
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
        found.push(Value::list(r.budget, part)?);
        at = end;
    }
    Value::generator(r.budget, found)
}

/// `map('filter', …)` or `map(attribute=…, default=…)`.
pub(super) fn map(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let mut args = given.any.clone();
    let by_attribute = args.named.iter().any(|(name, _)| name.as_str() == "attribute");
    let mut found = Vec::new();
    if !truth(value) {
        return Value::generator(r.budget, found);
    }
    if by_attribute && args.positional.is_empty() {
        let given = Given::new("map", "attribute default", args)?;
        let (attribute, default) = (given.value("attribute"), given.value("default"));
        let look = Look { attribute, default, ignores_case: false };
        for item in r.taken(value)? {
            r.budget.work(20)?;
            found.push(look.at(r, &item)?);
        }
    } else {
        let filter = named(FILTERS, &mut args, "filter")?;
        for item in r.taken(value)? {
            found.push(applied(r, filter, &item, &args)?);
        }
    }
    Value::generator(r.budget, found)
}

/// `select` and `reject`: the items for which a test holds, or does not; `selectattr` and `rejectattr` look at
/// an attribute.
pub(super) fn select(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let mut args = given.any.clone();
    let mut found = Vec::new();
    if !truth(value) {
        return Value::generator(r.budget, found);
    }
    let mut look = Look::default();
    if given.callee.ends_with("attr") {
        if args.positional.is_empty() {
            return refuse!("Missing parameter for attribute name");
        }
        look.attribute = Some(args.positional.remove(0));
    }
    let test = if args.positional.is_empty() { None } else { Some(named(TESTS, &mut args, "test")?) };
    for item in r.taken(value)? {
        let looked = look.at(r, &item)?;
        let result = test.map_or(Ok(looked.clone()), |test| applied(r, test, &looked, &args))?;
        if truth(&result) == given.callee.starts_with("select") {
            found.push(item);
        }
    }
    Value::generator(r.budget, found)
}

/// The filter or test that the first argument names; the others are left for it.
fn named(table: &'static [Builtin], args: &mut Args, kind: &str) -> Eval<&'static Builtin> {
    if args.positional.is_empty() {
        return refuse!("the name of a {kind} is missing");
    }
    let name = args.positional.remove(0);
    let Some(name) = name.as_str() else { return refuse!("the name of a {kind} must be a string") };
    Builtin::find(table, name).map_or_else(|| refuse!("No {kind} named '{}'", one_line(name)), Ok)
}

fn applied(r: &mut Renderer<'_>, builtin: &Builtin, item: &Value, args: &Args) -> Eval {
    r.budget.work(10 * (args.positional.len() + args.named.len()) as u64)?;
    builtin.call(r, item, args.clone())
}
