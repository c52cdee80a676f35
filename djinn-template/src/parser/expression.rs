//! Expressions: one function for each precedence, which reads a chain in a loop.

use super::Parser;
use crate::ast::{Arguments, Arithmetic, Comparison, Expr, Post};
use crate::error::{Error, Result};
use crate::lexer::Kind;
use crate::printable::one_line;
use crate::text::Text;
use crate::value::{self, Value};
use crate::{filters, predicates};
use std::sync::Arc;

impl Parser {
    /// An expression, or a tuple of them without brackets.
    pub(super) fn tuple(&mut self) -> Result<Expr> {
        self.tuple_of(Self::expression)
    }

    /// [`tuple`](Self::tuple) where `if` belongs to the statement.
    pub(super) fn tuple_without_condition(&mut self) -> Result<Expr> {
        self.tuple_of(|parser| parser.nested(Self::or))
    }

    fn tuple_of(&mut self, item: impl Fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let first = item(self)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_sign(",") {
            if matches!(self.peek(), Kind::Sign("}}" | "%}" | ")")) || self.is_name("in") {
                break;
            }
            items.push(item(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    /// One expression, conditions included.
    pub(super) fn expression(&mut self) -> Result<Expr> {
        let missing = self.missing.len();
        self.nested(|parser| {
            let mut arms = Vec::new();
            loop {
                let value = parser.or()?;
                if !parser.skip_name("if") {
                    return Ok(match arms.is_empty() {
                        true => value,
                        false => {
                            parser.missing.truncate(missing);
                            Expr::Conditional(arms, Some(Box::new(value)))
                        }
                    });
                }
                arms.push((parser.or()?, value));
                parser.missing.truncate(missing);
                if !parser.skip_name("else") {
                    if parser.is_name("if") {
                        return parser.unsupported("an `if` behind an `if` without `else`");
                    }
                    return Ok(Expr::Conditional(arms, None));
                }
            }
        })
    }

    fn or(&mut self) -> Result<Expr> {
        self.list_of("or", Self::and, Expr::Or)
    }

    fn and(&mut self) -> Result<Expr> {
        self.list_of("and", Self::not, Expr::And)
    }

    fn list_of(
        &mut self,
        word: &str,
        item: fn(&mut Self) -> Result<Expr>,
        form: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr> {
        let first = item(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_name(word) {
            items.push(item(self)?);
        }
        Ok(form(items))
    }

    fn not(&mut self) -> Result<Expr> {
        let mut count = 0_usize;
        while self.skip_name("not") {
            count += 1;
        }
        let value = self.compare()?;
        Ok(if count == 0 { value } else { Expr::Not(count.is_multiple_of(2), Box::new(value)) })
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let operator = match self.peek() {
                Kind::Sign("==") => Comparison::Equal,
                Kind::Sign("!=") => Comparison::NotEqual,
                Kind::Sign("<") => Comparison::Less,
                Kind::Sign("<=") => Comparison::LessEqual,
                Kind::Sign(">") => Comparison::Greater,
                Kind::Sign(">=") => Comparison::GreaterEqual,
                Kind::Name(name) if name == "in" => Comparison::In,
                Kind::Name(name) if name == "not" => {
                    let next = self.tokens.get(self.at + 1).map(|token| &token.kind);
                    if !matches!(next, Some(Kind::Name(name)) if name == "in") {
                        break;
                    }
                    self.at += 1;
                    Comparison::NotIn
                }
                _ => break,
            };
            self.at += 1;
            rest.push((operator, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.chain(&[("+", Arithmetic::Add), ("-", Arithmetic::Subtract)], Self::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_sign("~") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_sign("~") {
            items.push(self.product()?);
        }
        Ok(Expr::Concat(items))
    }

    fn product(&mut self) -> Result<Expr> {
        const OPERATORS: [(&str, Arithmetic); 4] = [
            ("*", Arithmetic::Multiply),
            ("/", Arithmetic::Divide),
            ("//", Arithmetic::FloorDivide),
            ("%", Arithmetic::Remainder),
        ];
        self.chain(&OPERATORS, Self::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.chain(&[("**", Arithmetic::Power)], Self::unary)
    }

    fn chain(
        &mut self,
        operators: &[(&str, Arithmetic)],
        item: fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        let first = item(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.is_sign(sign)) {
            self.at += 1;
            rest.push((*operator, item(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    /// Signs, a value with what follows it, and behind all of that filters and tests.
    fn unary(&mut self) -> Result<Expr> {
        let mut signs = Vec::new();
        while let Kind::Sign(sign @ ("-" | "+")) = *self.peek() {
            signs.push(sign == "-");
            self.at += 1;
        }
        let mut value = self.primary()?;
        let mut posts = self.postfixes()?;
        if !signs.is_empty() {
            value = Expr::Signed(signs, Box::new(with_posts(value, std::mem::take(&mut posts))));
        }
        loop {
            if self.is_sign("|") {
                posts.extend(self.pipes()?);
            } else if self.skip_name("is") {
                posts.push(self.test()?);
            } else if self.is_sign("(") {
                posts.push(Post::Call(self.arguments()?));
            } else {
                return Ok(with_posts(value, posts));
            }
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        let line_token = self.at;
        match self.next() {
            Kind::Name(name) => Ok(match name.as_str() {
                "true" | "True" => Expr::Constant(true.into()),
                "false" | "False" => Expr::Constant(false.into()),
                "none" | "None" => Expr::Constant(Value::NONE),
                name => {
                    self.uses.varargs |= name == "varargs";
                    self.uses.kwargs |= name == "kwargs";
                    self.uses.caller |= name == "caller";
                    Expr::Name(self.intern(name))
                }
            }),
            Kind::Text(mut text) => {
                while let Kind::Text(more) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Ok(Expr::Constant(Value::token(text)))
            }
            Kind::Integer(value) => Ok(Expr::Constant(Value(value::Kind::Int(value)))),
            Kind::Float(value) => Ok(Expr::Constant(value.into())),
            Kind::Sign("(") => {
                let inner = if self.is_sign(")") { Expr::Tuple(Vec::new()) } else { self.tuple()? };
                self.expect_sign(")")?;
                Ok(inner)
            }
            Kind::Sign("[") => self.until("]", Self::expression).map(Expr::List),
            Kind::Sign("{") => {
                let pair = |parser: &mut Self| {
                    let key = parser.expression()?;
                    parser.expect_sign(":")?;
                    Ok((key, parser.expression()?))
                };
                self.until("}", pair).map(Expr::Dict)
            }
            _ => {
                self.at = line_token;
                self.unexpected("a value")
            }
        }
    }

    /// Items with commas between them, up to a closing bracket.
    fn until<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.skip_sign(close) {
            if !items.is_empty() {
                self.expect_sign(",")?;
                if self.skip_sign(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Attributes, items and calls.
    fn postfixes(&mut self) -> Result<Vec<Post>> {
        let mut posts = Vec::new();
        loop {
            if self.skip_sign(".") {
                posts.push(match self.next() {
                    Kind::Name(name) => {
                        let name = self.intern(&name);
                        Post::Attribute(self.names[name].clone())
                    }
                    Kind::Integer(at) => Post::Item(Box::new(Expr::Constant(Value(value::Kind::Int(at))))),
                    _ => return self.error("expected a name or a number behind '.'"),
                });
            } else if self.skip_sign("[") {
                posts.push(self.subscript()?);
            } else if self.is_sign("(") {
                posts.push(Post::Call(self.arguments()?));
            } else {
                return Ok(posts);
            }
        }
    }

    /// An index or a slice, up to its closing bracket.
    fn subscript(&mut self) -> Result<Post> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut at = 0;
        while !self.skip_sign("]") {
            if self.is_sign(",") {
                return self.unsupported("an index of several values");
            }
            if self.skip_sign(":") {
                at += 1;
            } else if at < 3 && parts[at].is_none() {
                parts[at] = Some(self.expression()?);
            } else {
                return self.unexpected("']'");
            }
            if at > 2 {
                return self.unexpected("']'");
            }
        }
        if at > 0 {
            return Ok(Post::Slice(Box::new(parts)));
        }
        match parts {
            [Some(index), ..] => Ok(Post::Item(Box::new(index))),
            _ => self.error("an index is missing"),
        }
    }

    /// The arguments of a call, brackets included.
    fn arguments(&mut self) -> Result<Arguments> {
        self.expect_sign("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.skip_sign(")") {
            if !first {
                self.expect_sign(",")?;
                if self.skip_sign(")") {
                    break;
                }
            }
            first = false;
            let assigns = matches!(self.tokens.get(self.at + 1).map(|t| &t.kind), Some(Kind::Sign("=")));
            if self.skip_sign("**") {
                let value = self.expression()?;
                if arguments.unpacked_named.replace(Box::new(value)).is_some() {
                    return self.error("a call has `**` twice");
                }
            } else if self.skip_sign("*") {
                let value = self.expression()?;
                if arguments.unpacked.replace(Box::new(value)).is_some() {
                    return self.error("a call has `*` twice");
                }
            } else if assigns {
                let name = self.expect_name()?;
                self.at += 1;
                arguments.named.push((Arc::new(Text::plain(name)), self.expression()?));
            } else if arguments.named.is_empty() && arguments.unpacked_named.is_none() {
                arguments.positional.push(self.expression()?);
            } else {
                return self.error("a positional argument follows one with a name");
            }
        }
        Ok(arguments)
    }

    /// Filters, each behind its `|`.
    pub(super) fn pipes(&mut self) -> Result<Vec<Post>> {
        self.expect_sign("|")?;
        self.filters()
    }

    /// Filters; the first one's `|` is read already, or stands in the statement's name.
    pub(super) fn filters(&mut self) -> Result<Vec<Post>> {
        let mut found = Vec::new();
        loop {
            let name = self.dotted_name()?;
            let arguments = if self.is_sign("(") { self.arguments()? } else { Arguments::default() };
            found.push(match filters::find(&name) {
                Some(filter) => Post::Filter(filter, arguments),
                None => self.missing("filter", &name),
            });
            if !self.skip_sign("|") {
                return Ok(found);
            }
        }
    }

    fn missing(&mut self, kind: &str, name: &str) -> Post {
        let what = format!("the {kind} `{}`", one_line(name));
        self.missing.push(Error::Unsupported { line: self.line(), what: what.clone() });
        Post::Missing(what)
    }

    fn dotted_name(&mut self) -> Result<String> {
        let mut name = self.expect_name()?;
        while self.skip_sign(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(name)
    }

    /// A test, behind `is`.
    fn test(&mut self) -> Result<Post> {
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let mut arguments = Arguments::default();
        let begins_value = match self.peek() {
            Kind::Name(name) => !matches!(name.as_str(), "else" | "or" | "and" | "is"),
            Kind::Text(_) | Kind::Integer(_) | Kind::Float(_) | Kind::Sign("[" | "{") => true,
            _ => false,
        };
        if self.is_sign("(") {
            arguments = self.arguments()?;
        } else if begins_value {
            let value = self.nested(Self::primary)?;
            let posts = self.postfixes()?;
            arguments.positional.push(with_posts(value, posts));
        } else if self.is_name("is") {
            return self.error("tests cannot be chained with `is`");
        }
        Ok(match predicates::find(&name) {
            Some(test) => Post::Test(test, arguments, negated),
            None => self.missing("test", &name),
        })
    }
}

fn with_posts(value: Expr, posts: Vec<Post>) -> Expr {
    if posts.is_empty() { value } else { Expr::Post(Box::new(value), posts) }
}
