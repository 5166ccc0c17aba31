//! Widths of frames in a comparison.

use profile::merge::BASE_LABEL;

use super::tree::Weight;
use crate::report::context::Context;

/// Rule for the width of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WidthRule {
    /// Width is the change.
    Change,
    /// Width is the larger one of before and after.
    Larger,
}

impl WidthRule {
    /// Returns the rule for a view: `Larger` if it keeps its base separate.
    pub fn for_view(context: &Context) -> Self {
        let labels = &context.view.profile().labels;
        if labels.iter().any(|l| l.key == BASE_LABEL) {
            Self::Larger
        } else {
            Self::Change
        }
    }

    /// Returns the rule's name in the script.
    pub fn name(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Larger => "larger",
        }
    }

    /// Returns the width of a frame of this weight.
    pub fn width(self, weight: Weight) -> i128 {
        match self {
            Self::Change => weight.net().abs(),
            Self::Larger => weight.plus.max(weight.minus),
        }
    }
}
