//! What a user of the crate calls: parse, then render.

use crate::ast::Tree;
use crate::error::Result;
use crate::value::Value;
use crate::{parser, render};
use std::ops::Range;
use std::time::SystemTime;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    tree: Tree,
}

/// What a template sees.
#[derive(Clone, Debug)]
pub struct Context {
    variables: Vec<(String, Value)>,
    now: SystemTime,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text. Special tokens are spelled out in it.
    pub text: String,
    /// Ranges of its bytes that came from the conversation, sorted and disjoint: special tokens are not meant
    /// there.
    pub literal: Vec<Range<usize>>,
}

impl Context {
    /// Nothing, at this time, which `strftime_now` prints in UTC.
    pub fn new(now: SystemTime) -> Self {
        Self { variables: Vec::new(), now }
    }

    /// Adds a variable; of equal names the last counts.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.variables.push((name.into(), value.into()));
    }
}

impl Template {
    /// Parses a source.
    ///
    /// # Errors
    /// Says where the source is no Jinja, or what in it is not supported, or which bound it exceeds.
    pub fn parse(source: &str) -> Result<Self> {
        Ok(Self { tree: parser::parse(source)? })
    }

    /// Renders the template.
    ///
    /// # Errors
    /// The template's own exception, what Python would refuse as well, or the bound that it hit.
    pub fn render(&self, context: &Context) -> Result<Rendered> {
        let text = render::render(&self.tree, &context.variables, context.now)?;
        let (text, literal) = text.into_parts();
        Ok(Rendered { text, literal })
    }
}
