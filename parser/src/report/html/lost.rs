//! Tab with the result of a leak check: lost objects by leak group.

use std::borrow::Cow;
use std::collections::HashMap;

use super::tab::{Data, PageContext, ProfileKind, Tab};
use crate::json;
use crate::report::context::Context;
use crate::suspects::site::{Site, UserCode};
use crate::view::ViewStack;
use profile::leaks::LEAK_GROUP_LABEL;
use profile::merge::BASE_LABEL;
use profile::printable::printable;
use profile::variance::half_width;
use profile::{Detail, LEAK_LABEL, LabelValue, LeakCheck, Loss, Profile, age};
use serde::Serialize;

/// The tab of a leak check.
pub const TAB: Tab = Tab {
    profiles: ProfileKind::Memory,
    script: include_str!("lost.js"),
    data: Some(Data {
        key: "lost",
        json: object,
    }),
};

/// Maximum number of rows.
const MAX_ROWS: usize = 300;
/// Maximum number of stacks below a row.
const MAX_MEMBERS: usize = 20;
/// Maximum number of frames of a stack, innermost first.
const MAX_FRAMES: usize = 40;

/// Data of the tab: facts about a leak check, and rows.
#[derive(Serialize)]
struct Check<'a> {
    live: u64,
    /// Duration of the session, in seconds.
    duration: Option<f64>,
    /// Time for which the process was stopped; `None` if it kept running.
    pause_ms: Option<f64>,
    searches: u32,
    searched: u64,
    notes: Vec<Cow<'a, str>>,
    suppressed: Vec<Suppressed<'a>>,
    rows: Vec<Row<'a>>,
    left_out: usize,
}

#[derive(Serialize)]
struct Suppressed<'a> {
    objects: u64,
    bytes: u64,
    template: Cow<'a, str>,
}

/// Objects lost directly, together with those lost only through them.
#[derive(Serialize)]
struct Row<'a> {
    how: &'static str,
    bytes: f64,
    /// Half-width of the 95 % confidence interval of `bytes`.
    error: f64,
    objects: f64,
    /// Bytes of other objects that are lost only because these are.
    kept_bytes: f64,
    /// Half-width of the 95 % confidence interval of `kept_bytes`.
    kept_error: f64,
    kept_objects: f64,
    age: Option<f64>,
    /// Half-width of the 95 % confidence interval of `age`, if known.
    age_error: Option<f64>,
    site: Option<SourceLine>,
    stack: Vec<Cow<'a, str>>,
    /// Number of further frames.
    more: usize,
    members: Vec<Member<'a>>,
    members_left_out: usize,
}

/// A stack whose objects are lost together with others.
#[derive(Serialize)]
struct Member<'a> {
    how: &'static str,
    bytes: f64,
    error: f64,
    objects: f64,
    stack: Vec<Cow<'a, str>>,
}

/// Line of the user's own code that allocates. Its name and file are spelled as in the source tab.
#[derive(Serialize)]
struct SourceLine {
    short: String,
    name: String,
    file: String,
    line: u32,
}

/// Sums of equal stacks with the same kind of loss.
#[derive(Default)]
struct Sums {
    bytes: f64,
    variance: f64,
    objects: f64,
    detail: Detail,
    site: Option<Site>,
}

impl Sums {
    fn error(&self) -> f64 {
        round(half_width(self.bytes, self.variance))
    }

    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.variance += other.variance;
        self.objects += other.objects;
        self.detail.add(&other.detail);
    }
}

/// Sums of the stacks of one leak group. The key is the kind of loss and the stack's entries in
/// [`Context::nodes`], innermost first.
type Group = HashMap<(Loss, Vec<u32>), Sums>;

/// Key of a group: its number, or the stack if it has none.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Number(i64),
    Stack(Vec<u32>),
}

fn object(page: &PageContext) -> String {
    let context = page.context;
    let profile = context.view.profile();
    let check = profile.facts.leak_check.as_ref();
    json::embedded(&check.map(|facts| check_data(context, facts)))
}

fn check_data<'a>(context: &Context<'a>, facts: &'a LeakCheck) -> Check<'a> {
    let groups = groups(context);
    let mut rows: Vec<Row<'a>> = groups.into_values().map(|g| row(context, g)).collect();
    let size = |row: &Row| row.bytes + row.kept_bytes;
    rows.sort_by(|a, b| size(b).total_cmp(&size(a)).then(a.stack.cmp(&b.stack)));
    let left_out = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    let duration = context.view.profile().facts.duration_ns;
    let suppressed = |used: &'a profile::Suppressed| Suppressed {
        objects: used.objects,
        bytes: used.bytes,
        template: printable(&used.template),
    };
    Check {
        live: facts.live_bytes,
        duration: duration.map(|ns| (ns as f64 / 1e6).round() / 1e3),
        pause_ms: facts.pause_ns.map(|ns| (ns as f64 / 1e5).round() / 10.0),
        searches: facts.searches,
        searched: facts.searched_bytes,
        notes: facts.notes.iter().map(|note| printable(note)).collect(),
        suppressed: facts.suppressed.iter().map(suppressed).collect(),
        rows,
        left_out,
    }
}

/// Kind of loss of the objects of a stack.
#[derive(Clone, Copy)]
struct StackLoss {
    loss: Loss,
    /// Number of the leak group; `None` if there is none.
    group: Option<i64>,
}

