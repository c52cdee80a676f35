//! Expressions: one function for each precedence, which reads a chain in a loop.

use super::Parser;
use crate::arguments::Builtin;
use crate::ast::{Arguments, Expr, Post};
use crate::error::{Error, Result};
use crate::filters::FILTERS;
use crate::lexer::Kind;
use crate::predicates::TESTS;
use crate::printable::one_line;
use crate::text::Text;
use crate::value::Value;
use std::sync::Arc;

type Parse = fn(&mut Parser) -> Result<Expr>;

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
        if !self.is(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip(",") {
            if matches!(self.peek(), Kind::Sign("}}" | "%}" | ")")) || self.is("in") {
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
                if !parser.skip("if") {
                    if arms.is_empty() {
                        return Ok(value);
                    }
                    parser.missing.truncate(missing);
                    return Ok(Expr::Conditional(arms, Some(Box::new(value))));
                }
                arms.push((parser.or()?, value));
                parser.missing.truncate(missing);
                if !parser.skip("else") {
                    if parser.is("if") {
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

    /// Items with this between them, as one form; a single one is itself.
    fn list_of(&mut self, between: &str, item: Parse, form: fn(Vec<Expr>) -> Expr) -> Result<Expr> {
        let first = item(self)?;
        if !self.is(between) {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip(between) {
            items.push(item(self)?);
        }
        Ok(form(items))
    }

    fn not(&mut self) -> Result<Expr> {
        let mut count = 0_usize;
        while self.skip("not") {
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
                Kind::Sign(sign @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => *sign,
                Kind::Name(name) if name == "in" => "in",
                Kind::Name(name)
                    if name == "not" && self.is_next(|kind| *kind == Kind::Name("in".into())) =>
                {
                    self.at += 1;
                    "not in"
                }
                _ => break,
            };
            self.at += 1;
            rest.push((operator, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.chain(&["+", "-"], |parser| parser.list_of("~", Self::product, Expr::Concat))
    }

    fn product(&mut self) -> Result<Expr> {
        self.chain(&["*", "/", "//", "%"], |parser| parser.chain(&["**"], Self::unary))
    }

    fn chain(&mut self, signs: &[&str], item: Parse) -> Result<Expr> {
        let first = item(self)?;
        let mut rest = Vec::new();
        while let Kind::Sign(sign) = *self.peek()
            && signs.contains(&sign)
        {
            self.at += 1;
            rest.push((sign, item(self)?));
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
            if self.is("|") {
                posts.extend(self.pipes()?);
            } else if self.skip("is") {
                posts.push(self.test()?);
            } else if self.is("(") {
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
            Kind::Integer(value) => Ok(Expr::Constant(value.into())),
            Kind::Float(value) => Ok(Expr::Constant(value.into())),
            Kind::Sign("(") => {
                let inner = if self.is(")") { Expr::Tuple(Vec::new()) } else { self.tuple()? };
                self.expect(")")?;
                Ok(inner)
            }
            Kind::Sign("[") => self.until("]", Self::expression).map(Expr::List),
            Kind::Sign("{") => {
                let pair = |parser: &mut Self| {
                    let key = parser.expression()?;
                    parser.expect(":")?;
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
    fn until<T>(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.skip(close) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.skip(close) {
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
            if self.skip(".") {
                posts.push(match self.next() {
                    Kind::Name(name) => {
                        let name = self.intern(&name);
                        Post::Attribute(self.names[name].clone())
                    }
                    Kind::Integer(at) => Post::Item(Box::new(Expr::Constant(at.into()))),
                    _ => return self.error("expected a name or a number behind '.'"),
                });
            } else if self.skip("[") {
                posts.push(self.subscript()?);
            } else if self.is("(") {
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
        while !self.skip("]") {
            if self.is(",") {
                return self.unsupported("an index of several values");
            }
            if at < 2 && self.skip(":") {
                at += 1;
            } else if parts[at].is_none() && !self.is(":") {
                parts[at] = Some(self.expression()?);
            } else {
                return self.unexpected("']'");
            }
        }
        match parts {
            [Some(index), ..] if at == 0 => Ok(Post::Item(Box::new(index))),
            _ if at == 0 => self.error("an index is missing"),
            parts => {
                let given = |part: Option<Expr>| part.unwrap_or(Expr::Constant(Value::NONE));
                Ok(Post::Slice(Box::new(parts.map(given))))
            }
        }
    }

    /// The arguments of a call, brackets included.
    fn arguments(&mut self) -> Result<Arguments> {
        self.expect("(")?;
        let mut arguments = Arguments::default();
        self.until(")", |parser| parser.argument(&mut arguments))?;
        Ok(arguments)
    }

    fn argument(&mut self, arguments: &mut Arguments) -> Result<()> {
        let unpacked = match self.peek() {
            Kind::Sign("**") => Some(("**", &mut arguments.unpacked_named)),
            Kind::Sign("*") => Some(("*", &mut arguments.unpacked)),
            _ => None,
        };
        if let Some((sign, place)) = unpacked {
            self.at += 1;
            let value = self.expression()?;
            if place.replace(Box::new(value)).is_some() {
                return self.error(format!("a call has `{sign}` twice"));
            }
        } else if self.is_next(|kind| *kind == Kind::Sign("=")) {
            let name = self.expect_name()?;
            self.at += 1;
            arguments.named.push((Arc::new(Text::plain(name)), self.expression()?));
        } else if arguments.named.is_empty() && arguments.unpacked_named.is_none() {
            arguments.positional.push(self.expression()?);
        } else {
            return self.error("a positional argument follows one with a name");
        }
        Ok(())
    }

    /// Filters, each behind its `|`.
    pub(super) fn pipes(&mut self) -> Result<Vec<Post>> {
        self.expect("|")?;
        self.filters()
    }

    /// Filters; the first one's `|` is read already, or stands in the statement's name.
    pub(super) fn filters(&mut self) -> Result<Vec<Post>> {
        let mut found = Vec::new();
        loop {
            let name = self.dotted_name()?;
            let arguments = if self.is("(") { self.arguments()? } else { Arguments::default() };
            found.push(match Builtin::find(FILTERS, &name) {
                Some(filter) => Post::Filter(filter, arguments),
                None => self.missing("filter", &name),
            });
            if !self.skip("|") {
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
        while self.skip(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(name)
    }

    /// A test, behind `is`.
    fn test(&mut self) -> Result<Post> {
        let negated = self.skip("not");
        let name = self.dotted_name()?;
        let mut arguments = Arguments::default();
        let begins_value = match self.peek() {
            Kind::Name(name) => !matches!(name.as_str(), "else" | "or" | "and" | "is"),
            Kind::Text(_) | Kind::Integer(_) | Kind::Float(_) | Kind::Sign("[" | "{") => true,
            _ => false,
        };
        if self.is("(") {
            arguments = self.arguments()?;
        } else if begins_value {
            let value = self.nested(Self::primary)?;
            let posts = self.postfixes()?;
            arguments.positional.push(with_posts(value, posts));
        } else if self.is("is") {
            return self.error("tests cannot be chained with `is`");
        }
        Ok(match Builtin::find(TESTS, &name) {
            Some(test) => Post::Test(test, arguments, negated),
            None => self.missing("test", &name),
        })
    }
}

/// A value with what follows it.
pub(super) fn with_posts(value: Expr, posts: Vec<Post>) -> Expr {
    if posts.is_empty() { value } else { Expr::Post(Box::new(value), posts) }
}
