//! Widths of frames in a comparison.

use heap_format::merge::BASE_LABEL;

use super::tree::Weight;
use crate::report::context::Context;

/// Width of a frame that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// As wide as the change.
    Change,
    /// As wide as the larger one of before and after.
    Larger,
}

impl Rule {
    /// The rule for a view: the larger one if it keeps its base apart.
    pub fn for_view(context: &Context) -> Self {
        let labels = &context.view.profile().labels;
        if labels.iter().any(|l| l.key == BASE_LABEL) {
            Self::Larger
        } else {
            Self::Change
        }
    }

    /// Name of the rule in the script.
    pub fn name(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Larger => "larger",
        }
    }

    /// Width of a frame of this weight.
    pub fn width(self, weight: Weight) -> i128 {
        match self {
            Self::Change => weight.net().abs(),
            Self::Larger => weight.plus.max(weight.minus),
        }
    }
}
