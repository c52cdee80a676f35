//! Expressions: one short function for each form, so that the stack holds little of each level.

use super::Renderer;
use crate::ast::{Comparison, Expr, Post};
use crate::error::Fault;
use crate::operators::{arithmetic, signed};
use crate::text::TextBuilder;
use crate::value::{Key, Kind, Value, contains, equal, less, truth};
use indexmap::IndexMap;

impl<'t> Renderer<'t> {
    /// The value of an expression.
    pub(super) fn eval(&mut self, expr: &'t Expr) -> Result<Value, Fault> {
        self.budget.work(15)?;
        match expr {
            Expr::Constant(value) => return Ok(value.clone()),
            Expr::Name(name) => return self.lookup(*name),
            _ => {}
        }
        self.budget.enter()?;
        let value = self.compound(expr)?;
        self.budget.leave();
        Ok(value)
    }

    fn compound(&mut self, expr: &'t Expr) -> Result<Value, Fault> {
        match expr {
            Expr::Constant(_) | Expr::Name(_) => self.eval(expr),
            Expr::List(items) => {
                let items = self.each(items)?;
                Value::list(&self.budget, items)
            }
            Expr::Tuple(items) => {
                let items = self.each(items)?;
                Value::tuple(&self.budget, items)
            }
            Expr::Dict(pairs) => self.dict(pairs),
            Expr::Signed(signs, value) => {
                let value = self.eval(value)?;
                signs.iter().rev().try_fold(value, |value, minus| signed(*minus, &value))
            }
            Expr::Not(doubled, value) => Ok((truth(&self.eval(value)?) == *doubled).into()),
            Expr::Chain(first, rest) => {
                let mut value = self.eval(first)?;
                for (operator, right) in rest {
                    let right = self.eval(right)?;
                    value = arithmetic(self, *operator, &value, &right)?;
                }
                Ok(value)
            }
            Expr::Concat(items) => self.concat(items),
            Expr::And(items) => self.first_with(items, false),
            Expr::Or(items) => self.first_with(items, true),
            Expr::Compare(first, rest) => self.comparisons(first, rest),
            Expr::Conditional(arms, otherwise) => {
                for (condition, value) in arms {
                    if truth(&self.eval(condition)?) {
                        return self.eval(value);
                    }
                }
                otherwise.as_ref().map_or(Ok(Value::UNDEFINED), |value| self.eval(value))
            }
            Expr::Post(base, posts) => self.posts(base, posts),
        }
    }

    /// The values of expressions.
    pub(super) fn each(&mut self, items: &'t [Expr]) -> Result<Vec<Value>, Fault> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            values.push(self.eval(item)?);
        }
        Ok(values)
    }

    fn dict(&mut self, pairs: &'t [(Expr, Expr)]) -> Result<Value, Fault> {
        let mut entries = IndexMap::new();
        for (key, value) in pairs {
            let key = self.eval(key)?;
            entries.insert(Key::new(&self.budget, key)?, self.eval(value)?);
        }
        Value::dict(&self.budget, entries)
    }

    fn concat(&mut self, items: &'t [Expr]) -> Result<Value, Fault> {
        let mut out = TextBuilder::default();
        for item in items {
            let item = self.eval(item)?;
            self.write(&mut out, &item)?;
        }
        self.made(out)
    }

    /// The first value with this truth, or the last value.
    fn first_with(&mut self, items: &'t [Expr], wanted: bool) -> Result<Value, Fault> {
        let mut value = Value::UNDEFINED;
        for item in items {
            value = self.eval(item)?;
            if truth(&value) == wanted {
                break;
            }
        }
        Ok(value)
    }

    fn comparisons(&mut self, first: &'t Expr, rest: &'t [(Comparison, Expr)]) -> Result<Value, Fault> {
        let mut left = self.eval(first)?;
        for (comparison, right) in rest {
            let right = self.eval(right)?;
            if !self.compare(*comparison, &left, &right)? {
                return Ok(false.into());
            }
            left = right;
        }
        Ok(true.into())
    }

    /// One comparison.
    pub(crate) fn compare(&self, comparison: Comparison, a: &Value, b: &Value) -> Result<bool, Fault> {
        let budget = &self.budget;
        match comparison {
            Comparison::Equal => equal(budget, a, b),
            Comparison::NotEqual => equal(budget, a, b).map(|same| !same),
            Comparison::Less => less(budget, a, b, "<", |order| order.is_lt()),
            Comparison::LessEqual => less(budget, a, b, "<=", |order| order.is_le()),
            Comparison::Greater => less(budget, a, b, ">", |order| order.is_gt()),
            Comparison::GreaterEqual => less(budget, a, b, ">=", |order| order.is_ge()),
            Comparison::In => contains(budget, a, b),
            Comparison::NotIn => contains(budget, a, b).map(|found| !found),
        }
    }

    fn posts(&mut self, base: &'t Expr, posts: &'t [Post]) -> Result<Value, Fault> {
        let mut value = self.eval(base)?;
        let mut rest = posts;
        while let Some((post, after)) = rest.split_first() {
            self.budget.work(10)?;
            (value, rest) = match (post, after) {
                // A method that is called at once is not made a value.
                (Post::Attribute(name), [Post::Call(arguments), after @ ..]) => {
                    (self.call_attribute(&value, name, arguments)?, after)
                }
                _ => (self.post(value, post)?, after),
            };
        }
        Ok(value)
    }

    /// One of what may follow a value.
    pub(super) fn post(&mut self, value: Value, post: &'t Post) -> Result<Value, Fault> {
        match post {
            Post::Attribute(name) => self.attribute(&value, name),
            Post::Item(index) => {
                let index = self.eval(index)?;
                self.item(&value, &index)
            }
            Post::Slice(parts) => {
                let mut given = [const { Value(Kind::None) }; 3];
                for (given, part) in given.iter_mut().zip(parts.iter()) {
                    if let Some(part) = part {
                        *given = self.eval(part)?;
                    }
                }
                self.slice(&value, &given)
            }
            Post::Call(arguments) => {
                let args = self.arguments(arguments)?;
                self.call(&value, args)
            }
            Post::Filter(filter, arguments) => {
                let args = self.arguments(arguments)?;
                self.budget.look_at(&value)?;
                filter(self, &value, args)
            }
            Post::Missing(what) => Err(Fault::Unsupported(what.clone())),
            Post::Test(test, arguments, negated) => {
                let args = self.arguments(arguments)?;
                self.budget.look_at(&value)?;
                Ok((test(self, &value, args)? != *negated).into())
            }
        }
    }
}
