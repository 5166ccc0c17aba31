//! What is known of an address: the functions there, and where in their sources.

use std::rc::Rc;

/// A source-level frame. Frames of one function share their texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Name in the symbol table or the debug information.
    pub name: Rc<str>,
    /// Source file; empty when unknown.
    pub file: Rc<str>,
    /// Line; 0 when unknown.
    pub line: u32,
    /// Column; 0 when unknown.
    pub column: u32,
    /// Where the name is from.
    pub origin: Origin,
}

/// Where a name is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A table of symbols, or debug information that has the same name: it may be mangled.
    #[default]
    Symbol,
    /// Debug information with its name in the source, and its scopes.
    Source,
    /// Made from where the function begins, for there is no symbol.
    Made,
}

impl Frame {
    /// A function of which nothing but its name is known.
    pub fn named(name: Rc<str>) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Whether its name was made.
    pub fn is_made(&self) -> bool {
        self.origin == Origin::Made
    }
}

/// For each address its frames, innermost first; none where nothing is known.
pub type Frames = Vec<Vec<Frame>>;
