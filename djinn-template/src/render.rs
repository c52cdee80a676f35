//! The renderer: statements, scopes and loops. It walks the tree; the parser bounds the tree's depth, and the
//! budget the depth of calls.

mod access;
mod call;
mod expression;
pub(crate) mod print;

use crate::arguments::Builtin;
use crate::ast::{self, Expr, For, Name, Statement, StatementKind, Target, Tree};
use crate::budget::Budget;
use crate::error::{Error, Eval, refuse};
use crate::functions::{FUNCTIONS, Object};
use crate::text::{Text, TextBuilder};
use crate::value::{Closure, Kind, Seq, SeqKind, Value, truth, undefined};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

/// What a statement leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Names assigned in one block.
struct Scope {
    /// Position of the scope around it.
    parent: usize,
    /// Tells it from others that had its position.
    serial: u64,
    names: Vec<(Name, Value)>,
}

/// A loop that runs.
struct Loop {
    id: u64,
    items: Arc<Seq>,
    /// Items of a generator that were given before this loop, and the position from there on.
    first: usize,
    at: usize,
    /// What `loop.changed` was last called with.
    changed: Option<Vec<Value>>,
}

/// One render of one template.
pub(crate) struct Renderer<'t> {
    tree: &'t Tree,
    pub(crate) budget: &'t Budget,
    /// The outermost scope, by name: variables, functions, what is assigned outside all blocks.
    root: Vec<Option<Value>>,
    /// Scopes within it. Position 0 stands for it.
    scopes: Vec<Scope>,
    scope: usize,
    loops: Vec<Loop>,
    serial: u64,
    /// Namespaces and their like.
    pub(crate) objects: Vec<Object>,
    out: TextBuilder<'t>,
    line: u32,
    pub(crate) now: SystemTime,
}

pub(crate) fn render(tree: &Tree, variables: &[(String, Value)], now: SystemTime) -> Result<Text, Error> {
    let budget = Budget::new(variables.iter().map(|(_, value)| value.size()).sum());
    let given: HashMap<&str, &Value> = variables.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let find = |name: &Arc<Text>| {
        let function = || Some(Value(Kind::Function(Builtin::find(FUNCTIONS, name.as_str())?)));
        given.get(name.as_str()).map(|&value| value.clone()).or_else(function)
    };
    let mut renderer = Renderer {
        tree,
        budget: &budget,
        root: tree.names.iter().map(find).collect(),
        scopes: vec![Scope { parent: 0, serial: 0, names: Vec::new() }],
        scope: 0,
        loops: Vec::new(),
        serial: 0,
        objects: Vec::new(),
        out: TextBuilder::new(&budget),
        line: 1,
        now,
    };
    let rendered = renderer.run(&tree.body);
    rendered.map_err(|fault| fault.at(renderer.line)).map(|_| renderer.out.finish())
}

