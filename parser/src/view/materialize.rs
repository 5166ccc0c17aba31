//! Converts a view to a profile, for outputs that are profiles.

use std::collections::HashMap;

use profile::Profile;
use profile::merge::BASE_LABEL;

use super::{View, ViewStack};

impl View {
    /// Returns the profile without everything that the view drops.
    pub fn materialize(&self) -> Profile {
        let mut out = self.profile.without_stacks();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        let mut stacks = vec![None; self.profile.stacks.len()];
        for ViewStack {
            index: stack,
            frames,
            ..
        } in self.stacks()
        {
            stacks[stack] = Some(out.stacks.len() as u32);
            let visible = frames.iter().filter(|&&f| !self.is_hidden(f));
            let frames: Vec<u32> = visible
                .map(|&f| {
                    let next = out.locations.len() as u32;
                    *numbers.entry(f).or_insert_with(|| {
                        let mut location = self.profile.locations[f as usize];
                        let lines = self.lines(f);
                        location.first_line = out.lines.len() as u32;
                        location.line_count = lines.len() as u32;
                        out.lines.extend_from_slice(lines);
                        out.locations.push(location);
                        next
                    })
                })
                .collect();
            out.push_stack_of(&self.profile, stack, &frames);
        }
        let number = |stack: u32| stacks.get(stack as usize).copied().flatten();
        let moments = self.profile.moments.iter().map(|m| m.renumbered(number));
        out.moments = moments.collect();
        out.labels.retain(|l| l.key != BASE_LABEL);
        out
    }
}
