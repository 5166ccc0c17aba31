//! The profile as JSON, for programs.
//!
//! One object; `version` changes when a field changes its meaning, new fields
//! may appear at any time:
//!
//! - `version`: 1
//! - `program`, `dumps`: paths
//! - `format`: of the first dump
//! - `interval`: bytes between samples on average; 1 when exact
//! - `columns`: `[{kind, unit}]`; `column`: index of the one shown; `total` in it
//! - `functions`: `[{name, file, line, flat, cum, flat_error?, cum_error?}]`,
//!   largest first; errors with `--ci`: half of the width of the interval at 95 %
//! - `frames`: `[{name, file, line, address, module}]`, referred to by stacks
//! - `stacks`: `[{frames, values, detail?}]`, frames leaf first; `detail` has
//!   the samples, ages and variances that this project's dumps carry
//! - `mappings`: `[{start, end, offset, build_id, path, past}]`, numbers in hex
//! - `facts`: what the dump says about itself; `intervals`, where the interval
//!   changed: `[{from_unix_ns, interval, overhead?}]` in order of time, the
//!   overhead as a share of the CPU time

use std::fmt::Write;

use anyhow::Result;
use heap_format::variance::half_width;
use heap_format::{Detail, Profile};

use super::context::Context;
use super::format::{Format, Needs};
use crate::graph::Graph;
use crate::nodes::Info;

/// `--json`.
pub const FORMAT: Format = Format {
    needs: Needs {
        trim: None,
        ..Needs::TABLE
    },
    ..Format::report("json", "Everything as JSON, for programs", render)
};

/// The profile as JSON.
fn render(context: &Context) -> Result<String> {
    let profile = context.view.profile();
    let mut json = Json::default();
    json.object(|json| {
        json.key("version").number(1);
        json.key("program")
            .optional(context.program.map(|p| p.to_string_lossy().into_owned()));
        json.key("dumps").list(&context.options.files, |json, f| {
            json.text(&f.to_string_lossy())
        });
        json.key("format").text(&profile.format.to_string());
        json.key("interval").number(profile.period);
        columns(json, context);
        functions(json, context);
        frames(json, context);
        stacks(json, context);
        mappings(json, profile);
        facts(json, profile);
    });
    json.out.push('\n');
    Ok(json.out)
}

fn columns(json: &mut Json, context: &Context) {
    json.key("columns")
        .list(&context.view.profile().sample_types, |json, t| {
            json.object(|json| {
                json.key("kind").text(&t.kind);
                json.key("unit").text(&t.unit);
            });
        });
    json.key("column").number(context.view.column());
    json.key("total").number(context.view.total());
}

fn functions(json: &mut Json, context: &Context) {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    json.key("functions")
        .list(&trimmed.graph.nodes, |json, node| {
            let info = context.nodes.info(node.id);
            json.object(|json| {
                json.key("name").text(context.nodes.name(node.id));
                place(json, info);
                json.key("flat").number(node.flat);
                json.key("cum").number(node.cum);
                if context.options.error_bars {
                    let half = |v: i64, variance| half_width(v as f64, variance).round();
                    json.key("flat_error")
                        .number(half(node.flat, node.flat_variance));
                    json.key("cum_error")
                        .number(half(node.cum, node.cum_variance));
                }
            });
        });
}

fn frames(json: &mut Json, context: &Context) {
    let ids: Vec<u32> = (0..context.nodes.count() as u32).collect();
    json.key("frames").list(&ids, |json, &id| {
        let info = context.nodes.info(id);
        json.object(|json| {
            json.key("name").text(context.nodes.name(id));
            place(json, info);
        });
    });
}

fn place(json: &mut Json, info: &Info) {
    if !info.file.is_empty() {
        json.key("file").text(&info.file);
    }
    if info.line != 0 {
        json.key("line").number(info.line);
    }
    if info.address != 0 {
        json.key("address").text(&format!("{:#x}", info.address));
    }
    if !info.object.is_empty() {
        json.key("module").text(&info.object);
    }
}

fn stacks(json: &mut Json, context: &Context) {
    let profile = context.view.profile();
    let stacks: Vec<(usize, &[u32])> = context.view.stacks().map(|(i, _, f)| (i, f)).collect();
    json.key("stacks").list(&stacks, |json, &(stack, frames)| {
        let shown = frames.iter().filter(|&&f| !context.view.is_hidden(f));
        let ids: Vec<u32> = shown
            .flat_map(|&f| context.nodes.of_location(f).iter().copied())
            .collect();
        json.object(|json| {
            json.key("frames").list(&ids, |json, id| json.number(id));
            json.key("values")
                .list(profile.values_of(stack), |json, v| json.number(v));
            if let Some(d) = profile.details.get(stack) {
                json.key("detail").object(|json| detail(json, d));
            }
        });
    });
}