impl<'t> Renderer<'t> {
    fn run(&mut self, body: &'t [Statement]) -> Eval<Flow> {
        self.budget.deeper(|| {
            for statement in body {
                let flow = self.statement(statement)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn statement(&mut self, statement: &'t Statement) -> Eval<Flow> {
        self.line = statement.line;
        self.budget.work(20)?;
        match &statement.kind {
            StatementKind::Text(text) => self.out.plain(text)?,
            StatementKind::Print(value) => {
                let value = self.eval(value)?;
                self.print(&value)?;
            }
            StatementKind::If(arms, otherwise) => return self.run_if(arms, otherwise),
            StatementKind::For(parts) => return self.run_for(parts),
            StatementKind::Set(target, value) => {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            StatementKind::With(assigned, body) => return self.run_with(assigned, body),
            StatementKind::Macro(index) => {
                let closure = self.closure(*index)?;
                self.set(self.tree.macros[*index].name, closure)?;
            }
            StatementKind::Generation(body) => return self.block(body),
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn print(&mut self, value: &Value) -> Eval<()> {
        let mut out = std::mem::replace(&mut self.out, TextBuilder::new(self.budget));
        self.write(&mut out, value)?;
        self.out = out;
        Ok(())
    }

    fn run_if(&mut self, arms: &'t [(Expr, Vec<Statement>)], otherwise: &'t [Statement]) -> Eval<Flow> {
        for (condition, body) in arms {
            if truth(&self.eval(condition)?) {
                return self.run(body);
            }
        }
        self.run(otherwise)
    }

    fn run_with(&mut self, assigned: &'t [(Target, Expr)], body: &'t [Statement]) -> Eval<Flow> {
        let values: Eval<Vec<_>> = assigned.iter().map(|(_, value)| self.eval(value)).collect();
        let values = values?;
        self.within(self.scope, |r| {
            for ((target, _), value) in assigned.iter().zip(values) {
                r.assign(target, value)?;
            }
            r.run(body)
        })
    }

    /// Runs statements in a scope of their own.
    fn block(&mut self, body: &'t [Statement]) -> Eval<Flow> {
        self.within(self.scope, |r| r.run(body))
    }

    /// What statements print.
    fn captured<T>(&mut self, run: impl FnOnce(&mut Self) -> Eval<T>) -> Eval {
        let outer = std::mem::replace(&mut self.out, TextBuilder::new(self.budget));
        run(self)?;
        std::mem::replace(&mut self.out, outer).value()
    }

    /// A text to be built.
    pub(crate) fn builder(&self) -> TextBuilder<'t> {
        TextBuilder::new(self.budget)
    }

    fn run_for(&mut self, parts: &'t For) -> Eval<Flow> {
        let iterated = self.eval(&parts.items)?;
        let mut items = self.iterate(&iterated)?;
        let mut first = items.items.len() - items.rest().len();
        items.advance(usize::MAX);
        if let Some(condition) = &parts.condition {
            let mut kept = Vec::new();
            for item in &items.items[first..] {
                self.budget.work(20)?;
                let keeps = self.within(self.scope, |r| {
                    r.assign(&parts.target, item.clone())?;
                    Ok(truth(&r.eval(condition)?))
                })?;
                if keeps {
                    kept.push(item.clone());
                }
            }
            (items, first) = (Arc::new(Seq::new(self.budget, SeqKind::List, kept)?), 0);
        }
        if items.items.len() == first {
            return self.block(&parts.otherwise);
        }
        self.serial += 1;
        let id = self.serial;
        self.loops.push(Loop { id, items: items.clone(), first, at: 0, changed: None });
        for (at, item) in items.items[first..].iter().enumerate() {
            self.budget.work(20)?;
            if let Some(running) = self.loops.last_mut() {
                running.at = at;
            }
            let flow = self.within(self.scope, |r| {
                r.set(ast::LOOP, Value(Kind::Loop(id)))?;
                r.assign(&parts.target, item.clone())?;
                r.run(&parts.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        self.loops.pop();
        Ok(Flow::Next)
    }

    /// Runs something in a new scope within the one at this position.
    fn within<T>(&mut self, parent: usize, run: impl FnOnce(&mut Self) -> Eval<T>) -> Eval<T> {
        self.serial += 1;
        let outer = std::mem::replace(&mut self.scope, self.scopes.len());
        self.scopes.push(Scope { parent, serial: self.serial, names: Vec::new() });
        let found = run(self)?;
        self.scopes.truncate(self.scope);
        self.scope = outer;
        Ok(found)
    }

    fn lookup(&self, name: Name) -> Eval {
        let mut at = self.scope;
        while at > 0 {
            let scope = &self.scopes[at];
            self.budget.work(2 + scope.names.len() as u64)?;
            if let Some((_, value)) = scope.names.iter().find(|(known, _)| *known == name) {
                return Ok(value.clone());
            }
            at = scope.parent;
        }
        Ok(self.root[name].clone().unwrap_or_else(|| Value::missing(&self.tree.names[name])))
    }

    fn set(&mut self, name: Name, value: Value) -> Eval<()> {
        if self.scope == 0 {
            self.root[name] = Some(value);
            return Ok(());
        }
        let names = &mut self.scopes[self.scope].names;
        self.budget.work(2 + names.len() as u64)?;
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            // The search makes many names in a scope too much work long before they are too much memory.
            None => names.push((name, value)),
        }
        Ok(())
    }

    fn assign(&mut self, target: &'t Target, value: Value) -> Eval<()> {
        match target {
            Target::Name(name) => self.set(*name, value),
            Target::Attribute(name, attribute) => {
                let object = self.lookup(*name)?;
                self.set_attribute(&object, attribute, value)
            }
            Target::Tuple(targets) => {
                if let Kind::Undefined(name) = &value.0 {
                    return undefined(name);
                }
                let items = self.iterate(&value)?;
                let rest = items.rest();
                if rest.len() != targets.len() {
                    return refuse!("expected {} values to unpack, found {}", targets.len(), rest.len());
                }
                targets.iter().zip(rest).try_for_each(|(target, item)| self.assign(target, item.clone()))
            }
        }
    }

    /// A macro, with the scope that it is defined in.
    fn closure(&self, index: usize) -> Eval {
        self.budget.items::<u8>(0)?;
        let (scope, serial) = (self.scope, self.scopes[self.scope].serial);
        Ok(Value(Kind::Macro(Arc::new(Closure { index, scope, serial }))))
    }
}
