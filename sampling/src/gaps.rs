//! Arithmetic of sampling: gaps between samples, and weights.
//!
//! Bytes are sampled as a Poisson process: the gap to the next sampled byte is exponential with
//! mean `interval`, drawn again after each sample (the process has no memory). An allocation of n
//! bytes is sampled with probability p = 1 - exp(-n / interval) and stands for 1 / p objects, so
//! that sums are unbiased (Horvitz and Thompson 1952). The logarithm and the exponential are
//! computed here, in about 3 ns each: the agent cannot depend on libm.

use shm_protocol::header;

/// Source of the random gaps of one thread: xorshift64* (Vigna 2016).
#[derive(Clone, Copy, Debug)]
pub struct Gaps {
    state: u64,
}

impl Gaps {
    /// Creates a generator. Any seed is valid.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mixed = (seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Self {
            state: (mixed ^ (mixed >> 31)) | 1,
        }
    }

    #[inline]
    fn draw(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns true with probability 2^-`step`; `step` is below 64.
    #[inline]
    pub fn is_one_in_pow2(&mut self, step: u32) -> bool {
        step == 0 || self.draw() >> (64 - step) == 0
    }

    /// Draws a number from 1 to 2 · `mean` - 1, all with the same probability. `mean` is not 0.
    #[inline]
    pub fn draw_around(&mut self, mean: u32) -> u32 {
        let numbers = u64::from(2 * mean - 1);
        1 + (((self.draw() >> 32) * numbers) >> 32) as u32
    }

    /// Draws the number of bytes until the next sample: the floor of an exponential of mean
    /// `interval`, so that P(gap < n) = 1 - exp(-n / interval) for every whole n. Returns -1 for
    /// interval 1: every allocation is sampled, whatever its size.
    #[inline]
    pub fn draw_gap(&mut self, interval: f64) -> i64 {
        if interval <= 1.0 {
            return -1;
        }
        let random = self.draw() | 1;
        let gap = minus_ln(random) * interval;
        // Below this, the conversion to an integer is one instruction. Larger gaps never expire.
        const NEVER: f64 = (1u64 << 62) as f64;
        if gap < NEVER {
            // SAFETY: the gap is not negative, because the logarithm is not, and neither NaN nor
            // too large.
            unsafe { gap.to_int_unchecked() }
        } else {
            1 << 62
        }
    }
}

/// Returns -ln(r / 2^64) for odd r, within 4e-8.
#[inline]
fn minus_ln(r: u64) -> f64 {
    const LN_2: f64 = core::f64::consts::LN_2;
    // log2 on [1, 2) around 1.5: interpolated at Chebyshev nodes, error below 6e-8.
    const LOG2: [f64; 9] = [
        0.584_962_500_721_156_2,
        0.961_795_985_384_830_1,
        -0.320_598_471_176_648_76,
        0.142_525_928_431_676_1,
        -0.071_266_803_089_911_03,
        0.037_466_490_279_246_49,
        -0.020_790_033_199_329_018,
        0.014_770_571_157_863_009,
        -0.008_665_699_308_173_779,
    ];
    let zeros = r.leading_zeros();
    let mantissa = f64::from_bits(((r << zeros << 1) >> 12) | 0x3ff0_0000_0000_0000);
    let log2 = polynomial(&LOG2, mantissa - 1.5);
    (f64::from(zeros + 1) - log2) * LN_2
}

/// Returns the number of objects that a sampled allocation stands for, 1 / (1 - exp(-bytes /
/// interval)), within 1e-7. 1 for interval 1.
#[inline]
#[must_use]
pub fn weight(bytes: u64, interval: f64) -> f32 {
    if interval <= 1.0 {
        return 1.0;
    }
    let x = bytes.max(1) as f64 / interval;
    let weight = if x < 1.0 {
        // Bernoulli series of x / (1 - exp(-x)).
        let y = x * x;
        let series = 1.0 / 12.0 - y * (1.0 / 720.0 - y * (1.0 / 30_240.0 - y / 1_209_600.0));
        (1.0 + x * (0.5 + x * series)) / x
    } else if x < 40.0 {
        1.0 / (1.0 - exp_minus(x))
    } else {
        1.0
    };
    weight as f32
}

/// Cache of the weights of small objects, at one interval.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Weights by size in bytes; 0 if not computed yet.
    cached: [f32; Self::SIZES],
}

impl Weights {
    const SIZES: usize = 512;

    /// Forgets all weights, because the interval changes. Zeros are a valid, empty cache.
    pub fn forget(&mut self) {
        self.cached = [0.0; Self::SIZES];
    }

