//! Sizes of new threads' stacks. glibc places thread-local variables, also those of preloaded
//! libraries, on the stack that a program requests. A program that requests exactly what its
//! threads need would lack the space that the agent uses. A stack that the program allocates itself
//! cannot be enlarged.

use crate::c_library;
use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr::{from_ref, null_mut};
use libc::pthread_attr_t;

/// Maximum size of stacks that are enlarged, in bytes. The agent uses at most a sixteenth of a
/// larger stack, and the program could see the new size (`pthread_getattr_np`).
const MAX_SMALL_STACK_BYTES: usize = 32 << 10;

/// Room that a small stack gets in addition, in bytes: 2 KiB for thread-local variables, the rest
/// for jemalloc, whose calls go deeper than those of glibc's allocator.
const ADDED_BYTES: usize = 4 << 10;

type GetDefault = unsafe extern "C" fn(*mut pthread_attr_t) -> c_int;

/// Attributes of a thread, with a stack that is larger than the program requests.
pub struct EnlargedStack {
    attributes: pthread_attr_t,
    /// True if the attributes are a copy of the default ones, which may own memory. A bitwise copy
    /// of the program's attributes owns nothing.
    is_owner: bool,
}

impl EnlargedStack {
    /// Returns the attributes that replace `given`, which may be null. Returns `None` if the stack
    /// is large enough, or the program's own.
    ///
    /// # Safety
    /// `given` is null or points to initialized attributes.
    pub unsafe fn new(given: *const pthread_attr_t) -> Option<Self> {
        let mut enlarged = if given.is_null() {
            default_attributes()?
        } else {
            Self {
                // SAFETY: initialized attributes; glibc neither changes nor keeps a thread's, and
                // the copy is not destroyed.
                attributes: unsafe { given.read() },
                is_owner: false,
            }
        };
        let size = enlarged.size()?;
        if size > MAX_SMALL_STACK_BYTES || enlarged.is_stack_given() {
            return None;
        }
        // SAFETY: initialized attributes.
        let result = unsafe {
            libc::pthread_attr_setstacksize(&mut enlarged.attributes, size + ADDED_BYTES)
        };
        (result == 0).then_some(enlarged)
    }

    /// Returns the attributes for `pthread_create`.
    pub fn attributes(&self) -> *const c_void {
        from_ref(&self.attributes).cast()
    }

    /// Returns the size of the stack, in bytes.
    fn size(&self) -> Option<usize> {
        let mut size = 0;
        // SAFETY: initialized attributes, and room for a size.
        let result = unsafe { libc::pthread_attr_getstacksize(&self.attributes, &mut size) };
        (result == 0).then_some(size)
    }

    /// Returns true if the program has allocated the stack itself.
    fn is_stack_given(&self) -> bool {
        let mut lowest = null_mut();
        let mut size = 0;
        // SAFETY: initialized attributes, and room for an address and a size.
        let result =
            unsafe { libc::pthread_attr_getstack(&self.attributes, &mut lowest, &mut size) };
        // glibc keeps the upper end of the stack, which is 0 if none was given.
        result != 0 || lowest.addr().wrapping_add(size) != 0
    }
}

impl Drop for EnlargedStack {
    fn drop(&mut self) {
        if self.is_owner {
            // SAFETY: initialized by `pthread_getattr_default_np`, and no longer used.
            unsafe { libc::pthread_attr_destroy(&mut self.attributes) };
        }
    }
}

/// Returns a copy of the default attributes of threads, or `None` if the C library does not provide
/// them (glibc before 2.18).
fn default_attributes() -> Option<EnlargedStack> {
    let found = c_library::optional_function(c"pthread_getattr_default_np");
    // SAFETY: null, or the C library's function of this type.
    let get = unsafe { transmute::<*mut c_void, Option<GetDefault>>(found) }?;
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: room for attributes, which the function initializes if it returns 0.
    let attributes = unsafe {
        if get(attributes.as_mut_ptr()) != 0 {
            return None;
        }
        attributes.assume_init()
    };
    Some(EnlargedStack {
        attributes,
        is_owner: true,
    })
}