/// Returns the loss of each stack; `None` for stacks of a base.
fn losses(profile: &Profile) -> Vec<Option<StackLoss>> {
    let direct = StackLoss {
        loss: Loss::Direct,
        group: None,
    };
    let mut losses = vec![Some(direct); profile.stacks.len()];
    for label in &profile.labels {
        let Some(slot) = losses.get_mut(label.stack as usize) else {
            continue;
        };
        let Some(stack_loss) = slot else {
            continue;
        };
        match (label.key.as_str(), &label.value) {
            (LEAK_LABEL, LabelValue::Text(word)) => {
                stack_loss.loss = Loss::from_word(word).unwrap_or(stack_loss.loss);
            }
            (LEAK_GROUP_LABEL, LabelValue::Number(number, _)) => stack_loss.group = Some(*number),
            (BASE_LABEL, _) => *slot = None,
            _ => {}
        }
    }
    losses
}

fn groups(context: &Context) -> HashMap<Key, Group> {
    let view = context.view;
    let nodes = context.nodes;
    let profile = view.profile();
    let columns = ["inuse_space", "inuse_objects"].map(|kind| profile.type_index(kind));
    let [Some(space), Some(count)] = columns else {
        return HashMap::new();
    };
    let own = UserCode::new(profile);
    let losses = losses(profile);
    let mut groups: HashMap<Key, Group> = HashMap::new();
    for ViewStack {
        index: stack,
        frames,
        ..
    } in view.stacks()
    {
        let values = profile.values_of(stack);
        let Some(StackLoss {
            loss,
            group: number,
        }) = losses[stack]
        else {
            continue;
        };
        if values[space] <= 0 {
            continue;
        }
        let visible = frames.iter().filter(|&&f| !view.is_hidden(f));
        let entries = visible.flat_map(|&f| nodes.of_location(f).iter().copied());
        let entries: Vec<u32> = entries.collect();
        let key = number.map_or_else(|| Key::Stack(entries.clone()), Key::Number);
        let group = groups.entry(key).or_default();
        let sums = group.entry((loss, entries)).or_insert_with(|| Sums {
            site: own.innermost_site(view, frames),
            ..Sums::default()
        });
        sums.bytes += values[space] as f64;
        sums.objects += values[count] as f64;
        sums.variance += view.error_in(stack, space).variance;
        if let Some(detail) = profile.details.get(stack) {
            sums.detail.add(detail);
        }
    }
    groups
}

/// Stack of a leak group.
struct LostStack {
    loss: Loss,
    /// Entries in [`Context::nodes`], innermost first.
    entries: Vec<u32>,
    sums: Sums,
}

/// Returns a group as a row: its direct losses, and below them all its stacks, largest first.
fn row<'a>(context: &Context<'a>, group: Group) -> Row<'a> {
    let stacks = group.into_iter().map(|((loss, entries), sums)| LostStack {
        loss,
        entries,
        sums,
    });
    let mut stacks: Vec<LostStack> = stacks.collect();
    stacks.sort_by(|a, b| {
        let is_indirect = |stack: &LostStack| stack.loss == Loss::Indirect;
        is_indirect(a)
            .cmp(&is_indirect(b))
            .then(b.sums.bytes.total_cmp(&a.sums.bytes))
            .then_with(|| (a.loss, &a.entries).cmp(&(b.loss, &b.entries)))
    });
    let mut by_itself = Sums::default();
    let mut kept = Sums::default();
    let has_cause = stacks.first().is_some_and(|s| s.loss != Loss::Indirect);
    for stack in &stacks {
        if has_cause && stack.loss == Loss::Indirect {
            kept.add(&stack.sums);
        } else {
            by_itself.add(&stack.sums);
        }
    }
    let names = |entries: &[u32]| -> Vec<Cow<'a, str>> {
        let shown = entries.iter().take(MAX_FRAMES);
        shown.map(|&e| printable(context.nodes.name(e))).collect()
    };
    let members = stacks.iter().skip(1);
    let members = members.map(|stack| Member {
        how: stack.loss.word(),
        bytes: round(stack.sums.bytes),
        error: stack.sums.error(),
        objects: round(stack.sums.objects),
        stack: names(&stack.entries),
    });
    let members: Vec<Member> = members.take(MAX_MEMBERS).collect();
    let first = stacks.first();
    let loss = first.map_or(Loss::Direct, |stack| stack.loss);
    let entries = first.map_or(&[][..], |stack| &stack.entries[..]);
    let site = first.and_then(|stack| stack.sums.site.as_ref());
    let has_live = by_itself.detail.live_objects() > 0.0;
    Row {
        how: loss.word(),
        bytes: round(by_itself.bytes),
        error: by_itself.error(),
        objects: round(by_itself.objects),
        kept_bytes: round(kept.bytes),
        kept_error: kept.error(),
        kept_objects: round(kept.objects),
        age: has_live.then(|| round(by_itself.detail.mean_age_ms())),
        age_error: age::error(&by_itself.detail).map(f64::ceil),
        site: site.map(|site| SourceLine {
            short: printable(&site.short()).into_owned(),
            name: printable(&site.function).into_owned(),
            file: printable(&site.file).into_owned(),
            line: site.line,
        }),
        stack: names(entries),
        more: entries.len().saturating_sub(MAX_FRAMES),
        members_left_out: (stacks.len() - 1).saturating_sub(members.len()),
        members,
    }
}

/// Rounds to an integer. Returns 0 for infinity and NaN, which JSON cannot represent.
fn round(value: f64) -> f64 {
    if value.is_finite() {
        value.round()
    } else {
        0.0
    }
}
