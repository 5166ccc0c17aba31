//! Context of one walk over interpreter frames.

use super::layout::Layout;
use super::session::Session;
use unwind::interpreter::NativeStack;

/// Context of one walk.
pub struct Walk<'a> {
    pub layout: &'a Layout,
    pub native_stack: &'a NativeStack<'a>,
    pub session: &'a Session<'a>,
}
