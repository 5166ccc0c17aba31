//! Colours of frames.
//!
//! Light colours are also attributes, so that viewers without style sheets show them. The style
//! sheet replaces them for dark colour schemes, on screens only.

use std::fmt::Write;

use callgraph::help;

use crate::nodes::Origin;

/// Number of hues of names.
const HUES: u32 = 8;
/// Number of shades of each hue.
const SHADES: u32 = 2;

/// Number of colour steps from hardly changed to wholly new or gone.
const STEPS: u32 = 8;

/// Class of frames whose colour depends neither on a name nor on a change: unnamed frames, merged
/// small frames, and the root.
pub const PLAIN: &str = "g";

/// Classes of kernel functions.
const KERNEL: [&str; SHADES as usize] = ["k0", "k1"];
/// Classes of JIT code.
const JIT: [&str; SHADES as usize] = ["j0", "j1"];
/// Classes of Python functions.
const PYTHON: [&str; SHADES as usize] = ["y0", "y1"];

/// Returns the class of a frame, by its name and origin. Names with the same first part (namespace
/// or module) have the same hue.
pub fn name_class(name: &str, origin: Origin) -> String {
    let shade = (hash(name) % SHADES) as usize;
    match origin {
        Origin::Kernel => return KERNEL[shade].to_owned(),
        Origin::Jit => return JIT[shade].to_owned(),
        Origin::Python => return PYTHON[shade].to_owned(),
        Origin::Program => {}
    }
    if is_placeholder(name) {
        return PLAIN.to_owned();
    }
    let hue = hash(first_part(name)) % HUES;
    format!("w{}", hue * SHADES + hash(name) % SHADES)
}

/// Returns the class of a frame in a comparison: `net` is its change, out of `whole`.
pub fn change_class(net: i128, whole: i128) -> String {
    let part = (net as f64 / whole as f64).abs();
    let part = if part.is_finite() { part.min(1.0) } else { 0.0 };
    let step = (part.sqrt() * f64::from(STEPS)).round();
    match (step as u32, net < 0) {
        (0, _) => PLAIN.to_owned(),
        (step, false) => format!("p{step}"),
        (step, true) => format!("m{step}"),
    }
}

/// Returns true if brackets enclose the whole name: `[libc.so.6]`, `<unknown>`. Methods of Rust
/// begin with a bracket too: `<Cache as Store>::get`, `[T]::sort`.
fn is_placeholder(name: &str) -> bool {
    let mut depth = 0;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'[' | b'<' => depth += 1,
            // An arrow of a return type is no bracket.
            b'>' if at > 0 && name.as_bytes()[at - 1] == b'-' => {}
            b']' | b'>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at > 0 && at + 1 == name.len();
        }
    }
    false
}

/// Returns the first part of a name: namespace or first word. For a method of a Rust type, returns
/// the first part of the type's name.
fn first_part(name: &str) -> &str {
    let name = name.trim_start_matches(['_', '<', '[', '&', '*']);
    let end = ["::", "_", ".", " ", "<", "(", ">", "]"]
        .iter()
        .filter_map(|mark| name.find(mark))
        .filter(|&at| at > 0)
        .min();
    &name[..end.unwrap_or(name.len())]
}

/// Hashes by FNV-1a, which is the same on every platform and in every version, unlike the standard
/// library's hash.
fn hash(text: &str) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = text.bytes().fold(0x811c_9dc5, mix);
    hash ^ (hash >> 15)
}

/// Returns all classes with their light and dark fills.
fn fills() -> Vec<(String, String, String)> {
    let mut fills = vec![(
        PLAIN.to_owned(),
        hex(40.0, 0.08, 0.86),
        hex(220.0, 0.06, 0.27),
    )];
    for shade in 0..SHADES as usize {
        let lift = 0.05 * shade as f64;
        let mut add = |class: &str, hue, vivid: f64| {
            let light = hex(hue, vivid, 0.74 + lift);
            let dark = hex(hue, vivid * 0.7, 0.29 + lift);
            fills.push((class.to_owned(), light, dark));
        };
        add(KERNEL[shade], 214.0, 0.55);
        add(JIT[shade], 128.0, 0.40);
        add(PYTHON[shade], 276.0, 0.50);
    }
    for hue in 0..HUES {
        for shade in 0..SHADES {
            let degrees = 8.0 + 46.0 * f64::from(hue) / f64::from(HUES - 1);
            let lift = 0.045 * f64::from(shade);
            let light = hex(degrees, 0.78, 0.71 + lift + 0.0004 * degrees);
            fills.push((
                format!("w{}", hue * SHADES + shade),
                light,
                hex(degrees, 0.48, 0.31 + lift),
            ));
        }
    }
    for step in 1..=STEPS {
        let intensity = f64::from(step) / f64::from(STEPS);
        for (sign, hue, vivid) in [('p', 12.0, 0.80), ('m', 132.0, 0.42)] {
            let light = hex(
                hue,
                vivid * (0.4 + 0.6 * intensity),
                0.90 - 0.24 * intensity,
            );
            let dark = hex(
                hue,
                0.10 + 0.55 * vivid * intensity,
                0.26 + 0.08 * intensity,
            );
            fills.push((format!("{sign}{step}"), light, dark));
        }
    }
    fills
}

