//! Context of one walk over interpreter frames.

use super::layout::Layout;
use super::session::Session;
use unwind::inserted::Trail;

/// Context of one walk.
pub struct Walk<'a> {
    pub layout: &'a Layout,
    pub trail: &'a Trail<'a>,
    pub session: &'a Session<'a>,
}
