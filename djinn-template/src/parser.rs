//! Tokens to a tree: statements. What is not rendered is refused here, by name.

mod expression;

use expression::with_posts;

use crate::ast::{self, Expr, For, Macro, Name, Post, Statement, StatementKind, Target, Tree, Uses};
use crate::error::{Error, Result};
use crate::lexer::{Kind, Token, tokens};
use crate::printable::one_line;
use crate::text::Text;
use std::collections::HashMap;
use std::sync::Arc;

/// Longest source, in bytes.
const MAX_SOURCE: usize = 1 << 20;
/// Deepest nesting of blocks and brackets.
const MAX_NESTING: u32 = 80;

/// Statements of Jinja that chat templates do not need: other templates, and what is not switched on.
const REFUSED: [&str; 9] =
    ["include", "import", "from", "extends", "block", "autoescape", "do", "trans", "debug"];

pub(crate) fn parse(source: &str) -> Result<Tree> {
    if source.len() > MAX_SOURCE {
        let what = format!("has {} bytes of source, more than {MAX_SOURCE}", source.len());
        return Err(Error::Limit { line: 1, what });
    }
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        depth: 0,
        loops: 0,
        names: Vec::new(),
        known: HashMap::new(),
        macros: Vec::new(),
        uses: Uses::default(),
        missing: Vec::new(),
    };
    // These have fixed numbers.
    for name in ast::FIXED_NAMES {
        parser.intern(name);
    }
    let body = parser.statements(&[])?;
    parser.refuse_missing(0)?;
    Ok(Tree { body, names: parser.names, macros: parser.macros })
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: u32,
    /// Loops around this place, within its macro.
    loops: u32,
    names: Vec<Arc<Text>>,
    known: HashMap<String, Name>,
    macros: Vec<Macro>,
    /// What the macro that is being parsed uses.
    uses: Uses,
    /// Filters and tests that are missing. As in Jinja, only a condition around them makes that no error.
    missing: Vec<Error>,
}

impl Parser {
    fn peek(&self) -> &Kind {
        // The last token is the end, and is never stepped over.
        &self.tokens[self.at].kind
    }

