//! Calls: arguments, macros, functions and methods.

use super::Renderer;
use crate::arguments::Args;
use crate::ast::{self, Arguments, Expr, Name};
use crate::error::{Eval, Fault, refuse};
use crate::functions;
use crate::methods;
use crate::printable::one_line;
use crate::text::Text;
use crate::value::{Closure, Kind, Value, undefined};
use std::sync::Arc;

impl<'t> Renderer<'t> {
    pub(super) fn arguments(&mut self, given: &'t Arguments) -> Eval<Args> {
        let mut args = Args { positional: self.each(&given.positional)?, named: Vec::new() };
        for (name, value) in &given.named {
            args.named.push((name.clone(), self.eval(value)?));
        }
        if let Some(list) = &given.unpacked {
            let list = self.eval(list)?;
            args.positional.extend(self.taken(&list)?);
        }
        if let Some(mapping) = &given.unpacked_named {
            let mapping = self.eval(mapping)?;
            let Some(dict) = mapping.as_dict() else {
                return refuse!("the argument behind ** must be a mapping");
            };
            self.budget.items::<(Arc<Text>, Value)>(dict.entries.len())?;
            for (key, value) in &dict.entries {
                let Some(name) = key.0.as_text() else { return refuse!("keywords must be strings") };
                args.named.push((name.clone(), value.clone()));
            }
        }
        Ok(args)
    }

    /// `value.name(…)`: a method that is called at once is not made a value.
    pub(super) fn call_attribute(&mut self, value: &Value, name: &Arc<Text>, given: &'t Arguments) -> Eval {
        if let Some(method) = methods::find(value, name.as_str()) {
            let args = self.arguments(given)?;
            return method.call(self, value, args);
        }
        let callee = self.attribute(value, name)?;
        let args = self.arguments(given)?;
        self.call(&callee, args)
    }

    pub(crate) fn call(&mut self, callee: &Value, args: Args) -> Eval {
        match &callee.0 {
            Kind::Macro(closure) => self.call_macro(closure, None, args),
            Kind::Function(function) => function.call(self, &Value::NONE, args),
            Kind::Method(bound) => bound.method.call(self, &bound.receiver, args),
            Kind::Object(at) => functions::call_object(self, *at),
            Kind::Undefined(name) => undefined(name),
            _ => refuse!("'{}' object is not callable", callee.type_name()),
        }
    }

    /// A call block: a call of a macro, which gets `caller`.
    pub(super) fn call_with(&mut self, callee: &'t Expr, given: &'t Arguments, macro_index: usize) -> Eval {
        let caller = self.closure(macro_index)?;
        let callee = self.eval(callee)?;
        let args = self.arguments(given)?;
        match &callee.0 {
            Kind::Macro(closure) => self.call_macro(closure, Some(caller), args),
            _ => Err(Fault::Unsupported("a `call` of what is no macro".into())),
        }
    }

    fn call_macro(&mut self, closure: &Closure, caller: Option<Value>, args: Args) -> Eval {
        let defined = &self.tree.macros[closure.index];
        if self.scopes.get(closure.scope).is_none_or(|scope| scope.serial != closure.serial) {
            return Err(Fault::Unsupported("a macro behind the end of its block".into()));
        }
        self.budget.work(50)?;
        let line = self.line;
        let text = self.captured(|r| {
            r.within(closure.scope, |r| {
                r.bind_parameters(defined, caller, args)?;
                r.run(&defined.body)
            })
        })?;
        self.line = line;
        Ok(text)
    }

    /// Assigns a macro's parameters in its scope, in their order: a default sees those before it.
    fn bind_parameters(&mut self, defined: &'t ast::Macro, caller: Option<Value>, args: Args) -> Eval<()> {
        let names = &self.tree.names;
        let shown = || one_line(names[defined.name].as_str());
        let by_name = |args: &mut Args, name: Name| -> Eval<Option<Value>> {
            let at = args.position(self.budget, names[name].as_str())?;
            Ok(at.map(|at| args.named.remove(at).1))
        };
        let has_caller = caller.is_some();
        let (mut args, mut caller) = (args, caller);
        let mut positional = std::mem::take(&mut args.positional).into_iter();
        for (parameter, default) in &defined.parameters {
            let given = match (positional.next(), by_name(&mut args, *parameter)?) {
                (Some(_), Some(_)) => {
                    return refuse!(
                        "macro '{}' got '{}' twice",
                        shown(),
                        one_line(names[*parameter].as_str())
                    );
                }
                (given, None) | (None, given) => given,
            };
            let given = given.or_else(|| caller.take_if(|_| *parameter == ast::CALLER));
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default)?,
                (None, None) => Value::missing(&names[*parameter]),
            };
            self.set(*parameter, value)?;
        }
        if defined.uses.caller {
            let given = by_name(&mut args, ast::CALLER)?.or(caller);
            self.set(ast::CALLER, given.unwrap_or_else(|| Value::missing(&names[ast::CALLER])))?;
        } else if has_caller {
            return refuse!("macro '{}' does not use `caller`", shown());
        }
        let rest: Vec<Value> = positional.collect();
        if defined.uses.varargs {
            self.set(ast::VARARGS, Value::tuple(self.budget, rest)?)?;
        } else if !rest.is_empty() {
            let takes = defined.parameters.len();
            return refuse!("macro '{}' takes not more than {takes} argument(s)", shown());
        }
        if defined.uses.kwargs {
            self.set(ast::KWARGS, args.mapping(self.budget)?)?;
        } else if let Some((unknown, _)) = args.named.first() {
            let unknown = one_line(unknown.as_str());
            return refuse!("macro '{}' takes no keyword argument '{unknown}'", shown());
        }
        Ok(())
    }
}
