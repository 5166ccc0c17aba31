//! jemalloc's size classes: 8, multiples of 16 up to 64, then four per doubling. Objects above 32
//! KiB have sizes in between, in whole pages.

/// Number of size classes of a 64-bit jemalloc with 16-byte alignment.
pub const CLASSES: u32 = 232;

/// Returns the size of a class in bytes, or `None` from [`CLASSES`] on.
#[must_use]
pub fn of_class(class: u32) -> Option<u64> {
    let index = match class {
        0 => return Some(8),
        CLASSES.. => return None,
        class => class - 1,
    };
    let (group, step) = (index / 4, u64::from(index % 4) + 1);
    Some(match group {
        0 => 16 * step,
        group => (64 << (group - 1)) + (16 << (group - 1)) * step,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_jemallocs() {
        // Above, jemalloc rounds to pages, not to classes.
        const MAX_CLASS_ROUNDED_BYTES: u64 = 32 << 10;
        let classes: Vec<u64> = (0..CLASSES).map_while(of_class).collect();
        for pair in classes
            .windows(2)
            .take_while(|pair| pair[0] < MAX_CLASS_ROUNDED_BYTES)
        {
            let (size, next) = (pair[0], pair[1]);
            crate::jemalloc::tests::alone(|| {
                // SAFETY: sizes that are not 0.
                let own = unsafe {
                    let nallocx = tikv_jemalloc_sys::nallocx;
                    [nallocx(size as usize, 0), nallocx(size as usize + 1, 0)]
                };
                assert_eq!(own, [size as usize, next as usize]);
            });
        }
        assert_eq!(of_class(CLASSES), None);
    }
}