fn detail(json: &mut Json, d: &Detail) {
    json.key("alloc_samples").number(d.alloc_samples);
    json.key("free_samples").number(d.free_samples);
    let fields = [
        ("alloc_objects", d.alloc_objects),
        ("alloc_bytes", d.alloc_bytes),
        ("freed_objects", d.freed_objects),
        ("freed_bytes", d.freed_bytes),
        ("live_age_ms_sum", d.live_age_ms_sum),
        ("freed_lifetime_ms_sum", d.freed_lifetime_ms_sum),
        ("alloc_variance", d.alloc_variance),
        ("live_variance", d.live_variance),
        ("alloc_object_variance", d.alloc_object_variance),
        ("live_object_variance", d.live_object_variance),
    ];
    for (name, value) in fields {
        // JSON knows no infinities.
        let value = if value.is_finite() { value } else { 0.0 };
        json.key(name).number(value);
    }
}

fn mappings(json: &mut Json, profile: &Profile) {
    json.key("mappings").list(&profile.mappings, |json, m| {
        json.object(|json| {
            json.key("start").text(&format!("{:#x}", m.start));
            json.key("end").text(&format!("{:#x}", m.end));
            json.key("offset").text(&format!("{:#x}", m.file_offset));
            json.key("build_id").text(&m.build_id.to_string());
            json.key("path").text(&m.path.to_string_lossy());
            json.key("past").number(m.past);
        });
    });
}

fn facts(json: &mut Json, profile: &Profile) {
    let facts = &profile.facts;
    json.key("facts").object(|json| {
        let exe = facts.exe.as_ref().map(|p| p.to_string_lossy().into_owned());
        let texts = [
            ("process", facts.process.clone()),
            ("exe", exe),
            ("boot_id", facts.boot_id.clone()),
            ("trigger", facts.trigger.clone()),
            ("ended", facts.ended.clone()),
        ];
        for (name, text) in texts.into_iter().filter_map(|(n, t)| Some((n, t?))) {
            json.key(name).text(&text);
        }
        let numbers = [
            ("pid", facts.pid.map(u64::from)),
            ("start_unix_ns", facts.start_unix_ns),
            ("end_unix_ns", facts.end_unix_ns),
            ("duration_ns", facts.duration_ns),
            ("sequence", facts.sequence),
        ];
        for (name, number) in numbers.into_iter().filter_map(|(n, v)| Some((n, v?))) {
            json.key(name).number(number);
        }
        json.key("exe_build_id")
            .text(&facts.exe_build_id.to_string());
        json.key("command_line")
            .list(&facts.command_line, |json, a| json.text(a));
        json.key("intervals").list(&facts.intervals, |json, p| {
            json.object(|json| {
                json.key("from_unix_ns").number(p.from_unix_ns);
                json.key("interval").number(p.interval);
                if let Some(millionths) = p.overhead {
                    json.key("overhead").number(f64::from(millionths) / 1e6);
                }
            });
        });
        for (name, map) in [
            ("counters", &facts.counters),
            ("allocator", &facts.allocator),
            ("memory", &facts.memory),
        ] {
            json.key(name)
                .object(|json| map.iter().for_each(|(k, v)| json.key(k).number(v)));
        }
    });
}

/// JSON under construction. Commas are put where a value follows another.
#[derive(Default)]
struct Json {
    out: String,
}

impl Json {
    fn separate(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with(['{', '[', ':']) {
            self.out.push(',');
        }
    }

    fn key(&mut self, name: &str) -> &mut Self {
        self.text(name);
        self.out.push(':');
        self
    }

    fn object(&mut self, fill: impl FnOnce(&mut Self)) {
        self.separate();
        self.out.push('{');
        fill(self);
        self.out.push('}');
    }

    fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Self, &T)) {
        self.separate();
        self.out.push('[');
        items.iter().for_each(|item| each(self, item));
        self.out.push(']');
    }

    /// A number or a truth value.
    fn number(&mut self, value: impl std::fmt::Display) {
        self.separate();
        // Writing to a string cannot fail.
        let _ = write!(self.out, "{value}");
    }

    fn optional(&mut self, text: Option<String>) {
        match text {
            Some(text) => self.text(&text),
            None => self.number("null"),
        }
    }

    fn text(&mut self, text: &str) {
        self.separate();
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.out.extend(['\\', c]),
                // Angle brackets and line separators too, so that the text can
                // stand inside a script.
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => self.escape(c),
                c if c.is_control() => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        // Writing to a string cannot fail.
        let _ = write!(self.out, "\\u{:04x}", u32::from(c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_escaped() {
        let mut json = Json::default();
        json.object(|json| {
            json.key("a\"\\\n</script>").text("\u{1}é\u{9b}");
            json.key("list").list(&[1, 2], |json, n| json.number(n));
            json.key("empty").object(|_| {});
            json.key("none").optional(None);
        });
        let expected = r#"{"a\"\\\u000a\u003c/script\u003e":"\u0001é\u009b","list":[1,2],"empty":{},"none":null}"#;
        assert_eq!(json.out, expected);
    }
}
