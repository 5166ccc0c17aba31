//! Quality of the CPU numbers: time without samples, names or complete stacks. Corresponds to what
//! `mem_parser` shows for a profile.

use cpu::Process;
use profile::cpu::Sampling;
use serde_json::{Value, json};

/// Parts of a process's CPU time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Total, by the process's clock.
    pub total: u64,
    /// Number of samples.
    pub samples: u64,
    /// Time in truncated stacks.
    pub truncated: u64,
    /// Time without samples.
    pub not_sampled: u64,
    /// Time in functions without a name.
    pub unnamed: u64,
    /// Time in the kernel, if it may not be sampled.
    pub hidden: u64,
}

impl Quality {
    /// Computes the values that are known without a process's stacks.
    pub fn new(process: &Process) -> Self {
        Self {
            total: process.cpu_ns(),
            samples: process.counts.samples,
            not_sampled: process.unsampled_ns(),
            hidden: process.counts.hidden_ns,
            ..Self::default()
        }
    }

    /// Formats the values in one line.
    pub fn text(&self, sampling: &Sampling) -> String {
        let due_samples = self.samples.saturating_add(sampling.lost);
        let lost = match sampling.lost {
            0 => "0".to_owned(),
            lost => format!("{lost} ({})", share(lost, due_samples)),
        };
        let parts = [
            (self.truncated, "truncated"),
            (self.not_sampled, "not sampled"),
            (self.unnamed, "without a name"),
        ];
        let parts = parts.map(|(ns, label)| format!("{} {label}", share(ns, self.total)));
        let hidden = sampling
            .kernel_hidden
            .as_ref()
            .map(|why| match self.hidden {
                0 => format!("; kernel hidden: {why}"),
                ns => format!("; kernel hidden ({}): {why}", share(ns, self.total)),
            });
        format!(
            "lost {lost}; of the time {}{}",
            parts.join(", "),
            hidden.unwrap_or_default()
        )
    }

    /// Formats the values as JSON, with the names that `mem_parser --json` uses.
    pub fn json(&self, sampling: &Sampling) -> Value {
        json!({
            "engine": sampling.engine,
            "mode": sampling.mode.name(),
            "rate": sampling.rate,
            "process_ns": self.total,
            "lost": sampling.lost,
            "kernel_hidden": sampling.kernel_hidden,
            "fallbacks": sampling.fallbacks,
            "samples": self.samples,
            "truncated_ns": self.truncated,
            "not_sampled_ns": self.not_sampled,
            "unnamed_ns": self.unnamed,
            "hidden_ns": self.hidden,
        })
    }
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_are_reported() {
        let quality = Quality {
            total: 1000,
            samples: 99,
            truncated: 5,
            not_sampled: 20,
            unnamed: 300,
            hidden: 0,
        };
        let mut sampling = Sampling::default();
        let text = quality.text(&sampling);
        let parts = "of the time 0.5 % truncated, 2.0 % not sampled, 30.0 % without a name";
        assert_eq!(text, format!("lost 0; {parts}"));
        sampling.lost = 1;
        sampling.kernel_hidden = Some("it may not be".to_owned());
        let text = quality.text(&sampling);
        let hidden = "kernel hidden: it may not be";
        assert_eq!(text, format!("lost 1 (1.0 %); {parts}; {hidden}"));
        let hidden = Quality {
            hidden: 100,
            ..quality
        };
        let text = hidden.text(&sampling);
        assert!(
            text.ends_with("kernel hidden (10.0 %): it may not be"),
            "{text}"
        );
        let json = hidden.json(&sampling);
        assert_eq!(
            (&json["lost"], &json["hidden_ns"]),
            (&1.into(), &100.into())
        );
        assert_eq!(
            Quality::default().text(&Sampling::default())[..7],
            *"lost 0;"
        );
    }
}
