//! Un-sampling: scales sampled counts and sizes up to estimates.

/// Returns the number of objects that one sampled object with `size / interval = u` stands for.
pub(crate) fn weight(u: f64) -> f64 {
    -1.0 / (-u).exp_m1()
}

/// Inverts [`weight`].
pub(crate) fn inverse_weight(g: f64) -> f64 {
    -(-1.0 / g).ln_1p()
}

/// Scales up a record of `count` sampled objects with `size` bytes in total, like pprof and jeprof:
/// by the average size, truncated to integers. Returns objects and bytes.
pub fn unsample(count: i64, size: i64, interval: i64) -> (i64, i64) {
    if count == 0 || size == 0 {
        return (0, 0);
    }
    if interval <= 1 {
        return (count, size);
    }
    let average = size as f64 / count as f64;
    let scale = 1.0 / (1.0 - (-average / interval as f64).exp());
    ((count as f64 * scale) as i64, (size as f64 * scale) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_and_its_inverse_agree() {
        for exponent in -40..4 {
            let u = f64::from(exponent).exp2();
            let back = inverse_weight(weight(u));
            assert!((back / u - 1.0).abs() < 1e-9, "{u} came back as {back}");
        }
    }

    #[test]
    fn exact_profiles_are_unchanged() {
        assert_eq!(unsample(3, 300, 1), (3, 300));
        assert_eq!(unsample(3, 0, 512), (0, 0));
        let (objects, bytes) = unsample(1, 1 << 19, 1 << 19);
        assert_eq!((objects, bytes), (1, 829_411));
    }
}
