//! What the page forbids its browser: everything, but for its own styles and
//! those scripts whose hash it names.

/// The policy that allows these scripts, given as the browser sees them.
pub fn of(scripts: &[&str]) -> String {
    let hashes: Vec<String> = scripts
        .iter()
        .filter(|s| !s.is_empty())
        .map(|s| format!("'sha256-{}'", base64(&sha256(s.as_bytes()))))
        .collect();
    let scripts = if hashes.is_empty() {
        "'none'".to_owned()
    } else {
        hashes.join(" ")
    };
    format!(
        "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; \
         base-uri 'none'; form-action 'none'"
    )
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            if digit <= chunk.len() {
                out.push(char::from(DIGITS[(word >> (18 - 6 * digit)) as usize & 63]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

/// The first 32 bits of the fractional parts of the roots that FIPS 180-4 asks
/// for; worked out here rather than copied.
fn fraction_of_root(prime: u32, cube: bool) -> u32 {
    // The root of prime × 2^(32 × power), as an integer, holds 32 bits of fraction.
    let power = if cube { 3 } else { 2 };
    let wanted = u128::from(prime) << (32 * power);
    let (mut low, mut high) = (0u128, 1u128 << 37);
    while high - low > 1 {
        let middle = (low + high) / 2;
        let raised = if cube {
            middle * middle * middle
        } else {
            middle * middle
        };
        if raised <= wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    low as u32
}

fn primes() -> impl Iterator<Item = u32> {
    (2u32..).filter(|n| (2..*n).all(|d| !n.is_multiple_of(d)))
}

/// SHA-256, as FIPS 180-4 defines it.
fn sha256(message: &[u8]) -> [u8; 32] {
    let mut constants = [0u32; 64];
    for (constant, prime) in constants.iter_mut().zip(primes()) {
        *constant = fraction_of_root(prime, true);
    }
    let mut state = [0u32; 8];
    for (word, prime) in state.iter_mut().zip(primes()) {
        *word = fraction_of_root(prime, false);
    }
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        compress(&mut state, block, &constants);
    }
    let mut out = [0; 32];
    for (bytes, word) in out.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    out
}

fn compress(state: &mut [u32; 8], block: &[u8], constants: &[u32; 64]) {
    let mut w = [0u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes
            .iter()
            .fold(0, |word, &byte| word << 8 | u32::from(byte));
    }
    for i in 16..64 {
        let (x, y) = (w[i - 15], w[i - 2]);
        let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
        let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
        w[i] = (w[i - 16].wrapping_add(s0))
            .wrapping_add(w[i - 7])
            .wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, constant) in w.iter().zip(constants) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let one = (h.wrapping_add(s1).wrapping_add(choice))
            .wrapping_add(*constant)
            .wrapping_add(*word);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let two = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e) = (g, f, e, d.wrapping_add(one));
        (d, c, b, a) = (c, b, a, one.wrapping_add(two));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn sha256_gives_the_standards_examples() {
        let cases = [
            (
                "",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                "abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(hex(&sha256(text.as_bytes())), expected, "{text}");
        }
    }

    #[test]
    fn base64_pads_as_rfc_4648_shows() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (text, expected) in cases {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn nothing_is_allowed_that_is_not_named() {
        let policy = of(&["a", ""]);
        assert!(
            policy.starts_with("default-src 'none'; script-src 'sha256-ypeB"),
            "{policy}"
        );
        assert!(!policy.contains("script-src 'unsafe"), "{policy}");
        assert!(of(&[]).contains("script-src 'none'"));
    }
}
