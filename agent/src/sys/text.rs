//! Text buffer without a heap.

use core::ffi::CStr;

/// NUL-terminated text of at most `N` bytes.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
    /// False if something did not fit.
    is_complete: bool,
}

impl<const N: usize> Text<N> {
    /// Creates an empty text.
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
            is_complete: true,
        }
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.len + 1 >= N {
                self.is_complete = false;
                return;
            }
            self.bytes[self.len] = *byte;
            self.len += 1;
        }
    }

    /// Appends a number in decimal.
    pub fn push_number(&mut self, mut number: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }

    /// Returns a C string, or `None` if something did not fit.
    pub fn as_c_str(&self) -> Option<&CStr> {
        if self.is_complete {
            CStr::from_bytes_until_nul(&self.bytes).ok()
        } else {
            None
        }
    }
}