    /// Returns [`weight`], rounded to what a sampled object's header can hold. `interval` must be
    /// the same in all calls until [`forget`](Self::forget).
    #[inline]
    pub fn get(&mut self, bytes: u64, interval: f64) -> f32 {
        let Some(cached) = self.cached.get_mut(bytes as usize) else {
            return header::storable(weight(bytes, interval));
        };
        if *cached == 0.0 {
            *cached = header::storable(weight(bytes, interval));
        }
        *cached
    }
}

/// Returns exp(-x) for 0 <= x < 40.
#[inline]
fn exp_minus(x: f64) -> f64 {
    const LOG2_E: f64 = core::f64::consts::LOG2_E;
    // 2^-f on [0, 1] around 0.5, error below 2e-9.
    const POWER: [f64; 9] = [
        core::f64::consts::FRAC_1_SQRT_2,
        -0.490_129_090_220_086_77,
        0.169_865_793_692_275_7,
        -0.039_246_740_197_825_54,
        0.006_800_993_099_222_254,
        -0.000_947_553_363_529_977_5,
        0.000_109_328_923_939_925_47,
        0.0,
        0.0,
    ];
    let scaled = x * LOG2_E;
    let whole = scaled as u64;
    let power = polynomial(&POWER, scaled - whole as f64 - 0.5);
    power * f64::from_bits((1023 - whole) << 52)
}

/// Evaluates a polynomial of degree 8 by Estrin's scheme: terms are combined in pairs, which do not
/// depend on each other.
#[inline]
fn polynomial(c: &[f64; 9], x: f64) -> f64 {
    let x2 = x * x;
    let x4 = x2 * x2;
    let low = (c[0] + c[1] * x) + (c[2] + c[3] * x) * x2;
    let high = (c[4] + c[5] * x) + (c[6] + c[7] * x) * x2;
    (low + high * x4) + c[8] * (x4 * x4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_are_accurate() {
        let mut gaps = Gaps::new(3);
        for _ in 0..100_000 {
            gaps.draw_gap(2.0);
            let r = gaps.state | 1;
            let exact = -((r as f64) / 2f64.powi(64)).ln();
            assert!((minus_ln(r) - exact).abs() < 5e-8 + 1e-12 * exact, "{r}");
        }
        for r in [1, 3, u64::MAX, (1 << 63) | 1, (1 << 63) - 1] {
            assert!(
                (minus_ln(r) + ((r as f64) / 2f64.powi(64)).ln()).abs() < 1e-7,
                "{r}"
            );
        }
    }

    #[test]
    fn weight_is_the_inverse_probability() {
        for interval in [2.0, 100.0, 1024.0, 524_288.0, 1e9] {
            for bytes in (0..60)
                .map(|e| 1u64 << e)
                .chain([3, 17, 1000, 1025, 40_000])
            {
                let exact = 1.0 / -(-(bytes as f64) / interval).exp_m1();
                let ours = f64::from(weight(bytes, interval));
                assert!(
                    (ours / exact - 1.0).abs() < 2e-7,
                    "{bytes} {interval} {ours} {exact}"
                );
            }
        }
        assert_eq!(weight(0, 1.0), 1.0);
        assert_eq!(weight(5, 1.0), 1.0);
    }

    #[test]
    fn weights_are_cached_for_one_interval() {
        let mut weights = Weights {
            cached: [0.0; Weights::SIZES],
        };
        for interval in [1024.0, 1.0, 4096.0] {
            weights.forget();
            for bytes in (0..600).chain(0..600) {
                let exact = weight(bytes, interval);
                assert_eq!(weights.get(bytes, interval), header::storable(exact));
            }
        }
    }

    #[test]
    fn gaps_are_exponential() {
        let interval = 1024.0;
        let mut gaps = Gaps::new(42);
        let n = 1_000_000;
        let draws: std::vec::Vec<i64> = (0..n).map(|_| gaps.draw_gap(interval)).collect();
        for bytes in [1i64, 16, 100, 1024, 5000] {
            let p = 1.0 - (-(bytes as f64) / interval).exp();
            let seen = draws.iter().filter(|g| **g < bytes).count() as f64 / f64::from(n);
            let error = (p * (1.0 - p) / f64::from(n)).sqrt();
            assert!((seen - p).abs() < 4.5 * error, "{bytes}: {seen} {p}");
        }
        let mean = draws.iter().map(|g| *g as f64 + 0.5).sum::<f64>() / f64::from(n);
        assert!((mean / interval - 1.0).abs() < 0.005, "{mean}");
    }

    #[test]
    fn interval_one_samples_every_allocation() {
        let mut gaps = Gaps::new(1);
        assert!((0..100).all(|_| gaps.draw_gap(1.0) == -1));
    }
}
