//! Frames: a function, and a position in its source file.

use std::rc::Rc;

/// A source-level frame. Frames of one function share its strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Function name in the symbol table or the debug information.
    pub name: Rc<str>,
    /// Source file; empty if unknown.
    pub file: Rc<str>,
    /// Line; 0 if unknown.
    pub line: u32,
    /// Column; 0 if unknown.
    pub column: u32,
    /// Origin of `name`.
    pub origin: Origin,
}

/// Origin of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The symbol table, or a linkage name in the debug information: may be mangled.
    #[default]
    Symbol,
    /// The debug information: the name in the source code, with its scopes.
    Source,
    /// Generated from the function's offset in the file, because there is no symbol.
    Synthetic,
}

impl Frame {
    /// Returns a frame of which only the function's name is known.
    pub fn named(name: Rc<str>) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Returns true if the name was generated.
    pub fn is_synthetic(&self) -> bool {
        self.origin == Origin::Synthetic
    }
}

/// Frames of each address, innermost first. Empty for an address without a name.
pub type Frames = Vec<Vec<Frame>>;
