//! jemalloc's size classes: 8, multiples of 16 up to 64, then four per doubling. The sizes of
//! objects above 32 KiB are whole pages, which may lie between two classes.

/// Number of size classes of a 64-bit jemalloc with 16-byte alignment.
pub const CLASSES: u32 = 232;

/// Returns the size of a class in bytes, or `None` if there is no such class.
#[must_use]
pub fn of_class(class: u32) -> Option<u64> {
    let index = match class {
        0 => return Some(8),
        CLASSES.. => return None,
        class => class - 1,
    };
    let group = index / 4;
    let step = u64::from(index % 4) + 1;
    Some(match group {
        0 => 16 * step,
        group => (64 << (group - 1)) + (16 << (group - 1)) * step,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_equal_jemallocs() {
        // Above this size, jemalloc rounds to pages, not to classes.
        const MAX_CLASS_ROUNDED_BYTES: u64 = 32 << 10;
        let classes: Vec<u64> = (0..CLASSES).map_while(of_class).collect();
        for pair in classes
            .windows(2)
            .take_while(|pair| pair[0] < MAX_CLASS_ROUNDED_BYTES)
        {
            let size = pair[0];
            let next = pair[1];
            crate::jemalloc::tests::run_alone(|| {
                // SAFETY: the sizes are not 0.
                let rounded = unsafe {
                    let nallocx = tikv_jemalloc_sys::nallocx;
                    [nallocx(size as usize, 0), nallocx(size as usize + 1, 0)]
                };
                assert_eq!(rounded, [size as usize, next as usize]);
            });
        }
        assert_eq!(of_class(CLASSES), None);
    }
}
