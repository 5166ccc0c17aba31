//! The few statistics that the tables are made of.

/// Returns the middle of the values; of two middle ones their mean. NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Returns half the range that the middle half of the values covers: how far to trust a median.
pub fn spread(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => (sorted[(3 * (n - 1)).div_ceil(4)] - sorted[(n - 1) / 4]) / 2.0,
    }
}

/// Returns the root of the mean square.
pub fn rms(values: &[f64]) -> f64 {
    mean(&values.iter().map(|v| v * v).collect::<Vec<_>>()).sqrt()
}

/// Returns the mean. NaN for none.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_its_surroundings() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(spread(&[5.0, 1.0, 2.0, 3.0, 4.0]), 1.0);
        assert_eq!(rms(&[3.0, -3.0]), 3.0);
        assert_eq!(mean(&[1.0, 2.0]), 1.5);
    }
}
