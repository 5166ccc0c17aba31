//! libgcc's unwinder: follows all registers, evaluates every expression, and is what
//! exceptions are thrown with.

use libc::{c_int, c_void};
use unwind::Registers;

#[repr(C)]
struct Context([u8; 0]);

#[link(name = "gcc_s")]
unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut Context, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, exact: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
}

const GO_ON: c_int = 0;

/// Stack that libgcc found.
pub struct Trace {
    start: Registers,
    begun: bool,
    /// Return addresses, innermost first; one more than the pc where a signal
    /// interrupted.
    pub frames: Vec<u64>,
    /// Indices of frames that a signal interrupted.
    pub interrupted: Vec<usize>,
    /// Set if unwinding reached the outermost frame.
    pub is_whole: bool,
}

/// Unwinds from here, and keeps the frames outside of `start`.
pub fn trace(start: &Registers) -> Trace {
    let mut trace = Trace {
        start: *start,
        begun: false,
        frames: Vec::with_capacity(64),
        interrupted: Vec::new(),
        is_whole: false,
    };
    // SAFETY: `each` takes a Trace, which nobody else uses meanwhile.
    unsafe { _Unwind_Backtrace(each, (&raw mut trace).cast()) };
    trace
}

extern "C" fn each(context: *mut Context, data: *mut c_void) -> c_int {
    let mut exact = 0;
    // SAFETY: `trace` passes its own, and libgcc its context.
    let (trace, ip, sp) = unsafe {
        (
            &mut *data.cast::<Trace>(),
            _Unwind_GetIPInfo(context, &mut exact) as u64,
            _Unwind_GetCFA(context) as u64,
        )
    };
    trace.begun |= ip == trace.start.ip && sp == trace.start.sp;
    if !trace.begun {
        return GO_ON;
    }
    if ip == 0 {
        trace.is_whole = true;
        return GO_ON;
    }
    if exact != 0 {
        trace.interrupted.push(trace.frames.len());
    }
    trace.frames.push(ip + u64::from(exact != 0));
    GO_ON
}
