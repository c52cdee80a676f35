//! A template as a tree. Chains (`a.b.c`, `a + b + c`, `not not a`, `elif`) are lists, so that a tree is only as
//! deep as its brackets and blocks, which the parser bounds.

use crate::arguments::Builtin;
use crate::text::Text;
use crate::value::Value;
use std::sync::Arc;

/// A name by its position in [`Tree::names`].
pub(crate) type Name = usize;

/// Names that the renderer assigns; their numbers are their positions here.
pub(crate) const FIXED_NAMES: [&str; 4] = ["loop", "caller", "varargs", "kwargs"];
pub(crate) const LOOP: Name = 0;
pub(crate) const CALLER: Name = 1;
pub(crate) const VARARGS: Name = 2;
pub(crate) const KWARGS: Name = 3;

#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) body: Vec<Statement>,
    pub(crate) names: Vec<Arc<Text>>,
    /// Macros and the bodies of call blocks.
    pub(crate) macros: Vec<Macro>,
}

#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    pub(crate) kind: StatementKind,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Text(String),
    Print(Expr),
    If(Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    For(Box<For>),
    Set(Target, Expr),
    With(Vec<(Target, Expr)>, Vec<Statement>),
    /// Defines a macro under its own name.
    Macro(usize),
    /// What transformers marks for training: a scope that prints its body.
    Generation(Vec<Statement>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) items: Expr,
    pub(crate) condition: Option<Expr>,
    pub(crate) body: Vec<Statement>,
    pub(crate) otherwise: Vec<Statement>,
}

/// What is assigned to.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Name),
    /// An attribute of a namespace.
    Attribute(Name, Arc<Text>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<(Name, Option<Expr>)>,
    pub(crate) body: Vec<Statement>,
    /// Whether the body names `varargs`, `kwargs` and `caller`: only then it takes them.
    pub(crate) uses: Uses,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) varargs: bool,
    pub(crate) kwargs: bool,
    pub(crate) caller: bool,
}

#[derive(Debug)]
pub(crate) enum Expr {
    Constant(Value),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// Signs from the outermost on; true for minus.
    Signed(Vec<bool>, Box<Expr>),
    /// `not`, or with `true` its double: Python's truth.
    Not(bool, Box<Expr>),
    /// Operators of one precedence, from left to right.
    Chain(Box<Expr>, Vec<(&'static str, Expr)>),
    Concat(Vec<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Compare(Box<Expr>, Vec<(&'static str, Expr)>),
    /// `value if condition else …`: pairs of condition and value, and what is left.
    Conditional(Vec<(Expr, Expr)>, Option<Box<Expr>>),
    /// What a block prints.
    Block(Vec<Statement>),
    /// A call of a macro with the one of this index as `caller`.
    CallBlock(Box<Expr>, Arguments, usize),
    /// What follows a value: attributes, items, calls, filters, tests.
    Post(Box<Expr>, Vec<Post>),
}

#[derive(Debug)]
pub(crate) enum Post {
    Attribute(Arc<Text>),
    Item(Box<Expr>),
    /// Start, stop and step, `None` where one is not given.
    Slice(Box<[Expr; 3]>),
    Call(Arguments),
    Filter(&'static Builtin, Arguments),
    /// A filter or test that is not known, or not supported; refused when it is reached.
    Missing(String),
    /// A test, its arguments, and whether it is negated.
    Test(&'static Builtin, Arguments, bool),
}

#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<Text>, Expr)>,
    /// `*list` and `**mapping`.
    pub(crate) unpacked: Option<Box<Expr>>,
    pub(crate) unpacked_named: Option<Box<Expr>>,
}
