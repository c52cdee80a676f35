//! How operations use memory: what they read, and what they write.

use crate::Span;
use crate::args::Weight;

/// How an operation uses a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read(Span),
    /// Writes it, and perhaps reads it as well.
    Write(Span),
}

impl Access {
    /// The span.
    pub const fn span(self) -> Span {
        match self {
            Access::Read(span) | Access::Write(span) => span,
        }
    }
}

/// A field of arguments that refers to memory, or to none.
pub(crate) trait Field {
    fn span(self) -> Option<Span>;
}

impl Field for Span {
    fn span(self) -> Option<Span> {
        Some(self)
    }
}

impl Field for Option<Span> {
    fn span(self) -> Option<Span> {
        self
    }
}

impl Field for Weight {
    fn span(self) -> Option<Span> {
        Some(self.span)
    }
}

impl Field for Option<Weight> {
    fn span(self) -> Option<Span> {
        self.map(|weight| weight.span)
    }
}