/// Returns the light fill of a class.
pub fn fill(class: &str) -> String {
    let fills = fills();
    let found = fills.iter().find(|(name, _, _)| name == class);
    found.map_or_else(|| "#ddd".to_owned(), |(_, light, _)| light.clone())
}

/// Returns a colour in hex, from hue in degrees, saturation and lightness.
fn hex(hue: f64, saturation: f64, lightness: f64) -> String {
    let spread = saturation * lightness.min(1.0 - lightness);
    let channel = |offset: f64| {
        let k = (offset + hue / 30.0) % 12.0;
        let value = lightness - spread * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round().clamp(0.0, 255.0) as u8
    };
    format!(
        "#{:02x}{:02x}{:02x}",
        channel(0.0),
        channel(8.0),
        channel(4.0)
    )
}

/// Returns the style sheet.
pub fn sheet() -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for (class, bright, dim) in fills() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            light,
            ".flame rect.{class},.flame path.{class},.flame .{class} rect{{fill:{bright}}}"
        );
        let _ = writeln!(
            dark,
            ".flame rect.{class},.flame path.{class},.flame .{class} rect{{fill:{dim}}}"
        );
    }
    let states = include_str!("light.css");
    let night = include_str!("dark.css");
    format!(
        "{light}{states}{}@media screen and (prefers-color-scheme:dark){{\n{dark}{night}{}}}\n",
        help::STYLE,
        help::DARK_STYLE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_namespace_share_a_hue() {
        let name_class = |name: &str| name_class(name, Origin::Program);
        let hue = |name: &str| name_class(name)[1..].parse::<u32>().unwrap() / SHADES;
        assert_eq!(hue("alloc::vec::push"), hue("alloc::raw::grow"));
        assert_eq!(hue("_PyEval_Frame"), hue("PyEval_Call"));
        assert_eq!(name_class("[libc.so.6]"), PLAIN);
        assert_eq!(name_class("<unknown>"), PLAIN);
    }

    #[test]
    fn methods_of_rust_have_a_colour() {
        let name_class = |name: &str| name_class(name, Origin::Program);
        let hue = |name: &str| name_class(name)[1..].parse::<u32>().unwrap() / SHADES;
        for name in [
            "<app::Cache as app::Store>::get",
            "<fn(u8) -> u8 as app::Call>::call",
            "<[T] as app::Sort>::sort",
            "[T]::sort",
            "operator<<",
            "<alloc",
        ] {
            assert_ne!(name_class(name), PLAIN, "{name}");
        }
        assert_eq!(
            hue("<alloc::vec::Vec<T> as core::ops::Drop>::drop"),
            hue("alloc::raw::grow")
        );
    }

    #[test]
    fn growth_is_red_and_shrinking_green() {
        assert_eq!(change_class(10, 10), format!("p{STEPS}"));
        assert_eq!(change_class(-10, 10), format!("m{STEPS}"));
        assert_eq!(change_class(0, 10), PLAIN);
        assert_eq!(change_class(0, 0), PLAIN);
        assert_eq!(change_class(1, 0), PLAIN);
    }

    #[test]
    fn every_class_has_a_colour() {
        let sheet = sheet();
        for net in -20..=20 {
            let class = change_class(net, 20);
            assert!(
                sheet.contains(&format!(".flame .{class} rect{{")),
                "{class}"
            );
        }
        for i in 0..600 {
            let origin = [Origin::Program, Origin::Kernel, Origin::Jit, Origin::Python][i % 4];
            let class = name_class(&format!("name{i}::x{i}"), origin);
            assert!(
                sheet.contains(&format!(".flame .{class} rect{{")),
                "{class}"
            );
            assert_ne!(fill(&class), "#ddd");
        }
    }

    #[test]
    fn colours_are_those_of_their_hue() {
        assert_eq!(hex(0.0, 1.0, 0.5), "#ff0000");
        assert_eq!(hex(120.0, 1.0, 0.5), "#00ff00");
        assert_eq!(hex(240.0, 1.0, 0.5), "#0000ff");
        assert_eq!(hex(77.0, 0.0, 1.0), "#ffffff");
    }
}
