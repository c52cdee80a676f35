//! Expressions: one short function for each form, so that the stack holds little of each level.

use super::Renderer;
use crate::ast::{Expr, Post};
use crate::error::{Eval, Fault};
use crate::operators::{arithmetic, signed};
use crate::value::{Key, Value, compare, truth};
use indexmap::IndexMap;

impl<'t> Renderer<'t> {
    pub(super) fn eval(&mut self, expr: &'t Expr) -> Eval {
        self.budget.work(15)?;
        match expr {
            Expr::Constant(value) => return Ok(value.clone()),
            Expr::Name(name) => return self.lookup(*name),
            Expr::Block(body) => return self.captured(|r| r.block(body)),
            _ => {}
        }
        self.budget.deeper(|| self.compound(expr))
    }

    fn compound(&mut self, expr: &'t Expr) -> Eval {
        match expr {
            Expr::Constant(_) | Expr::Name(_) | Expr::Block(_) => self.eval(expr),
            Expr::List(items) => Value::list(self.budget, self.each(items)?),
            Expr::Tuple(items) => Value::tuple(self.budget, self.each(items)?),
            Expr::Dict(pairs) => self.dict(pairs),
            Expr::Signed(signs, value) => {
                let value = self.eval(value)?;
                self.budget.work(signs.len() as u64 * 8)?;
                signs.iter().rev().try_fold(value, |value, minus| signed(*minus, &value))
            }
            Expr::Not(doubled, value) => Ok((truth(&self.eval(value)?) == *doubled).into()),
            Expr::Chain(first, rest) => {
                let mut value = self.eval(first)?;
                for (operator, right) in rest {
                    let right = self.eval(right)?;
                    value = arithmetic(self, operator, &value, &right)?;
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
            Expr::CallBlock(callee, arguments, index) => self.call_with(callee, arguments, *index),
            Expr::Post(base, posts) => self.posts(base, posts),
        }
    }

    /// The values of expressions.
    pub(super) fn each(&mut self, items: &'t [Expr]) -> Eval<Vec<Value>> {
        items.iter().map(|item| self.eval(item)).collect()
    }

    fn dict(&mut self, pairs: &'t [(Expr, Expr)]) -> Eval {
        let mut entries = IndexMap::new();
        for (key, value) in pairs {
            entries.insert(Key::new(self.budget, self.eval(key)?)?, self.eval(value)?);
        }
        Value::dict(self.budget, entries)
    }

    fn concat(&mut self, items: &'t [Expr]) -> Eval {
        let mut out = self.builder();
        for item in items {
            let item = self.eval(item)?;
            self.write(&mut out, &item)?;
        }
        out.value()
    }

    /// The first value with this truth, or the last value.
    fn first_with(&mut self, items: &'t [Expr], wanted: bool) -> Eval {
        let mut value = Value::UNDEFINED;
        for item in items {
            value = self.eval(item)?;
            if truth(&value) == wanted {
                break;
            }
        }
        Ok(value)
    }

    fn comparisons(&mut self, first: &'t Expr, rest: &'t [(&str, Expr)]) -> Eval {
        let mut left = self.eval(first)?;
        for (operator, right) in rest {
            let right = self.eval(right)?;
            if !compare(self.budget, operator, &left, &right)? {
                return Ok(false.into());
            }
            left = right;
        }
        Ok(true.into())
    }

    fn posts(&mut self, base: &'t Expr, posts: &'t [Post]) -> Eval {
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
    pub(super) fn post(&mut self, value: Value, post: &'t Post) -> Eval {
        match post {
            Post::Attribute(name) => self.attribute(&value, name),
            Post::Item(index) => {
                let index = self.eval(index)?;
                self.item(&value, &index)
            }
            Post::Slice(parts) => {
                let [start, stop, step] = parts.each_ref().map(|part| self.eval(part));
                self.slice(&value, &[start?, stop?, step?])
            }
            Post::Call(arguments) => {
                let args = self.arguments(arguments)?;
                self.call(&value, args)
            }
            Post::Filter(filter, arguments) => {
                let args = self.arguments(arguments)?;
                filter.call(self, &value, args)
            }
            Post::Missing(what) => Err(Fault::Unsupported(what.clone())),
            Post::Test(test, arguments, negated) => {
                let args = self.arguments(arguments)?;
                Ok((truth(&test.call(self, &value, args)?) != *negated).into())
            }
        }
    }
}