    /// Whether the token behind the next one is of this kind.
    fn is_next(&self, kind: impl Fn(&Kind) -> bool) -> bool {
        self.tokens.get(self.at + 1).is_some_and(|token| kind(&token.kind))
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    fn next(&mut self) -> Kind {
        let kind = self.tokens[self.at].kind.clone();
        if kind != Kind::End {
            self.at += 1;
        }
        kind
    }

    /// Whether this sign or name comes next.
    fn is(&self, wanted: &str) -> bool {
        match self.peek() {
            Kind::Sign(found) => *found == wanted,
            Kind::Name(found) => found == wanted,
            _ => false,
        }
    }

    fn skip(&mut self, wanted: &str) -> bool {
        let found = self.is(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<()> {
        if self.skip(sign) { Ok(()) } else { self.unexpected(&format!("'{sign}'")) }
    }

    fn expect_name(&mut self) -> Result<String> {
        match self.next() {
            Kind::Name(name) => Ok(name),
            _ => {
                self.at = self.at.saturating_sub(1);
                self.unexpected("a name")
            }
        }
    }

    fn error<T>(&self, detail: impl Into<String>) -> Result<T> {
        Err(Error::Syntax { line: self.line(), detail: detail.into() })
    }

    fn unsupported<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::Unsupported { line: self.line(), what: what.into() })
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        let found = match self.peek() {
            Kind::Data(_) => "text".to_owned(),
            Kind::Sign(sign) => format!("'{sign}'"),
            Kind::Name(name) => format!("'{}'", one_line(name)),
            Kind::Text(_) => "a string".to_owned(),
            Kind::Integer(_) | Kind::Float(_) => "a number".to_owned(),
            Kind::End => "the end of the template".to_owned(),
        };
        self.error(format!("expected {wanted}, found {found}"))
    }

    /// Parses something one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_NESTING {
            let what = format!("nests more than {MAX_NESTING} blocks and brackets");
            return Err(Error::Limit { line: self.line(), what });
        }
        self.depth += 1;
        let found = parse(self);
        self.depth -= 1;
        found
    }

    /// The number of a name.
    fn intern(&mut self, name: &str) -> Name {
        if let Some(&found) = self.known.get(name) {
            return found;
        }
        self.names.push(Arc::new(Text::plain(name)));
        self.known.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    /// Statements up to a tag of one of these names, which is left to be read behind its bracket; up to the
    /// end of the template if there are none.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        self.nested(|parser| {
            let mut found = Vec::new();
            loop {
                let line = parser.line();
                let kind = match parser.next() {
                    Kind::Data(text) => StatementKind::Text(text),
                    Kind::Sign("{{") => {
                        let value = parser.tuple()?;
                        parser.expect("}}")?;
                        StatementKind::Print(value)
                    }
                    Kind::Sign("{%") => {
                        if ends.iter().any(|end| parser.is(end)) {
                            return Ok(found);
                        }
                        parser.statement()?
                    }
                    Kind::End if ends.is_empty() => return Ok(found),
                    _ => return parser.unexpected(&format!("`{}`", ends.last().unwrap_or(&"text"))),
                };
                found.push(Statement { line, kind });
            }
        })
    }

    /// A block's body up to its end tag, which is read as well.
    fn body(&mut self, end: &str) -> Result<Vec<Statement>> {
        self.expect("%}")?;
        let body = self.statements(&[end])?;
        self.at += 1;
        Ok(body)
    }

    /// Refuses the first thing found missing after the first `known`.
    fn refuse_missing(&mut self, known: usize) -> Result<()> {
        self.missing.drain(known..).next().map_or(Ok(()), Err)
    }

    fn statement(&mut self) -> Result<StatementKind> {
        let missing = self.missing.len();
        let name = self.expect_name()?;
        let kind = match name.as_str() {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => self.set_statement()?,
            "with" => self.with_statement()?,
            "macro" => self.macro_statement()?,
            "call" => self.call_statement()?,
            "filter" => {
                let filters = self.filters()?;
                StatementKind::Print(with_posts(Expr::Block(self.body("endfilter")?), filters))
            }
            "generation" => StatementKind::Generation(self.body("endgeneration")?),
            "break" | "continue" if self.loops == 0 => return self.error(format!("`{name}` outside a loop")),
            "break" => StatementKind::Break,
            "continue" => StatementKind::Continue,
            name if REFUSED.contains(&name) => return self.unsupported(format!("the statement `{name}`")),
            name => return self.error(format!("unknown statement `{}`", one_line(name))),
        };
        self.expect("%}")?;
        match kind {
            StatementKind::If(..) => self.missing.truncate(missing),
            StatementKind::Set(..) => {}
            _ => self.refuse_missing(missing)?,
        }
        Ok(kind)
    }

    fn if_statement(&mut self) -> Result<StatementKind> {
        let mut arms = Vec::new();
        loop {
            let condition = self.tuple_without_condition()?;
            self.expect("%}")?;
            arms.push((condition, self.statements(&["elif", "else", "endif"])?));
            if self.skip("elif") {
                continue;
            }
            let otherwise = if self.skip("else") { self.body("endif")? } else { Vec::new() };
            self.skip("endif");
            return Ok(StatementKind::If(arms, otherwise));
        }
    }

    fn for_statement(&mut self) -> Result<StatementKind> {
        let target = self.target(false)?;
        if !self.skip("in") {
            return self.unexpected("`in`");
        }
        let items = self.tuple_without_condition()?;
        let condition = if self.skip("if") { Some(self.expression()?) } else { None };
        if self.is("recursive") {
            return self.unsupported("a `recursive` loop");
        }
        self.expect("%}")?;
        self.loops += 1;
        let body = self.statements(&["else", "endfor"]);
        self.loops -= 1;
        let body = body?;
        let otherwise = if self.skip("else") { self.body("endfor")? } else { Vec::new() };
        self.skip("endfor");
        Ok(StatementKind::For(Box::new(For { target, items, condition, body, otherwise })))
    }

    fn set_statement(&mut self) -> Result<StatementKind> {
        let target = self.target(true)?;
        if self.skip("=") {
            return Ok(StatementKind::Set(target, self.tuple()?));
        }
        let missing = self.missing.len();
        let filters = if self.is("|") { self.pipes()? } else { Vec::new() };
        let body = self.body("endset")?;
        self.refuse_missing(missing)?;
        Ok(StatementKind::Set(target, with_posts(Expr::Block(body), filters)))
    }

    fn with_statement(&mut self) -> Result<StatementKind> {
        let mut assigned = Vec::new();
        while !self.is("%}") {
            if !assigned.is_empty() {
                self.expect(",")?;
            }
            let target = self.single_target(false)?;
            self.expect("=")?;
            assigned.push((target, self.expression()?));
        }
        Ok(StatementKind::With(assigned, self.body("endwith")?))
    }

    fn macro_statement(&mut self) -> Result<StatementKind> {
        let name = self.expect_name()?;
        let name = self.assigned(&name)?;
        Ok(StatementKind::Macro(self.define(name, "endmacro", true, |_| Ok(()))?.1))
    }

    fn call_statement(&mut self) -> Result<StatementKind> {
        let name = self.intern("caller");
        let has_parameters = self.is("(");
        let ((callee, arguments), index) = self.define(name, "endcall", has_parameters, |parser| {
            if let Expr::Post(base, mut posts) = parser.expression()?
                && let Some(Post::Call(arguments)) = posts.pop()
            {
                let callee = if posts.is_empty() { *base } else { Expr::Post(base, posts) };
                return Ok((callee, arguments));
            }
            parser.unexpected("a call")
        })?;
        Ok(StatementKind::Print(Expr::CallBlock(Box::new(callee), arguments, index)))
    }

    /// Parameters where there are any, what `between` reads, and a body: a new macro's index.
    fn define<T>(
        &mut self,
        name: Name,
        end: &str,
        has_parameters: bool,
        between: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, usize)> {
        let mut parameters: Vec<(Name, Option<Expr>)> = Vec::new();
        if has_parameters {
            self.expect("(")?;
            while !self.skip(")") {
                if !parameters.is_empty() {
                    self.expect(",")?;
                }
                let name = self.expect_name()?;
                let name = self.assigned(&name)?;
                let default = if self.skip("=") { Some(self.expression()?) } else { None };
                if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                    return self.error("a parameter without a default follows one with a default");
                }
                parameters.push((name, default));
            }
        }
        let between = between(self)?;
        let outer = (std::mem::take(&mut self.loops), std::mem::take(&mut self.uses));
        let body = self.body(end)?;
        let uses = self.uses;
        (self.loops, self.uses) = outer;
        // For Jinja a macro uses `caller` also where only a call block in it does.
        if end == "endcall" {
            self.uses.caller |= uses.caller;
        }
        self.macros.push(Macro { name, parameters, body, uses });
        Ok((between, self.macros.len() - 1))
    }

    /// A name that may be assigned to.
    fn assigned(&mut self, name: &str) -> Result<Name> {
        if matches!(name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.error(format!("cannot assign to `{name}`"));
        }
        Ok(self.intern(name))
    }

    /// One target, or several with commas between them.
    fn target(&mut self, namespaces: bool) -> Result<Target> {
        let first = self.single_target(namespaces)?;
        if !self.is(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip(",") {
            if !matches!(self.peek(), Kind::Name(name) if name != "in") && !self.is("(") {
                break;
            }
            targets.push(self.single_target(namespaces)?);
        }
        Ok(Target::Tuple(targets))
    }

    fn single_target(&mut self, namespaces: bool) -> Result<Target> {
        if self.skip("(") {
            let inner = self.nested(|parser| parser.target(false))?;
            self.expect(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        if namespaces && self.skip(".") {
            let attribute = self.expect_name()?;
            let attribute = self.intern(&attribute);
            return Ok(Target::Attribute(self.intern(&name), self.names[attribute].clone()));
        }
        self.assigned(&name).map(Target::Name)
    }
}
